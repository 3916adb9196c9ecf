package main

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/attestd/attestd/appliance/config"
	"github.com/attestd/attestd/appliance/daemon"
	"github.com/attestd/attestd/appliance/files"
)

func newConfig(a *app) *cobra.Command {
	return group("config", "The configuration: check, show",
		"The configuration is YAML. Each value can also be set in the environment as ATTESTD_SECTION_NAME,\nwhich overrides the file.",
		newConfigCheck(a), newConfigShow(a))
}

func newConfigCheck(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "check",
		Short: "Validate the configuration without starting the daemon",
		Long: `Validate the configuration without starting the daemon. The output lists all faults, each with its line or
environment variable. Checks that need the HSM or another machine are listed as not checked: 'attestd doctor'
does them.`,
		Example: "  attestd config check --config /etc/attestd/attestd.yaml",
		Args:    noArgs,
		RunE: func(_ *cobra.Command, _ []string) error {
			c, err := a.config(nil)
			if c == nil {
				return err
			}
			if unset := daemon.RequireSetup(&a.source, c); unset != nil {
				return errors.Join(unset, err)
			}
			references := errors.Join(daemon.CheckReferences(c), daemon.CheckCertificate(c), daemon.CheckPlainHTTP(c))
			if err := a.source.With(err, references); err != nil {
				return err
			}
			return a.printChecked(daemon.NotChecked(c))
		},
	}
}

func (a *app) printChecked(notChecked []string) error {
	path := a.source.Path()
	isThere := files.Exists(path)
	return a.print(struct {
		OK         bool     `json:"ok"`
		File       string   `json:"file"`
		FileExists bool     `json:"fileExists"` // if false, only the defaults and the environment were checked
		NotChecked []string `json:"notChecked"`
	}{true, path, isThere, notChecked}, func(w io.Writer) {
		if isThere {
			fmt.Fprintf(w, "The configuration %s is valid.\n", path)
		} else {
			fmt.Fprintf(w, "%s does not exist: the defaults and the environment were checked, and are valid.\n", path)
		}
		for _, line := range lines("Not checked: "+strings.Join(notChecked, ", ")+". 'attestd doctor' checks these.",
			room(w)) {
			fmt.Fprintln(w, line)
		}
	})
}

func newConfigShow(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "show",
		Short: "Print the effective values with their descriptions",
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
