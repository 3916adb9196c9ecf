package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/attest"
	"github.com/attestd/attestd/appliance/config"
	"github.com/attestd/attestd/hsm"
	"github.com/attestd/attestd/hsm/sandbox"
	"github.com/attestd/attestd/hsm/worker"
)

// hsmStartTimeout bounds how long opening the tokens may take; a network HSM may need seconds.
const hsmStartTimeout = time.Minute

// TokenURIs returns the URIs of the tokens of all attestor keys, in order of use.
func TokenURIs(c *config.Config) ([]hsm.URI, error) {
	var uris []hsm.URI
	var failures []error
	for _, k := range c.AttestorKeys() {
		if n := len(k.TokenURIs()); n > hsm.MostTokens {
			return nil, named(k, fmt.Errorf("uris: has %d entries; the maximum is %d", n, hsm.MostTokens))
		}
	}
	seen := make(map[string]int)
	for i, text := range c.TokenURIs() {
		uri, err := hsm.ParseURI(text)
		uris = append(uris, uri)
		if err != nil {
			failures = append(failures, fmt.Errorf("%s: %w", c.TokenSetting(i), err))
			continue
		}
		if before, twice := seen[uri.String()]; twice {
			failures = append(failures, sameToken(c, i, before))
		}
		seen[uri.String()] = i
	}
	return uris, errors.Join(failures...)
}

// sameToken returns the error for two entries that name the same token.
func sameToken(c *config.Config, i, before int) error {
	if len(c.HSM.Keys) == 0 {
		return fmt.Errorf("%s: same token as entry %d; remove one of them", c.TokenSetting(i), before+1)
	}
	return fmt.Errorf("%s: same token and key as %s; remove one of them", c.TokenSetting(i), c.TokenSetting(before))
}

// parseTokens reads the URIs of a key's tokens.
func parseTokens(k config.AttestorKey) (uris []hsm.URI, err error) {
	for _, text := range k.TokenURIs() {
		uri, err := hsm.ParseURI(text)
		if err != nil {
			return nil, err
		}
		uris = append(uris, uri)
	}
	return uris, nil
}

// NamedKeys returns the names and states of the configured attestor keys, to which API keys may be bound. They have no
// Signer.
func NamedKeys(c *config.Config) (keys []attest.AttestorKey) {
	for _, k := range c.HSM.Keys {
		keys = append(keys, attest.AttestorKey{Name: k.Name, State: k.State})
	}
	return keys
}

// HSMOptions returns the options of a configured token.
func HSMOptions(c *config.Config, uri hsm.URI, logger *slog.Logger) hsm.Options {
	return hsm.Options{URI: uri, Sessions: c.HSM.Sessions, AllowExtractable: c.HSM.AllowExtractable, Logger: logger}
}

// sandboxRules returns the configured permissions of the HSM's library, and the paths that are always denied to it.
func sandboxRules(c *config.Config) sandbox.Rules {
	return sandbox.Rules{
		Paths: c.HSM.WorkerPaths, Network: sandbox.Network(c.HSM.WorkerNetwork),
		Protected: []string{c.DataDir, filepath.Dir(c.File()), filepath.Dir(c.Admin.Socket)},
	}
}

// tokensOpener returns a function that opens all tokens of a key. It starts one worker per token, which loads the
// library and opens the token and the key. Of several tokens, it uses those whose key has the expected address; nil
// means that none is expected.
func tokensOpener(c *config.Config, k config.AttestorKey, uris []hsm.URI, logins *worker.Logins,
	logger *slog.Logger) func(context.Context, *appliance.Address) (*hsm.Tokens, error) {
	places := make([]hsm.TokenSlot, len(uris))
	for i, uri := range uris {
		log := logger
		if len(uris) > 1 {
			log = logger.With("position", i+1, "token", uri.Token)
		}
		open := worker.Opener(worker.Options{HSM: HSMOptions(c, uri, nil), CallTimeout: c.HSMCallTimeout(),
			Logins: logins, Sandbox: sandboxRules(c), Logger: log})
		places[i] = hsm.TokenSlot{URI: uri, Open: func(ctx context.Context) (hsm.TokenSigner, error) {
			signer, err := open(ctx)
			if err != nil { // a nil *Signer in a TokenSigner is not nil
				return nil, err
			}
			return signer, nil
		}}
	}
	return func(ctx context.Context, expected *appliance.Address) (*hsm.Tokens, error) {
		ctx, cancel := context.WithTimeout(ctx, hsmStartTimeout)
		defer cancel()
		tokens, err := hsm.OpenTokens(ctx, places,
			hsm.TokensOptions{Expected: expected, CallTimeout: c.HSMCallTimeout(), Logger: logger})
		switch {
		case err != nil && len(uris) == 1:
			return nil, WithRemedy(err)
		case err != nil:
			return nil, fmt.Errorf("no token of %s can be used; run attestd doctor for the remedies:\n%w",
				cmp.Or(k.Name, "hsm.uris"), err)
		}
		return tokens, nil
	}
}

// WithRemedy adds a remedy to the error for a token or a key that does not exist.
func WithRemedy(err error) error {
	switch {
	case errors.Is(err, hsm.ErrNoToken):
		return fmt.Errorf(
			"%w\nthe PKCS#11 library finds no device or server of the HSM: check that it is up, and that the library's own configuration names it", err)
	case errors.Is(err, hsm.ErrOtherKeys):
		return fmt.Errorf("%w\ncorrect object or id in hsm.uri, then start attestd again: systemctl restart attestd",
			err)
	case errors.Is(err, hsm.ErrNotFound):
		return fmt.Errorf("%w\ncorrect hsm.uri; on a new appliance, create the token and the key: attestd hsm init",
			err)
	}
	return err
}
