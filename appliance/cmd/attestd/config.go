package main

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/attestd/attestd/appliance/config"
	"github.com/attestd/attestd/appliance/daemon"
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
			if err := errors.Join(daemon.RequireSetup(&a.source, c), daemon.CheckReferences(c), daemon.CheckPlainHTTP(c)); err != nil {
				return err
			}
			return a.print(map[string]bool{"ok": true}, func(w io.Writer) { fmt.Fprintln(w, "The configuration is valid.") })
		},
	}
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
