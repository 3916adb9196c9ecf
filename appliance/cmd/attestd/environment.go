package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// source is where a configuration comes from: the file, the environment file beside it, and the environment. Fill in file
// and environ, and what is known of the rest.
type source struct {
	file    string              // empty for $ATTESTD_CONFIG, else defaultConfigFile
	environ []string            // NAME=value; the first of a name counts
	softHSM string              // where SoftHSM's library is on this machine; empty for where Debian has it
	check   func(*config) error // what only those can check who use the values; may be nil
	adopted bool                // the environment file is read
}

// load reads the configuration. Flags that set a value go over file and environment, by the value's name. The configuration
// of an error is nil where it could not be read, else it is what was found wrong.
func (s *source) load(flags map[string]any) (*config, error) {
	if err := s.adopt(); err != nil {
		return nil, err
	}
	return s.loadFile(s.configured(), flags)
}

// environmentName is the file beside the configuration in which systemd finds the daemon's environment
// (EnvironmentFile=): what an HSM's library reads, such as SOFTHSM2_CONF, and values of the configuration.
const environmentName = "environment"

// adopt sets the variables of the environment file that are not set already, once. So a command at a terminal
// sees the same token and the same values as the daemon.
func (s *source) adopt() error {
	if s.adopted {
		return nil
	}
	s.adopted = true
	variables, err := readEnvironment(filepath.Join(filepath.Dir(s.path()), environmentName))
	if err != nil {
		return err
	}
	for _, v := range variables {
		if _, set := s.lookup(v.name); set {
			continue
		}
		s.environ = append([]string{v.name + "=" + v.value}, s.environ...)
		if err := os.Setenv(v.name, v.value); err != nil { // for libraries in this process, and for programs that it starts
			return err
		}
	}
	return nil
}

// adoptAgain is adopt where the environment file may be new.
func (s *source) adoptAgain() error {
	s.adopted = false
	return s.adopt()
}

// configured is the file that is named, by file or by the environment; empty for the default.
func (s *source) configured() string {
	if s.file != "" {
		return s.file
	}
	return s.getenv("ATTESTD_CONFIG")
}

// path is where the configuration is, or would be.
func (s *source) path() string {
	if path := s.configured(); path != "" {
		return path
	}
	return defaultConfigFile
}

// getenv returns a variable's value, empty where it is not set.
func (s *source) getenv(name string) string {
	value, _ := s.lookup(name)
	return value
}

// lookup returns a variable's value, and whether it is set.
func (s *source) lookup(name string) (value string, set bool) {
	for _, kv := range s.environ {
		if k, v, _ := strings.Cut(kv, "="); k == name {
			return v, true
		}
	}
	return "", false
}

// variable is a line of the environment file.
type variable struct{ name, value string }

// readEnvironment reads NAME=value lines as systemd.exec(5) does under EnvironmentFile=, without continuation lines. A
// file that is not there has none.
func readEnvironment(path string) (variables []variable, err error) {
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
		variables = append(variables, variable{name, unquote(strings.TrimSpace(value))})
	}
	return variables, nil
}

func unquote(s string) string {
	if n := len(s); n >= 2 && (s[0] == '"' || s[0] == '\'') && s[n-1] == s[0] {
		return s[1 : n-1]
	}
	return s
}
