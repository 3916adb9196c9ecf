package setup

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/attestd/attestd/appliance/files"
	"github.com/attestd/attestd/appliance/service"
	"github.com/attestd/attestd/hsm"
)

// keepPIN returns the pin-source of a PIN that is kept already, or keeps a new one. It keeps the PIN as a credential,
// which the unit passes to the service (LoadCredentialEncrypted=), or in a file of the service's user.
func (s *setup) keepPIN(ctx context.Context, fresh bool) (source string, err error) {
	file, credential := s.pinPath(), service.CredentialPath("pin")
	const credentialSource = "credential:pin"
	switch {
	case s.isServiceFolder() && files.Exists(credential):
		s.kept(credential, "the PIN")
		return credentialSource, nil
	case files.Exists(file):
		s.kept(file, "the PIN")
		return "file:" + file, nil
	}
	pin, err := s.choosePIN(ctx, fresh)
	if err != nil {
		return "", err
	}
	if !fresh { // no other copy of a fresh token's PIN exists
		s.undoFile(file)
		s.undoFile(credential)
	}
	if s.PINStore == "credential" || s.PINStore == "auto" && s.isServiceFolder() && isDirectory("/run/systemd/system") {
		err := s.placeCredential(ctx, "pin", pin)
		if err == nil {
			return credentialSource, nil
		}
		if s.PINStore == "credential" {
			return "", err
		}
		s.say("The PIN is stored in a file, because it cannot be encrypted here: %v", err)
	}
	return "file:" + file, s.placePIN(file, pin)
}

// adoptPIN makes sure that the PIN is at the pin-source of an existing configuration, and prompts for it if it is
// missing. If a PIN is given, the token must exist: setup makes neither the token nor its key, unless the security
// officer's PIN is given, too.
func (s *setup) adoptPIN(ctx context.Context) error {
	if s.severalTokens() {
		return s.adoptPINs(ctx)
	}
	uri, err := hsm.ParseURI(s.config.HSM.URI)
	if err != nil {
		return fmt.Errorf("hsm.uri: %w", err)
	}
	running, err := s.daemonRuns(ctx)
	switch {
	case err != nil:
		return err
	case s.PINFile == "" && (running || uri.PINSource == ""):
		return nil
	case uri.PINSource == "":
		return errors.New("hsm.uri has no pin-source for the PIN: add pin-source=file:" + s.pinPath())
	}
	current, missing := s.currentPIN(ctx, uri)
	switch {
	case s.PINFile == "" && missing == nil:
		return nil
	case s.PINFile == "" && s.Yes:
		return fmt.Errorf("no PIN at the pin-source of hsm.uri (%s): give a file with the PIN: --pin-file FILE: %w",
			uri.PINSource, missing)
	}
	pin, err := s.choosePIN(ctx, false)
	if err != nil {
		return err
	}
	s.takesOver = s.SOPINFile == "" // with --so-pin-file, a token is to be made
	switch {
	case missing == nil && bytes.Equal(current, pin):
		s.say("kept  the PIN  (%s)", uri.PINSource)
		return nil
	case running:
		return errors.New(
			"attestd runs with another PIN; stop it first, so that setup can test the new one: systemctl stop attestd.socket attestd")
	}
	return s.replacePIN(ctx, uri, pin)
}

// currentPIN reads the PIN at its pin-source.
func (s *setup) currentPIN(ctx context.Context, uri hsm.URI) (pin []byte, err error) {
	_, given := s.Source.Lookup(hsm.CredentialsVariable)
	if name := uri.Credential(); name != "" && !given {
		pin, err = service.SystemdCreds(ctx, nil, "decrypt", "--name="+name, service.CredentialPath(name), "-")
	} else if path, pathErr := uri.PINFile(); pathErr != nil {
		err = pathErr
	} else {
		pin, err = s.ReadPIN(path)
	}
	if pin = bytes.TrimRight(pin, "\r\n"); err == nil && len(pin) == 0 {
		err = errors.New("the file is empty")
	}
	return pin, err
}

// replacePIN writes the PIN to the pin-source of hsm.uri. If a credential cannot be encrypted here, it writes a file
// and changes hsm.uri to that.
func (s *setup) replacePIN(ctx context.Context, uri hsm.URI, pin []byte) error {
	name := uri.Credential()
	if name == "" {
		path, err := uri.PINFile()
		if err != nil {
			return err
		}
		s.undoFile(path)
		return s.placePIN(path, pin)
	}
	s.undoFile(service.CredentialPath(name))
	err := s.placeCredential(ctx, name, pin)
	if err == nil {
		return nil
	}
	s.say("The PIN is stored in a file, because it cannot be encrypted here: %v", err)
	file := s.pinPath()
	s.undoFile(file)
	s.undoFile(s.result.Configuration)
	if err := s.renamePINSource(uri.PINSource, "file:"+file); err != nil {
		return err
	}
	return s.placePIN(file, pin)
}

// renamePINSource changes only pin-source in the configuration.
func (s *setup) renamePINSource(from, to string) error {
	text, err := os.ReadFile(s.result.Configuration)
	if err != nil {
		return err
	}
	const attribute = "pin-source="
	if n := strings.Count(string(text), attribute+from); n != 1 {
		return fmt.Errorf("%s contains %s%s %d times instead of once: set %s%s in hsm.uri, then run setup again",
			s.result.Configuration, attribute, from, n, attribute, to)
	}
	changed := bytes.Replace(text, []byte(attribute+from), []byte(attribute+to), 1)
	if err := s.place(s.result.Configuration, changed, 0o640, s.root(), "hsm.uri: "+attribute+to); err != nil {
		return err
	}
	return s.loadConfiguration()
}

// pinPath is the file for a PIN that is not a credential.
func (s *setup) pinPath() string { return filepath.Join(s.folder, "pin") }

func (s *setup) placePIN(path string, pin []byte) error {
	return s.place(path, append(bytes.Clone(pin), '\n'), 0o400, s.service,
		"the PIN, for the user "+s.service.Name+" only")
}

// placeCredential encrypts the PIN for this machine's systemd, and checks that it can be decrypted. It does not bind
// the PIN to the TPM's PCRs: a firmware update would change them, and the PIN would be lost.
func (s *setup) placeCredential(ctx context.Context, name string, pin []byte) error {
	path := service.CredentialPath(name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	sealed, err := service.SystemdCreds(ctx, pin, "encrypt", "--name="+name, "--tpm2-pcrs=", "-", "-")
	if err != nil {
		return err
	}
	if err := files.Write(path, sealed, 0o600); err != nil {
		return err
	}
	again, err := service.SystemdCreds(ctx, nil, "decrypt", "--name="+name, path, "-")
	if err == nil && !bytes.Equal(again, pin) {
		err = errors.New("systemd-creds does not return the PIN that it encrypted")
	}
	if err != nil {
		return errors.Join(err, os.Remove(path))
	}
	s.made(path, "the PIN, encrypted to this machine")
	return nil
}

// choosePIN returns the given PIN, a typed one, or a random one for a new SoftHSM token.
func (s *setup) choosePIN(ctx context.Context, fresh bool) ([]byte, error) {
	switch {
	case s.PINFile != "":
		pin, err := s.ReadPIN(s.PINFile)
		if err != nil {
			return nil, fmt.Errorf("--pin-file: %w", err)
		}
		if len(pin) == 0 {
			return nil, errors.New("--pin-file: the file is empty")
		}
		return pin, nil
	case fresh:
		return randomPIN(), nil
	case s.Yes:
		return nil, errors.New("the token's user PIN is missing: give a file with the PIN: --pin-file FILE")
	}
	return s.askPIN(ctx)
}

func randomPIN() []byte {
	b := make([]byte, 16)
	rand.Read(b) // never fails (Go 1.24)
	return []byte(hex.EncodeToString(b))
}
