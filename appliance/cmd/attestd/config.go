package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/attestd/attestd/appliance/config"
	"github.com/attestd/attestd/appliance/files"
	"github.com/attestd/attestd/hsm"
)

func newConfig(a *app) *cobra.Command {
	return group("config", "The configuration: check, show",
		"The configuration is YAML; each value can also be set as ATTESTD_SECTION_NAME in the environment,\nwhich goes over the file.",
		newConfigCheck(a), newConfigShow(a))
}

func newConfigCheck(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "check",
		Short:   "Validate the configuration without starting anything",
		Example: "  attestd config check --config /etc/attestd/attestd.yaml",
		Args:    noArgs,
		RunE: func(_ *cobra.Command, _ []string) error {
			c, err := a.config(nil)
			if err != nil {
				return err
			}
			if err := errors.Join(requireSetup(&a.source, c), checkReferences(c)); err != nil {
				return err
			}
			return a.print(map[string]bool{"ok": true}, func(w io.Writer) { fmt.Fprintln(w, "The configuration is valid.") })
		},
	}
}

// requireSetup returns an error on a machine that nobody has set up: there is no configuration, the environment sets no
// hsm.uri, and the PIN that its default names is not there either.
func requireSetup(from *config.Source, c *config.Config) error {
	path := from.Path()
	if _, set := from.Lookup(config.EnvName("hsm.uri")); set || files.Exists(path) {
		return nil
	}
	uri, err := hsm.ParseURI(c.HSM.URI)
	if err != nil {
		return fmt.Errorf("hsm.uri: %w", err)
	}
	if files.Exists(strings.TrimPrefix(uri.PINSource, "file:")) {
		return nil
	}
	return fmt.Errorf("no configuration yet: run 'attestd setup', which writes %s", path)
}

// checkReferences checks what the configuration points at, as far as that can be done without the HSM.
func checkReferences(c *config.Config) error {
	if _, err := hsm.ParseURI(c.HSM.URI); err != nil {
		return fmt.Errorf("hsm.uri: %w", err)
	}
	for name, path := range map[string]string{"cert": c.Server.TLS.Cert, "key": c.Server.TLS.Key, "client_ca": c.Server.TLS.ClientCA} {
		if path == "" {
			continue
		}
		if _, err := os.Stat(path); err != nil {
			return fmt.Errorf("server.tls.%s: %w", name, err)
		}
	}
	_, err := readScreening(c)
	return errors.Join(err, checkUpstreamReferences(c))
}

func newConfigShow(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "show",
		Short: "Print the effective values, with what each is for",
		Example: `  attestd config show
  attestd config show --output json
  ATTESTD_SERVER_LISTEN=0.0.0.0:443 attestd config show`,
		Args: noArgs,
		RunE: func(_ *cobra.Command, _ []string) error {
			c, err := a.config(nil)
			if err != nil {
				return err
			}
			values := c.Values()
			return a.print(config.Nested(values), func(w io.Writer) { config.WriteYAML(w, values) })
		},
	}
}
