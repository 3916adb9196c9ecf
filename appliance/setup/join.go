package setup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/attestd/attestd/appliance/archive"
	"github.com/attestd/attestd/appliance/config"
	"github.com/attestd/attestd/appliance/files"
	"github.com/attestd/attestd/appliance/journal"
)

// openBundle opens the bundle of --join. It returns an error on a machine that has its own journal.
func (s *setup) openBundle(ctx context.Context) error {
	if s.Join == "" {
		return nil
	}
	f, err := os.Open(s.Join)
	if err != nil {
		return fmt.Errorf("--join: %w", err)
	}
	defer f.Close()
	passphrase, err := s.passphrase(ctx)
	if err != nil {
		return err
	}
	b, err := OpenBundle(f, passphrase, time.Now())
	if err != nil {
		return fmt.Errorf("--join %s: %w", s.Join, err)
	}
	s.bundle = &b
	if err := s.refuseOwnJournal(); err != nil {
		return err
	}
	return s.placeRules()
}

// passphrase reads the passphrase from --passphrase-file, or prompts for it.
func (s *setup) passphrase(ctx context.Context) (p []byte, err error) {
	switch {
	case s.PassphraseFile != "":
		p, err = s.ReadPIN(s.PassphraseFile)
	case s.Yes:
		return nil, errors.New(
			"the bundle's passphrase is missing: give its file with --passphrase-file, or - for standard input")
	default:
		p, err = askSecret(ctx, s.In, s.Err, "Passphrase of the bundle")
	}
	if err != nil {
		return nil, fmt.Errorf("passphrase: %w", err)
	}
	if len(p) == 0 {
		return nil, errors.New("the passphrase is empty")
	}
	return p, nil
}

// joinDataDir returns data_dir, even before the configuration exists.
func (s *setup) joinDataDir() (string, error) {
	present, err := s.presentValues()
	if err != nil {
		return "", err
	}
	if dir, ok := present["data_dir"].(string); ok {
		return dir, nil
	}
	return filepath.Abs(or(s.DataDir, config.DefaultText("data_dir")))
}

// refuseOwnJournal returns an error if this machine has its own journal, or belongs to another cluster.
func (s *setup) refuseOwnJournal() error {
	dir, err := s.joinDataDir()
	if err != nil {
		return err
	}
	return s.service.In(dir).Do(func() error {
		if files.Exists(filepath.Join(dir, archive.StoreFile)) {
			return fmt.Errorf(
				"this machine is set up already, and has a journal in %s. To join, move %s and %s to another folder first; they still prove this journal's attestations",
				dir, archive.StoreFile, archive.LogKeyFile)
		}
		there, err := os.ReadFile(filepath.Join(dir, archive.LogKeyFile))
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err == nil && string(bytes.TrimSpace(there)) != s.bundle.LogKey {
			err = fmt.Errorf(
				"this machine is set up already: %s belongs to another log than the bundle; if this machine is to leave that log, move the file away",
				filepath.Join(dir, archive.LogKeyFile))
		}
		return err
	})
}

// placeRules writes the screening list and the policy to their configured paths. A member without them would attest
// requests that the others refuse.
func (s *setup) placeRules() error {
	return errors.Join(
		s.placeRule("attestation.screening_list", s.bundle.Screening, "the screening list"),
		s.placeRule("attestation.policy", s.bundle.Policy, "the policy"),
	)
}

func (s *setup) placeRule(setting, content, what string) error {
	path, _ := s.bundle.Settings[setting].(string)
	if path == "" {
		return nil
	}
	if there, err := os.ReadFile(path); err == nil && string(there) == content {
		s.kept(path, what)
		return nil
	}
	if err := s.ensureFolder(filepath.Dir(path), 0o755, s.root()); err != nil {
		return err
	}
	return s.place(path, []byte(content), 0o644, s.root(), what+"; must be the same on all members")
}

// bundled returns the bundle's settings that the configuration lacks. A setting with another value is an error.
func (s *setup) bundled(present map[string]any) (map[string]any, error) {
	lacking := make(map[string]any)
	for name, value := range s.bundle.Settings {
		there, set := present[name]
		_, named := present["hsm.keys"]
		switch {
		case name == "hsm.address" && named: // each key has its own
		case !set:
			lacking[name] = value
		case name == "journal.key": // another URI may lead to the same key; attestd compares the keys
		case name == "store.url" && config.DatabaseURL(fmt.Sprint(there)).WithoutPassword() == config.DatabaseURL(
			fmt.Sprint(value)).WithoutPassword():
		case fmt.Sprint(there) != fmt.Sprint(value):
			return nil,
				fmt.Errorf(
					"%s sets %s differently from the cluster: correct or remove the setting, then run setup again",
					s.result.Configuration, name)
		}
	}
	return lacking, nil
}

// placeLogKey writes the bundle's log key to data_dir.
func (s *setup) placeLogKey(context.Context) error {
	if s.bundle == nil {
		return nil
	}
	path := filepath.Join(s.config.DataDir, archive.LogKeyFile)
	key, err := journal.ParseLogKey(s.bundle.LogKey)
	if err != nil {
		return err
	}
	if files.Exists(path) { // refuseOwnJournal has compared them
		s.kept(path, "the log key of "+key.Verifier.Name())
		return nil
	}
	err = s.service.In(s.config.DataDir).Do(func() error {
		return files.Write(path, []byte(s.bundle.LogKey+"\n"), 0o600)
	})
	if err == nil {
		s.made(path, "the log key of "+key.Verifier.Name())
	}
	if s.config.Store.URL != "" && !s.config.Store.URL.HasPassword() &&
		strings.Contains(string(s.config.Store.URL), "@") &&
		!strings.Contains(string(s.config.Store.URL), "passfile=") {
		s.say(
			"The bundle has no database password. If the database needs one, put it into a passfile of the user %s, and set its path in %s: PGPASSFILE=…",
			s.service.Name, filepath.Join(s.folder, config.EnvironmentName))
	}
	return err
}
