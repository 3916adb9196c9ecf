package main

import (
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

// newMan is for the packages, which install a page for each command.
func newMan(*app) *cobra.Command {
	return &cobra.Command{
		Use:    "man FOLDER",
		Short:  "Write a manual page for each command",
		Long:   "Write a manual page (man, section 1) for each command into the folder. Their date is $SOURCE_DATE_EPOCH, if set.",
		Hidden: true,
		Args:   oneArg("folder"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := os.MkdirAll(args[0], 0o755); err != nil {
				return err
			}
			root := cmd.Root()
			root.DisableAutoGenTag = true // it is the date of the build, again
			return doc.GenManTree(root, &doc.GenManHeader{Section: "1", Source: "attestd " + version(), Manual: "attestd"}, args[0])
		},
	}
}
