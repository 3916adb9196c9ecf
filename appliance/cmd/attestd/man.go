package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/cpuguy83/go-md2man/v2/md2man"
	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"github.com/attestd/attestd/appliance/config"
)

// newMan is used by the packages, which install a page for each command and one for the configuration.
func newMan(*app) *cobra.Command {
	return &cobra.Command{
		Use:   "man FOLDER",
		Short: "Write the manual pages",
		Long: `Write a manual page for each command (section 1) and for the configuration (attestd.yaml, section 5) into the folder.
Their date is $SOURCE_DATE_EPOCH, if it is set.`,
		Hidden: true,
		Args:   oneArg("folder"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := os.MkdirAll(args[0], 0o755); err != nil {
				return err
			}
			date, err := dateOfBuild()
			if err != nil {
				return err
			}
			root := cmd.Root()
			root.DisableAutoGenTag = true // it would add the date of the build to each page
			header := doc.GenManHeader{Section: "1", Source: "attestd " + version(), Manual: "attestd", Date: &date}
			if err := doc.GenManTree(root, &header, args[0]); err != nil {
				return err
			}
			title := fmt.Sprintf("%% \"ATTESTD.YAML\" \"5\" %q %q %q", date.Format("Jan 2006"), header.Source,
				header.Manual)
			return os.WriteFile(filepath.Join(args[0], "attestd.yaml.5"), md2man.Render(config.Manual(title)), 0o644)
		},
	}
}

// dateOfBuild is $SOURCE_DATE_EPOCH (reproducible-builds.org), or now.
func dateOfBuild() (time.Time, error) {
	epoch, set := os.LookupEnv("SOURCE_DATE_EPOCH")
	if !set {
		return time.Now(), nil
	}
	seconds, err := strconv.ParseInt(epoch, 10, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("SOURCE_DATE_EPOCH is %q; it must be a number of seconds", epoch)
	}
	return time.Unix(seconds, 0).UTC(), nil
}
