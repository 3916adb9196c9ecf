package main

import (
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"
)

// release is set by the Makefile from git describe.
var release = ""

// version returns the release, or the commit as the Go toolchain recorded it.
func version() string {
	if release != "" {
		return release
	}
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "" {
		return "devel"
	}
	return strings.Trim(info.Main.Version, "()")
}

func newVersion(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Print the version",
		Example: "  attestd version --output json",
		Args:    noArgs,
		RunE: func(_ *cobra.Command, _ []string) error {
			v := map[string]string{"version": version(), "go": runtime.Version(),
				"platform": runtime.GOOS + "/" + runtime.GOARCH}
			return a.print(v, func(w io.Writer) {
				fmt.Fprintf(w, "attestd %s (%s, %s)\n", v["version"], v["go"], v["platform"])
			})
		},
	}
}
