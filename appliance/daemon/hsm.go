package daemon

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/attestd/attestd/appliance/config"
	"github.com/attestd/attestd/hsm"
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

// WithRemedy adds what the operator can do where the token or its key is not there.
func WithRemedy(err error) error {
	if errors.Is(err, hsm.ErrNotFound) {
		return fmt.Errorf("%w\n'attestd hsm init' makes the token and the key that hsm.uri names", err)
	}
	return err
}
