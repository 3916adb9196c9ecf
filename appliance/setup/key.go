package setup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/attestd/attestd/api/client"
	"github.com/attestd/attestd/appliance/files"
	"github.com/attestd/attestd/hsm"
	"github.com/attestd/attestd/hsm/softhsm"
)

// makeKeyOrUndo restores the PIN and the configuration if makeKey fails, so that the next run prompts again.
func (s *setup) makeKeyOrUndo(ctx context.Context) error {
	err := s.makeKey(ctx)
	if err == nil || len(s.undo) == 0 {
		return err
	}
	for _, undo := range s.undo {
		err = errors.Join(err, undo())
	}
	s.say("The configuration and the PIN are restored, because they gave no usable token and key.")
	return err
}

// makeKey makes sure that the token and the key exist, and learns the address. While the daemon runs, it holds the
// login, so makeKey asks the daemon.
func (s *setup) makeKey(ctx context.Context) error {
	daemon := client.NewAdmin(s.config.Admin.Socket)
	status, err := daemon.Status(ctx)
	_ = daemon.Close()
	if err == nil {
		s.result.Address = &status.SignerAddress
		s.say("kept  the key %s  (the daemon signs with it)", status.SignerAddress)
		return nil
	}
	if !errors.Is(err, client.ErrNotRunning) {
		return err
	}
	if err := s.ensureFolder(s.config.DataDir, 0o700, s.service); err != nil {
		return err
	}
	if s.severalTokens() {
		return s.findKeys(ctx)
	}
	if s.takesOver || s.bundle != nil {
		return s.findKey(ctx)
	}
	soPIN, err := s.officerPIN()
	if err != nil {
		return err
	}
	made, err := s.InitToken(ctx, soPIN)
	if err != nil {
		return err
	}
	s.result.Address = &made.Key.Address
	tell := map[bool]func(format string, args ...any){true: s.changed,
		false: func(format string, args ...any) { s.say("kept  "+format, args...) }}
	tell[made.TokenCreated]("the token %q  (serial %s)", made.Token, made.Serial)
	tell[made.Created]("the key %q  (address %s)", made.Key.Label, made.Key.Address)
	return nil
}

// findKey learns the address of a key that must exist. A new key in its place would have another address.
func (s *setup) findKey(ctx context.Context) error {
	bringBack := "Setup does not create a key on a machine that joins a cluster. Replicate the cluster's key with the HSM vendor's tools " +
		"(for SoftHSM, copy the folder of its tokens), then run setup again"
	if s.bundle == nil {
		bringBack = "The configuration names an existing key, so setup does not create one. Restore the HSM's backup (for SoftHSM, the folder of its " +
			"tokens), or correct hsm.uri. For a new key, with another address, move " + s.result.Configuration +
			" away, then run setup"
	}
	if tokens := s.emptyTokens(); tokens != "" {
		return fmt.Errorf("no SoftHSM token in %s.\n%s", tokens, bringBack)
	}
	found, err := s.Inspect(ctx, 1)
	switch {
	case err != nil:
		return err
	case found.WrongPIN:
		return &PINRefused{found.LastError}
	case found.NotFound:
		return fmt.Errorf("%s.\n%s", found.LastError, bringBack)
	case !found.Ready || found.Key.Address == nil:
		return errors.New(found.LastError)
	}
	s.result.Address = found.Key.Address
	s.say("kept  the token %q  (serial %s)", found.Token.Label, found.Token.Serial)
	s.say("kept  the key %q  (address %s)", found.Key.Label, found.Key.Address)
	return nil
}

// emptyTokens returns the folder of SoftHSM's tokens if SoftHSM is configured and the folder is empty. SoftHSM itself
// may only report CKR_GENERAL_ERROR then.
func (s *setup) emptyTokens() string {
	uri, err := hsm.ParseURI(s.config.HSM.URI)
	if err != nil || !softhsm.IsModule(uri.ModulePath) {
		return ""
	}
	tokens := softhsm.TokenDir(s.Source.Getenv(softhsm.ConfVariable))
	entries, err := os.ReadDir(tokens)
	if tokens == "" || len(entries) > 0 || err != nil && !errors.Is(err, fs.ErrNotExist) {
		return ""
	}
	return tokens
}

// daemonRuns reports whether a daemon has the configured data open.
func (s *setup) daemonRuns(ctx context.Context) (bool, error) {
	daemon := client.NewAdmin(s.config.Admin.Socket)
	defer func() { _ = daemon.Close() }()
	_, err := daemon.Status(ctx)
	if errors.Is(err, client.ErrNotRunning) {
		return false, nil
	}
	return err == nil, err
}

// officerPIN returns the security officer's PIN for a token to be initialised. For SoftHSM, it generates one and keeps
// it in a file that only root can read. That PIN alone can replace a lost user PIN.
func (s *setup) officerPIN() ([]byte, error) {
	if s.SOPINFile != "" {
		return s.ReadPIN(s.SOPINFile)
	}
	uri, err := hsm.ParseURI(s.config.HSM.URI)
	if err != nil || !softhsm.IsModule(uri.ModulePath) {
		return nil, err
	}
	path := filepath.Join(s.folder, "so-pin")
	if files.Exists(path) {
		return s.ReadPIN(path)
	}
	if entries, err := os.ReadDir(softhsm.TokenDir(s.Source.Getenv(softhsm.ConfVariable))); err == nil &&
		len(entries) > 0 {
		return nil, nil // the token exists
	}
	pin := randomPIN()
	return pin, s.place(path, append(pin, '\n'), 0o400, s.root(),
		"the security officer's PIN, which can replace a lost PIN; move it to another machine")
}

// PINRefused is hsm.ErrPIN from a child process, with that process's message.
type PINRefused struct{ Said string }

func (e *PINRefused) Error() string { return e.Said }
func (e *PINRefused) Unwrap() error { return hsm.ErrPIN }
