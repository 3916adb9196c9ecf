package config

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Source is the source of a configuration: the file, the environment file next to it, and the environment. File and
// Environ should be set; the other fields are optional.
type Source struct {
	File    string              // empty means $ATTESTD_CONFIG, or DefaultFile if that is not set
	Environ []string            // NAME=value; the first entry of a name counts
	SoftHSM string              // path of SoftHSM's library on this machine; empty means Debian's
	Check   func(*Config) error // additional checks of the packages that use the values; may be nil
	adopted bool                // the environment file has been read
}

// Load reads the configuration. flags, by name of the setting, override file and environment. On an error, the
// configuration is nil if it could not be read; otherwise it is the faulty configuration.
func (s *Source) Load(flags map[string]any) (*Config, error) {
	if err := s.Adopt(); err != nil {
		return nil, err
	}
	return s.LoadFile(s.Named(), flags)
}

// EnvironmentName is the file next to the configuration that systemd reads as the daemon's environment
// (EnvironmentFile=). It sets variables of an HSM's library, such as SOFTHSM2_CONF, and settings.
const EnvironmentName = "environment"

// Adopt sets the variables of the environment file that are not set yet. Only the first call reads the file. So a
// command in a terminal uses the same token and settings as the daemon.
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
		if err := os.Setenv(v.Name, v.Value); err != nil { // for libraries in this process and for child processes
			return err
		}
	}
	return nil
}

// AdoptAgain calls Adopt after a change of the environment file.
func (s *Source) AdoptAgain() error {
	s.adopted = false
	return s.Adopt()
}

// Named returns the file named by File or by $ATTESTD_CONFIG, or "" for the default.
func (s *Source) Named() string {
	if s.File != "" {
		return s.File
	}
	return s.Getenv("ATTESTD_CONFIG")
}

// Path returns the path of the configuration file, which may not exist.
func (s *Source) Path() string {
	if path := s.Named(); path != "" {
		return path
	}
	return DefaultFile
}

// Getenv returns a variable's value, or "" if it is not set.
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

// ReadEnvironment reads NAME=value lines like EnvironmentFile= of systemd.exec(5), without continuation lines. A
// missing file has no variables.
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
