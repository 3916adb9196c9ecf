package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// environmentName is the file beside the configuration in which systemd finds the daemon's environment
// (EnvironmentFile=): what an HSM's library reads, such as SOFTHSM2_CONF, and values of the configuration.
const environmentName = "environment"

// adoptEnvironment sets the variables of the environment file that are not set already, once. So a command at a terminal
// sees the same token and the same values as the daemon.
func (a *app) adoptEnvironment() error {
	if a.adopted {
		return nil
	}
	a.adopted = true
	variables, err := readEnvironment(filepath.Join(filepath.Dir(a.effectiveConfigPath()), environmentName))
	if err != nil {
		return err
	}
	for _, v := range variables {
		if err := a.setenv(v.name, v.value, false); err != nil {
			return err
		}
	}
	return nil
}

// setenv sets a variable for the configuration, for libraries in this process, and for programs that it starts.
func (a *app) setenv(name, value string, override bool) error {
	if _, set := a.lookupEnv(name); set && !override {
		return nil
	}
	a.environ = append([]string{name + "=" + value}, a.environ...) // the first of a name counts
	return os.Setenv(name, value)
}

// effectiveConfigPath is where the configuration is, or would be.
func (a *app) effectiveConfigPath() string {
	if path := a.configPath(); path != "" {
		return path
	}
	return defaultConfigFile
}

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
