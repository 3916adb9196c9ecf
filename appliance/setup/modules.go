package setup

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/attestd/attestd/appliance/config"
	"github.com/attestd/attestd/appliance/files"
	"github.com/attestd/attestd/hsm"
	"github.com/attestd/attestd/hsm/softhsm"
)

// chooseModule returns the library if no prompt is needed: the only HSM library or, without HSM libraries, SoftHSM.
func chooseModule(found []hsm.Module) (hsm.Module, error) {
	var ofHSMs, soft []hsm.Module
	for _, m := range found {
		if m.HSM {
			ofHSMs = append(ofHSMs, m)
		}
		if softhsm.IsModule(m.Path) {
			soft = append(soft, m)
		}
	}
	switch {
	case len(ofHSMs) == 1:
		return ofHSMs[0], nil
	case len(ofHSMs) == 0 && len(soft) > 0:
		return soft[0], nil
	case len(found) == 0:
		return hsm.Module{},
			errors.New("no PKCS#11 module on this machine: install the HSM's client, or SoftHSM for a trial " +
				"(apt install softhsm2, dnf install softhsm), or give its path with --module")
	}
	return hsm.Module{},
		fmt.Errorf("several PKCS#11 modules on this machine: choose one with --module: %s", listModules(found))
}

func listModules(found []hsm.Module) string {
	items := make([]string, len(found))
	for i, m := range found {
		items[i] = m.Path + " (" + m.Name + ")"
	}
	return strings.Join(items, ", ")
}

// prepareSoftHSM gives the daemon its own tokens in data_dir, unless SOFTHSM2_CONF names others. The system's tokens
// belong to a group that the daemon need not be in. fresh says that no token exists yet.
func (s *setup) prepareSoftHSM(dataDir string) (fresh bool, err error) {
	environment := filepath.Join(s.folder, config.EnvironmentName)
	if err := s.Source.Adopt(); err != nil {
		return false, err
	}
	conf := s.Source.Getenv(softhsm.ConfVariable)
	if conf == "" {
		conf = filepath.Join(s.folder, "softhsm2.conf")
		tokens := filepath.Join(dataDir, "softhsm")
		if err := s.ensureFolder(tokens, 0o700, s.service); err != nil {
			return false, err
		}
		if !files.Exists(conf) {
			text := "# SoftHSM for attestd: softhsm2.conf(5).\n" + softhsm.Conf(tokens)
			if err := s.place(conf, []byte(text), 0o644, s.root(),
				"SoftHSM's configuration; the tokens are in "+tokens); err != nil {
				return false, err
			}
		}
	}
	if err := s.ensureVariable(environment, softhsm.ConfVariable, conf); err != nil {
		return false, err
	}
	entries, err := os.ReadDir(softhsm.TokenDir(conf))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("SoftHSM's tokens (directories.tokendir in %s): %w", conf, err)
	}
	return len(entries) == 0, nil
}

// ensureVariable adds a variable to the environment file, unless the file sets it.
func (s *setup) ensureVariable(path, name, value string) error {
	variables, err := config.ReadEnvironment(path)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(variables, func(v config.Variable) bool { return v.Name == name }) {
		s.kept(path, "sets "+name+" already")
		return nil
	}
	text, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if len(text) == 0 {
		text = []byte("# The environment of the service attestd, and of attestd's commands: NAME=value.\n")
	} else if !bytes.HasSuffix(text, []byte("\n")) {
		text = append(text, '\n')
	}
	return s.place(path, fmt.Appendf(text, "%s=%s\n", name, value), 0o644, s.root(), "sets "+name)
}
