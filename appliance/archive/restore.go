package archive

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"filippo.io/age"

	"github.com/attestd/attestd/appliance/audit"
	"github.com/attestd/attestd/appliance/files"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/store/bolt"
	"github.com/attestd/attestd/store/highwater"
)

// RestoreOptions configure Restore.
type RestoreOptions struct {
	Force        bool // replace existing files if the backup has all records of their journal
	DiscardNewer bool // with Force: also replace a journal with records that the backup lacks
	// Auditing, if not nil, is called before each of up to two audits. It returns the function for progress and the one
	// to call at the end.
	Auditing func() (progress func(done, total int64), ended func())
	// Published is the newest published checkpoint, if it was kept elsewhere. Without a high-water mark, it decides
	// whether the log keeps its identity. It may be nil.
	Published []byte
	By        string // who restores

	Identities []age.Identity // that decrypt the backup's log key
	// NewLogKey continues the journal as another log with an independent key. This also happens if neither the backup
	// nor data_dir has the log key.
	NewLogKey bool
	HSM       journal.LogSigner // the key that journal.key names; nil if the log key is a file
}

// Restored is the result of Restore.
type Restored struct {
	Manifest
	MovedAside []string `json:"movedAside,omitempty"` // paths
	// the log that continues the journal; nil if the log keeps its identity
	Log *NewLog `json:"log,omitempty"`
	// records of the replaced journal that the backup lacks; empty for none
	Lost string `json:"-"`
}

// NewLog is the log that continues a restored journal.
type NewLog struct {
	Origin      string `json:"origin"`
	VerifierKey string `json:"verifierKey"` // C2SP signed-note
	Why         string `json:"why"`         // why the log could not keep its identity
}

// InPlaceError is returned by Restore for existing files that it may not replace.
type InPlaceError struct {
	Dir  string
	Lost string // records of the journal that the backup lacks; empty for none
}

func (e *InPlaceError) Error() string {
	if e.Lost == "" {
		return fmt.Sprintf("%s already has a journal, and the backup has all of its records", e.Dir)
	}
	return fmt.Sprintf("%s already has a journal, and %s", e.Dir, e.Lost)
}

// Restore audits a backup and puts its files into dir, as the owner of dir. It creates dir if necessary and reads the
// backup once. The daemon must not be running. Existing files are renamed within dir if the options allow it, and never
// removed.
//
// Errors: *InPlaceError; faults of the backup; errors of the file system.
func Restore(ctx context.Context, backup io.Reader, dir string, o RestoreOptions) (done Restored, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return done, fmt.Errorf("data_dir: %w", err)
	}
	// Root acts as the owner of dir, who may have planted links there.
	err = asOwner(dir, func() error {
		done, err = o.restore(ctx, backup, dir)
		return err
	})
	return done, err
}

func (o RestoreOptions) restore(ctx context.Context, backup io.Reader, dir string) (done Restored, err error) {
	scratch, err := os.MkdirTemp(dir, ".restore-*") // on the same file system, for renames
	if err != nil {
		return done, fmt.Errorf("data_dir: %w", err)
	}
	defer func() { _ = os.RemoveAll(scratch) }()
	if done.Manifest, err = Read(reading{ctx, backup}, scratch); err != nil {
		return done, err
	}
	if _, err := o.audit(ctx, scratch, done.Manifest, nil); err != nil {
		return done, err
	}
	if err := o.unseal(dir, scratch, done.Manifest); err != nil {
		return done, err
	}
	if done.Lost, err = o.mayReplace(ctx, dir, scratch, done.Manifest); err != nil {
		return done, err
	}
	checkpoint, err := o.identify(ctx, dir, scratch, &done)
	if err != nil {
		return done, err
	}
	if done.MovedAside, err = Replace(dir, scratch, time.Now()); err != nil {
		return done, err
	}
	now, err := ReadHead(ctx, dir)
	if err == nil && string(now.Checkpoint) != string(checkpoint) {
		err = errors.New("the restored journal differs from the backup")
	}
	return done, err
}

func (o RestoreOptions) audit(ctx context.Context, dir string, m Manifest,
	earlier []byte) (audit.Report, error) {
	options := AuditOptions{Earlier: earlier}
	if o.Auditing != nil {
		progress, ended := o.Auditing()
		defer ended()
		options.Progress = progress
	}
	return Audit(ctx, dir, m, options)
}

// mayReplace returns an error unless the files in dir may be replaced, and the records that are lost with them.
func (o RestoreOptions) mayReplace(ctx context.Context, dir, scratch string, m Manifest) (lost string, err error) {
	if !files.Exists(filepath.Join(dir, StoreFile)) && !files.Exists(filepath.Join(dir, LogKeyFile)) {
		return "", nil
	}
	lost, err = o.lost(ctx, dir, scratch, m)
	if err == nil && (!o.Force || lost != "" && !o.DiscardNewer) {
		err = &InPlaceError{dir, lost}
	}
	return lost, err
}

// lost describes the records of the existing journal that the backup lacks; "" means none.
func (o RestoreOptions) lost(ctx context.Context, dir, scratch string, m Manifest) (string, error) {
	in, err := ReadHead(ctx, dir)
	if errors.Is(err, bolt.ErrInUse) {
		return "", err
	}
	if err != nil {
		return fmt.Sprintf("that journal cannot be read (%v)", err), nil
	}
	newest, err := newestAttestation(ctx, dir)
	if err != nil { // a damaged journal may have had some
		newest = in.Tree.N - 1
	}
	if !sameLog(in, m) { // otherwise a continued log, whose first leaf need not be read
		if in, err = beforeContinued(dir, m, in, newest); err != nil {
			return fmt.Sprintf("that journal cannot be read (%v)", err), nil
		}
	}
	if newest < 0 || newest < m.Records && beginsWith(ctx, dir, m) {
		return "", nil // only attestations are answered to clients
	}
	if in.Tree.N > m.Records && sameLog(in, m) {
		return fmt.Sprintf("that journal has %d records, the backup of %s has %d", in.Tree.N,
			m.Time.UTC().Format(time.DateTime+"Z"), m.Records), nil
	}
	// The audit with an earlier checkpoint proves that the backup contains the existing journal.
	report, err := o.audit(ctx, scratch, m, in.Checkpoint)
	switch {
	case ctx.Err() != nil:
		return "", ctx.Err()
	case err == nil && report.OK():
		return "", nil
	}
	// An error means another log, because the backup itself has passed its audit.
	return fmt.Sprintf("the backup does not continue the %d records of that journal: it belongs to another journal "+
		"or to a fork of it", in.Tree.N), nil
}

// newestAttestation returns the index of the newest attestation in dir, -1 if there is none.
func newestAttestation(ctx context.Context, dir string) (index int64, err error) {
	store, _, err := OpenStore(dir)
	if err != nil {
		return 0, err
	}
	newest, err := store.Journal().List(ctx, journal.Query{Limit: 1, AttestationsOnly: true})
	if index = -1; len(newest) > 0 {
		index = newest[0].Index
	}
	return index, errors.Join(err, store.Close())
}

// beginsWith reports whether the journal in dir belongs to the backup's log and begins with its records.
func beginsWith(ctx context.Context, dir string, m Manifest) bool {
	store, key, err := OpenStore(dir)
	if err != nil {
		return false
	}
	begins, err := highwater.Extends(ctx, store.Journal(), key, []byte(m.Checkpoint))
	return errors.Join(err, store.Close()) == nil && begins
}

// Replace moves the files in scratch into dir. Existing files keep a second name, so that a daemon that starts at any
// moment, even after a power cut, finds a journal and does not begin a new one. If one file is new and the other old,
// the daemon refuses to start or updates the other. The same holds for an old write-ahead log.
func Replace(dir, scratch string, now time.Time) (aside []string, err error) {
	if err := giveAway(dir, scratch); err != nil {
		return nil, err
	}
	_ = flushLog(dir) // on failure, the write-ahead log is moved aside with the journal
	wal := bolt.WALPath(StoreFile)
	newest := highwater.NewestPath(highwater.FileName)
	names := []string{StoreFile, wal, LogKeyFile, highwater.FileName, newest}
	suffix := freeSuffix(dir, ".before-restore-"+now.UTC().Format("20060102T150405Z"))
	for _, name := range names {
		from := filepath.Join(dir, name)
		if !files.Exists(from) {
			continue
		}
		if err := os.Link(from, from+suffix); err != nil {
			return aside, err
		}
		aside = append(aside, from+suffix)
	}
	retired, err := filepath.Glob(filepath.Join(scratch, LogKeyFile+".retired-*"))
	for _, path := range retired { // after the journal that continues it
		names = append(names, filepath.Base(path))
	}
	for _, name := range names {
		if from := filepath.Join(scratch, name); err == nil && files.Exists(from) {
			err = os.Rename(from, filepath.Join(dir, name))
		}
	}
	for _, name := range []string{wal, newest} { // of the journal moved aside
		if err == nil && files.Exists(filepath.Join(dir, name)) {
			err = os.Remove(filepath.Join(dir, name))
		}
	}
	return aside, errors.Join(err, files.SyncFolder(dir))
}

// freeSuffix returns the suffix, with a number if such names exist.
func freeSuffix(dir, suffix string) string {
	free := suffix
	for n := 2; files.Exists(filepath.Join(dir, StoreFile+free)) ||
		files.Exists(filepath.Join(dir, LogKeyFile+free)); n++ {
		free = fmt.Sprintf("%s-%d", suffix, n)
	}
	return free
}

// giveAway gives files in a folder below dir to the owner of dir.
func giveAway(dir, scratch string) error {
	below, err := filepath.Rel(dir, scratch)
	if err != nil {
		return err
	}
	return files.HandOver(dir, filepath.Join(below, StoreFile), filepath.Join(below, LogKeyFile))
}
