// Command release writes the files that accompany the program in a release. They are the changelog in the packages'
// formats, the software bill of materials (CycloneDX 1.6), the provenance (SLSA), and the licenses of all linked modules
// and bundled npm packages. It also checks that all of these licenses are allowed. Its only inputs are the repository and
// the build, so the same commit gives the same bytes.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

const usage = `usage: release changelog -format debian|rpm -version V -date UNIX CHANGELOG.md
       release sbom -bundles FOLDERS -version V -date UNIX PROGRAM
       release provenance -version V -commit C -date UNIX PROGRAM FILES
       release notices -bundles FOLDERS PROGRAM
       release licenses -bundles FOLDERS PACKAGES`

func main() {
	if err := run(os.Stdout, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func run(w io.Writer, args []string) error {
	if len(args) == 0 {
		return errors.New(usage)
	}
	flags := flag.NewFlagSet(args[0], flag.ContinueOnError)
	format := flags.String("format", "debian", "debian or rpm")
	version := flags.String("version", "", "version of this release")
	folders := flags.String("bundles", "api/graphiql/dist,api/console/dist",
		"folders of what is bundled from npm and the program embeds, separated by commas")
	commit := flags.String("commit", "", "commit of this release")
	seconds := flags.Int64("date", 0, "date of this release, in seconds since 1970")
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	if flags.NArg() == 0 || flags.NArg() > 1 && args[0] != "provenance" {
		return errors.New(usage)
	}
	bundles := strings.Split(*folders, ",")
	file, date := flags.Arg(0), time.Unix(*seconds, 0).UTC()
	switch args[0] {
	case "changelog":
		return writeChangelog(w, file, *format, *version, date)
	case "sbom":
		return writeSBOM(context.Background(), w, file, bundles, *version, date)
	case "provenance":
		return writeProvenance(w, file, flags.Args()[1:], *version, *commit, date)
	case "licenses":
		return checkLicenses(context.Background(), w, file, bundles)
	case "notices":
		return writeNotices(context.Background(), w, file, bundles)
	}
	return errors.New(usage)
}
