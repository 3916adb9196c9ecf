package archive

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/attestd/attestd/appliance/audit"
	"github.com/attestd/attestd/appliance/files"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/appliance/service"
	"github.com/attestd/attestd/store/bolt"
)

// OpenStore opens the store in a folder, which must exist.
func OpenStore(dir string) (store *bolt.Store, key journal.LogKey, err error) {
	err = asOwner(dir, func() error {
		if key, err = readLogKey(dir); err != nil {
			return err
		}
		store, key, err = followed(dir, key, func(key journal.LogKey) (*bolt.Store, error) {
			return bolt.Open(filepath.Join(dir, StoreFile), bolt.Options{Verifier: key.Verifier, ReadOnly: true})
		})
		return err
	})
	return store, key, err
}

// openPublic opens the journal in a folder read-only, without its log key.
func openPublic(dir string, key journal.LogKey) (store *bolt.Store, err error) {
	err = asOwner(dir, func() error {
		store, err = bolt.Open(filepath.Join(dir, StoreFile), bolt.Options{Verifier: key.Verifier, ReadOnly: true})
		return err
	})
	return store, err
}

// open opens an unpacked journal.
func (m Manifest) open(dir string) (*bolt.Store, error) {
	key, err := m.logKey()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", manifestName, err)
	}
	return openPublic(dir, key)
}

// FlushLog moves the records that a crash has left in the write-ahead log into attestd.db. No daemon may use the
// folder.
func FlushLog(dir string) error {
	return asOwner(dir, func() error { return flushLog(dir) })
}

func flushLog(dir string) error {
	path := filepath.Join(dir, StoreFile)
	if !files.Exists(bolt.WALPath(path)) {
		return nil
	}
	key, err := readLogKey(dir)
	if err != nil {
		return err
	}
	_, _, err = followed(dir, key, func(key journal.LogKey) (*bolt.Store, error) {
		return nil, bolt.FlushWAL(path, key.Verifier)
	})
	return err
}

// asOwner runs a function as the owner of a folder if the process is root: see service.User.Do.
func asOwner(dir string, do func() error) error {
	owner, err := service.UserOf(dir)
	if err != nil {
		return err
	}
	return owner.Do(do)
}

// ReadLogKey reads log.key in a folder.
func ReadLogKey(dir string) (key journal.LogKey, err error) {
	err = asOwner(dir, func() error {
		key, err = readLogKey(dir)
		return err
	})
	return key, err
}

func readLogKey(dir string) (journal.LogKey, error) {
	path := filepath.Join(dir, LogKeyFile)
	secret, err := os.ReadFile(path)
	if err != nil {
		return journal.LogKey{}, err
	}
	key, err := journal.ParseLogKey(string(secret))
	if err != nil {
		err = fmt.Errorf("%s: %w", path, err)
	}
	return key, err
}

// Head is the state of a journal.
type Head struct {
	Tree       tlog.Tree
	Checkpoint []byte // signed checkpoint of that tree
}

// ReadHead opens the store in a folder and returns the state of its journal.
func ReadHead(ctx context.Context, dir string) (h Head, err error) {
	store, key, err := OpenStore(dir)
	if err != nil {
		return h, err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	if h.Checkpoint, err = store.Journal().Checkpoint(ctx); err != nil {
		return h, err
	}
	h.Tree, err = journal.OpenCheckpoint(h.Checkpoint, key.Verifier)
	return h, err
}

// check unpacks an archive in a temporary folder beside it and audits the content.
func check(ctx context.Context, name, dir string, o AuditOptions) (m Manifest, err error) {
	scratch, err := os.MkdirTemp(dir, ".attestd-check-*")
	if err != nil {
		return m, err
	}
	defer func() { _ = os.RemoveAll(scratch) }()
	f, err := os.Open(name)
	if err != nil {
		return m, err
	}
	defer f.Close()
	if m, err = Read(reading{ctx, f}, scratch); err != nil {
		return m, err
	}
	_, err = Audit(ctx, scratch, m, o)
	return m, err
}

// AuditOptions configure Audit.
type AuditOptions struct {
	SkipRecords bool                    // see audit.Options
	Earlier     []byte                  // a checkpoint; the journal must begin with its records
	Progress    func(done, total int64) // of the records; may be nil
}

// Audit verifies that unpacked files are the journal of the manifest.
func Audit(ctx context.Context, dir string, m Manifest, o AuditOptions) (report audit.Report, err error) {
	store, err := m.open(dir)
	if err != nil {
		return report, err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	checkpoint, err := store.Journal().Checkpoint(ctx)
	if err != nil {
		return report, err
	}
	if string(checkpoint) != m.Checkpoint {
		return report, errors.New("the backup's journal differs from its manifest")
	}
	// Any signer is accepted, so that a journal with an unknown signer can be backed up and restored.
	report, err = store.Journal().Verify(ctx,
		audit.Options{Earlier: o.Earlier, AnySigner: true, SkipRecords: o.SkipRecords, Progress: o.Progress})
	if err == nil && !report.OK() && o.Earlier == nil {
		err = fmt.Errorf("the backup's journal is damaged: %s", damages(report))
	}
	return report, err
}

// mostNamed is the largest number of damages in an error.
const mostNamed = 20

// damages lists the damages of a journal, one per line.
func damages(report audit.Report) string {
	var lines []string
	for _, d := range report.Damages[:min(len(report.Damages), mostNamed)] {
		lines = append(lines, d.String())
	}
	if more := int64(len(report.Damages)-len(lines)) + report.More; more > 0 {
		lines = append(lines, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(lines, "\n")
}

// Inspected is the content of a backup.
type Inspected struct {
	Manifest
	Key    journal.LogKey // the public half, from the manifest
	Report audit.Report
}

// Inspect audits a backup in a temporary folder.
func Inspect(ctx context.Context, backup io.Reader, opts audit.Options) (found Inspected, err error) {
	scratch, err := os.MkdirTemp("", "attestd-inspect-*")
	if err != nil {
		return found, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(scratch)) }()
	if found.Manifest, err = Read(reading{ctx, backup}, scratch); err != nil {
		return found, err
	}
	if found.Key, err = found.logKey(); err != nil {
		return found, fmt.Errorf("%s: %w", manifestName, err)
	}
	store, err := openPublic(scratch, found.Key)
	if err != nil {
		return found, err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	checkpoint, err := store.Journal().Checkpoint(ctx)
	if err == nil && string(checkpoint) != found.Checkpoint {
		err = errors.New("the backup's journal differs from its manifest")
	}
	if err != nil {
		return found, err
	}
	found.Report, err = store.Journal().Verify(ctx, opts)
	return found, err
}
