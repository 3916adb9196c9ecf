package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/config"
	"github.com/attestd/attestd/hsm"
	"github.com/attestd/attestd/hsm/worker"
)

// hsmStartTimeout bounds how long opening the tokens may take; a network HSM may need seconds.
const hsmStartTimeout = time.Minute

// TokenURIs are the URIs of the configured tokens, in the order in which they are used.
func TokenURIs(c *config.Config) ([]hsm.URI, error) {
	texts := c.TokenURIs()
	if len(texts) > hsm.MostTokens {
		return nil, fmt.Errorf("hsm.uris: has %d entries, and may have %d", len(texts), hsm.MostTokens)
	}
	uris := make([]hsm.URI, len(texts))
	seen := make(map[string]int)
	var failures []error
	for i, text := range texts {
		uri, err := hsm.ParseURI(text)
		if err != nil {
			failures = append(failures, fmt.Errorf("%s: %w", c.TokenSetting(i), err))
			continue
		}
		if before, twice := seen[uri.String()]; twice {
			failures = append(failures, fmt.Errorf("%s: is the same token as entry %d", c.TokenSetting(i), before+1))
		}
		uris[i], seen[uri.String()] = uri, i
	}
	return uris, errors.Join(failures...)
}

// HSMOptions are those of one of the configured tokens.
func HSMOptions(c *config.Config, uri hsm.URI, logger *slog.Logger) hsm.Options {
	return hsm.Options{URI: uri, Sessions: c.HSM.Sessions, AllowExtractable: c.HSM.AllowExtractable, Logger: logger}
}

// OpenHSM starts for each token the worker that holds its library, and opens the token and the key in it. Of several tokens,
// those are used whose key has the expected address; nil means that nothing says which.
func OpenHSM(ctx context.Context, c *config.Config, expected *appliance.Address, logger *slog.Logger) (*hsm.Tokens, error) {
	uris, err := TokenURIs(c)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, hsmStartTimeout)
	defer cancel()
	places := make([]hsm.Place, len(uris))
	for i, uri := range uris {
		log := logger
		if len(uris) > 1 {
			log = logger.With("position", i+1, "token", uri.Token)
		}
		open := worker.Opener(worker.Options{HSM: HSMOptions(c, uri, nil), CallTimeout: c.HSMCallTimeout(), Logger: log})
		places[i] = hsm.Place{URI: uri, Open: func(ctx context.Context) (hsm.TokenSigner, error) {
			signer, err := open(ctx)
			if err != nil { // a nil *Signer would be a TokenSigner that is not nil
				return nil, err
			}
			return signer, nil
		}}
	}
	tokens, err := hsm.OpenTokens(ctx, places, hsm.TokensOptions{Expected: expected, CallTimeout: c.HSMCallTimeout(), Logger: logger})
	switch {
	case err != nil && len(uris) == 1:
		return nil, WithRemedy(err)
	case err != nil:
		return nil, fmt.Errorf("no token of hsm.uris can be used; 'attestd doctor' says how to mend each:\n%w", err)
	}
	return tokens, nil
}

// WithRemedy adds what the operator can do where the token or its key is not there.
func WithRemedy(err error) error {
	switch {
	case errors.Is(err, hsm.ErrNoToken):
		return fmt.Errorf("%w\nthe library finds no device and no server of the HSM: see that they are up and that its own configuration names them", err)
	case errors.Is(err, hsm.ErrNotFound):
		return fmt.Errorf("%w\n'attestd hsm init' makes the token and the key that hsm.uri names", err)
	}
	return err
}
