package archive

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/attestd/attestd/appliance/files"
)

// Replace puts what is in scratch into dir. What is there keeps a second name, so that at no moment, not even in a
// power cut, a daemon that starts finds nothing and begins a new journal; and with one file new and the other old it
// refuses to start.
func Replace(dir, scratch string, now time.Time) (aside []string, err error) {
	if err := giveAway(dir, scratch); err != nil {
		return nil, err
	}
	suffix := freeSuffix(dir, ".before-restore-"+now.UTC().Format("20060102T150405Z"))
	for _, name := range []string{StoreFile, LogKeyFile} {
		from := filepath.Join(dir, name)
		if !files.Exists(from) {
			continue
		}
		if err := os.Link(from, from+suffix); err != nil {
			return aside, err
		}
		aside = append(aside, from+suffix)
	}
	for _, name := range []string{StoreFile, LogKeyFile} {
		if err := os.Rename(filepath.Join(scratch, name), filepath.Join(dir, name)); err != nil {
			return aside, err
		}
	}
	return aside, files.SyncFolder(dir)
}

// freeSuffix returns the suffix, with a number where names with it are taken.
func freeSuffix(dir, suffix string) string {
	free := suffix
	for n := 2; files.Exists(filepath.Join(dir, StoreFile+free)) || files.Exists(filepath.Join(dir, LogKeyFile+free)); n++ {
		free = fmt.Sprintf("%s-%d", suffix, n)
	}
	return free
}

// giveAway is HandOver to dir's owner, for files that are in a folder below it.
func giveAway(dir, scratch string) error {
	below, err := filepath.Rel(dir, scratch)
	if err != nil {
		return err
	}
	return files.HandOver(dir, filepath.Join(below, StoreFile), filepath.Join(below, LogKeyFile))
}
