package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/attestd/attestd/appliance/config"
	"github.com/attestd/attestd/hsm"
	"github.com/attestd/attestd/hsm/worker"
)

// hsmStartTimeout bounds how long opening the token may take; a network HSM may need seconds.
const hsmStartTimeout = time.Minute

// HSMOptions are those of the configured HSM.
func HSMOptions(c *config.Config, logger *slog.Logger) (hsm.Options, error) {
	uri, err := hsm.ParseURI(c.HSM.URI)
	if err != nil {
		return hsm.Options{}, fmt.Errorf("hsm.uri: %w", err)
	}
	return hsm.Options{URI: uri, Sessions: c.HSM.Sessions, AllowExtractable: c.HSM.AllowExtractable, Logger: logger}, nil
}

// OpenHSM starts the worker that holds the HSM's library, and opens the token and the key in it.
func OpenHSM(ctx context.Context, c *config.Config, logger *slog.Logger) (*worker.Signer, error) {
	o, err := HSMOptions(c, logger)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, hsmStartTimeout)
	defer cancel()
	signer, err := worker.Open(ctx, worker.Options{HSM: o, CallTimeout: c.HSMCallTimeout(), Logger: logger})
	if err != nil {
		return nil, WithRemedy(err)
	}
	return signer, nil
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
