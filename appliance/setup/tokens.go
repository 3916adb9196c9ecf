package setup

import (
	"context"
	"errors"
	"fmt"

	"github.com/attestd/attestd/appliance/daemon"
	"github.com/attestd/attestd/appliance/doctor"
	"github.com/attestd/attestd/appliance/service"
	"github.com/attestd/attestd/hsm"
)

// severalTokens reports whether the configuration has several tokens, or named keys. Setup then finds the tokens, their
// PINs and their keys, and makes none: a new key would differ from the others.
func (s *setup) severalTokens() bool {
	return len(s.config.TokenURIs()) > 1 || len(s.config.HSM.Keys) > 0
}

// adoptPINs checks that the PIN of each of several tokens is at its pin-source.
func (s *setup) adoptPINs(ctx context.Context) error {
	uris, err := daemon.TokenURIs(s.config)
	if err != nil {
		return err
	}
	if s.PINFile != "" {
		return errors.New(
			"--pin-file: the configuration has several tokens; put each PIN at its pin-source, and omit --pin-file")
	}
	running, err := s.daemonRuns(ctx)
	if err != nil || running {
		return err
	}
	var missing []error
	for i, uri := range uris {
		if uri.PINSource == "" {
			continue
		}
		if _, err := s.currentPIN(ctx, uri); err != nil {
			missing = append(missing, fmt.Errorf("token %d: no PIN at the pin-source of %s (%s): %w\n%s", i+1,
				s.config.TokenSetting(i), uri.PINSource, err, placeRemedy(uri)))
		}
	}
	return errors.Join(missing...)
}

// placeRemedy is the way to put a PIN at the pin-source of a URI.
func placeRemedy(uri hsm.URI) string {
	if name := uri.Credential(); name != "" {
		return fmt.Sprintf("write the PIN to a file, then run: systemd-creds encrypt --name=%s FILE %s", name,
			service.CredentialPath(name))
	}
	return "put the PIN there, readable for the service's user only"
}

// findKeys learns the addresses of the keys in several tokens. For the default key, one token that works is enough;
// doctor reports the others.
func (s *setup) findKeys(ctx context.Context) error {
	uris, err := daemon.TokenURIs(s.config)
	if err != nil {
		return err
	}
	var failures []error
	standard := s.config.DefaultKey()
	for i, uri := range uris {
		key, _ := s.config.KeyOfToken(i)
		found, err := s.inspectToken(ctx, i+1)
		switch {
		case err != nil:
			failures = append(failures, fmt.Errorf("token %d, %s: %w", i+1, uri.Token, err))
			continue
		case key.Name != "":
			if err := daemon.CheckSigner(key, *found.Key.Address, nil); err != nil {
				return err
			}
		case s.result.Address != nil && *s.result.Address != *found.Key.Address:
			return fmt.Errorf(
				"the tokens of hsm.uris have different keys: token %d has %s, an earlier one has %s: import the key into all tokens with the HSM vendor's tools",
				i+1, found.Key.Address, s.result.Address)
		}
		if key.Name == standard.Name {
			s.result.Address = found.Key.Address
		}
		s.say("kept  token %d, %q, and its key %q  (address %s)", i+1, found.Token.Label, found.Key.Label,
			found.Key.Address)
	}
	if s.result.Address == nil {
		return errors.Join(failures...)
	}
	for _, err := range failures {
		s.say("not usable at the moment: %v", err)
	}
	return nil
}

// inspectToken inspects the token at a position, counted from 1. It returns an error if the token's key is not found.
func (s *setup) inspectToken(ctx context.Context, position int) (doctor.Inspection, error) {
	found, err := s.Inspect(ctx, position)
	if err == nil && (!found.Ready || found.Key.Address == nil) {
		err = errors.New(found.LastError)
	}
	if found.WrongPIN {
		err = &PINRefused{found.LastError}
	}
	return found, err
}
