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

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/files"
	"github.com/attestd/attestd/store/bolt"
	"github.com/attestd/attestd/store/highwater"
)

// RestoreOptions say what Restore may move aside.
type RestoreOptions struct {
	Force        bool // keys and journal that are in place, if the backup holds all of the journal's records
	DiscardNewer bool // with Force: also a journal with records that the backup lacks
	// Auditing is called before each of the two times that the backup may be read through, and returns what the audit reports its
	// progress to, and what to call when it has ended. Nil means that nobody is told.
	Auditing func() (progress func(done, total int64), ended func())
	// Published is the newest checkpoint that was published, where it was kept elsewhere: with it, it is known without a high-water mark
	// what the backup must hold for its log to stay what it is. Nil means that none is known.
	Published []byte
	By        string // who restores

	Identities []age.Identity // that open the backup's log key; none where there are none
	// NewLogKey has the journal go on as another log with a new log key. A backup without a log key, which data_dir has not either, does so
	// in any case.
	NewLogKey bool
}

// Restored is what Restore has done.
type Restored struct {
	Manifest
	MovedAside []string `json:"movedAside,omitempty"` // paths
	Log        *NewLog  `json:"log,omitempty"`        // as which the journal goes on; nil where its log stays what it is
	Lost       string   `json:"-"`                    // which records what was moved aside has and the backup lacks; empty for none
}

// NewLog is the log as which a restored journal goes on.
type NewLog struct {
	Origin      string `json:"origin"`
	VerifierKey string `json:"verifierKey"` // C2SP signed-note
	Why         string `json:"why"`         // it could not stay what it was
}

// InPlaceError is returned by Restore where there are keys or a journal that it may not move aside.
type InPlaceError struct {
	Dir  string
	Lost string // which of the journal's records the backup lacks; empty for none
}

func (e *InPlaceError) Error() string {
	if e.Lost == "" {
		return fmt.Sprintf("there is a journal in %s already, and the backup holds all of its records", e.Dir)
	}
	return fmt.Sprintf("there is a journal in %s already, and %s", e.Dir, e.Lost)
}

// Restore audits a backup, which is read once, and puts its files into dir, which it makes if it is missing, as dir's owner. The daemon must not be
// running. What is in dir is moved aside there, as far as the options allow, and never removed.
//
// Errors: *InPlaceError; what is wrong with the backup; those of the file system.
func Restore(ctx context.Context, backup io.Reader, dir string, o RestoreOptions) (done Restored, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return done, fmt.Errorf("data_dir: %w", err)
	}
	// Root does it as the owner of dir, in which anything may have been planted.
	err = asOwner(dir, func() error {
		done, err = o.restore(ctx, backup, dir)
		return err
	})
	return done, err
}

func (o RestoreOptions) restore(ctx context.Context, backup io.Reader, dir string) (done Restored, err error) {
	scratch, err := os.MkdirTemp(dir, ".restore-*") // on the same file system, so that a rename will do
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
		err = errors.New("what is in place is not what the backup holds")
	}
	return done, err
}

func (o RestoreOptions) audit(ctx context.Context, dir string, m Manifest, earlier []byte) (appliance.AuditReport, error) {
	options := AuditOptions{Earlier: earlier}
	if o.Auditing != nil {
		progress, ended := o.Auditing()
		defer ended()
		options.Progress = progress
	}
	return Audit(ctx, dir, m, options)
}

// mayReplace returns an error unless what is in dir may be moved aside, and which records are lost with it.
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

// lost says which records of the journal in place the backup lacks; "" means none.
func (o RestoreOptions) lost(ctx context.Context, dir, scratch string, m Manifest) (string, error) {
	in, err := ReadHead(ctx, dir)
	if errors.Is(err, bolt.ErrInUse) {
		return "", err
	}
	if err != nil {
		return fmt.Sprintf("what it holds cannot be read (%v)", err), nil
	}
	newest, err := newestAttestation(ctx, dir)
	if err != nil { // what is damaged may have been one
		newest = in.Tree.N - 1
	}
	if !sameLog(in, m) { // else it went on from another one, and its first leaf need not be read
		if in, err = beforeContinued(dir, m, in, newest); err != nil {
			return fmt.Sprintf("what it holds cannot be read (%v)", err), nil
		}
	}
	if newest < 0 || newest < m.Records && beginsWith(ctx, dir, m) {
		return "", nil // events are not answered to anybody
	}
	if in.Tree.N > m.Records && sameLog(in, m) {
		return fmt.Sprintf("the journal in place has %d records, the backup of %s has %d", in.Tree.N, m.Time.UTC().Format(time.DateTime+"Z"), m.Records), nil
	}
	// The audit with an earlier checkpoint proves that the backup goes on where the journal in place ends.
	report, err := o.audit(ctx, scratch, m, in.Checkpoint)
	switch {
	case ctx.Err() != nil:
		return "", ctx.Err()
	case err == nil && report.OK():
		return "", nil
	}
	// An error, too, says that the checkpoint is not of this log: the backup itself has passed its audit.
	return fmt.Sprintf("the backup does not go on from the %d records of the journal in place: it is another journal, or one that parted from it", in.Tree.N), nil
}

// newestAttestation is the index of the newest attestation of the journal in dir; -1 where there is none.
func newestAttestation(ctx context.Context, dir string) (index int64, err error) {
	store, _, err := OpenStore(dir)
	if err != nil {
		return 0, err
	}
	newest, err := store.Journal().List(ctx, appliance.JournalQuery{Limit: 1, AttestationsOnly: true})
	if index = -1; len(newest) > 0 {
		index = newest[0].Index
	}
	return index, errors.Join(err, store.Close())
}

// beginsWith says whether the journal in dir is of the backup's log, and begins with its records.
func beginsWith(ctx context.Context, dir string, m Manifest) bool {
	store, key, err := OpenStore(dir)
	if err != nil {
		return false
	}
	begins, err := highwater.Extends(ctx, store.Journal(), key, []byte(m.Checkpoint))
	return errors.Join(err, store.Close()) == nil && begins
}

// Replace puts what is in scratch into dir. What is there keeps a second name, so that at no moment, not even in a
// power cut, a daemon that starts finds nothing and begins a new journal; and with one file new and the other old it
// refuses to start, or brings the other to it. The same goes for a write-ahead log that was not removed yet.
func Replace(dir, scratch string, now time.Time) (aside []string, err error) {
	if err := giveAway(dir, scratch); err != nil {
		return nil, err
	}
	_ = settle(dir) // what cannot be brought into the journal is moved aside with it
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
	for _, path := range retired { // after the journal that goes on from it
		names = append(names, filepath.Base(path))
	}
	for _, name := range names {
		if from := filepath.Join(scratch, name); err == nil && files.Exists(from) {
			err = os.Rename(from, filepath.Join(dir, name))
		}
	}
	for _, name := range []string{wal, newest} { // of the journal that was moved aside
		if err == nil && files.Exists(filepath.Join(dir, name)) {
			err = os.Remove(filepath.Join(dir, name))
		}
	}
	return aside, errors.Join(err, files.SyncFolder(dir))
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
