package config

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Source is where a configuration comes from: the file, the environment file beside it, and the environment. Fill in File
// and Environ, and what is known of the rest.
type Source struct {
	File    string              // empty for $ATTESTD_CONFIG, else DefaultFile
	Environ []string            // NAME=value; the first of a name counts
	SoftHSM string              // where SoftHSM's library is on this machine; empty for where Debian has it
	Check   func(*Config) error // what only those can check who use the values; may be nil
	adopted bool                // the environment file is read
}

// Load reads the configuration. Flags that set a value go over file and environment, by the value's name. The configuration
// of an error is nil where it could not be read, else it is what was found wrong.
func (s *Source) Load(flags map[string]any) (*Config, error) {
	if err := s.Adopt(); err != nil {
		return nil, err
	}
	return s.LoadFile(s.Named(), flags)
}

// EnvironmentName is the file beside the configuration in which systemd finds the daemon's environment
// (EnvironmentFile=): what an HSM's library reads, such as SOFTHSM2_CONF, and values of the configuration.
const EnvironmentName = "environment"

// Adopt sets the variables of the environment file that are not set already, once. So a command at a terminal
// sees the same token and the same values as the daemon.
func (s *Source) Adopt() error {
	if s.adopted {
		return nil
	}
	s.adopted = true
	variables, err := ReadEnvironment(filepath.Join(filepath.Dir(s.Path()), EnvironmentName))
	if err != nil {
		return err
	}
	for _, v := range variables {
		if _, set := s.Lookup(v.Name); set {
			continue
		}
		s.Environ = append([]string{v.Name + "=" + v.Value}, s.Environ...)
		if err := os.Setenv(v.Name, v.Value); err != nil { // for libraries in this process, and for programs that it starts
			return err
		}
	}
	return nil
}

// AdoptAgain is Adopt where the environment file may be new.
func (s *Source) AdoptAgain() error {
	s.adopted = false
	return s.Adopt()
}

// Named is the file that is named, by file or by the environment; empty for the default.
func (s *Source) Named() string {
	if s.File != "" {
		return s.File
	}
	return s.Getenv("ATTESTD_CONFIG")
}

// Path is where the configuration is, or would be.
func (s *Source) Path() string {
	if path := s.Named(); path != "" {
		return path
	}
	return DefaultFile
}

// Getenv returns a variable's value, empty where it is not set.
func (s *Source) Getenv(name string) string {
	value, _ := s.Lookup(name)
	return value
}

// Lookup returns a variable's value, and whether it is set.
func (s *Source) Lookup(name string) (value string, set bool) {
	for _, kv := range s.Environ {
		if k, v, _ := strings.Cut(kv, "="); k == name {
			return v, true
		}
	}
	return "", false
}

// Variable is a line of the environment file.
type Variable struct{ Name, Value string }

// ReadEnvironment reads NAME=value lines as systemd.exec(5) does under EnvironmentFile=, without continuation lines. A
// file that is not there has none.
func ReadEnvironment(path string) (variables []Variable, err error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("environment: %w", err)
	}
	for number, line := range strings.Split(string(text), "\n") {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' || line[0] == ';' {
			continue
		}
		name, value, found := strings.Cut(line, "=")
		if name = strings.TrimSpace(name); !found || name == "" {
			return nil, fmt.Errorf("environment: %s, line %d: not NAME=value", path, number+1)
		}
		variables = append(variables, Variable{name, unquote(strings.TrimSpace(value))})
	}
	return variables, nil
}

func unquote(s string) string {
	if n := len(s); n >= 2 && (s[0] == '"' || s[0] == '\'') && s[n-1] == s[0] {
		return s[1 : n-1]
	}
	return s
}
