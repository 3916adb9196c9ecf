package archive

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"

	"github.com/attestd/attestd/appliance/files"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/store/bolt"
	"github.com/attestd/attestd/store/highwater"
)

// identify continues the journal in scratch as a new log, unless it is proven that no larger checkpoint was published.
// It returns the checkpoint of the restored journal, which becomes the mark.
func (o RestoreOptions) identify(ctx context.Context, dir, scratch string,
	done *Restored) (checkpoint []byte, err error) {
	key, err := done.logKey()
	if err != nil {
		return nil, err
	}
	missing, published, err := o.missing(ctx, dir, scratch, key, done.Manifest)
	if err != nil {
		return nil, err
	}
	hasKey := files.Exists(filepath.Join(scratch, LogKeyFile))
	switch {
	case missing == "" && hasKey:
		checkpoint = []byte(done.Checkpoint)
		return checkpoint, highwater.Write(filepath.Join(scratch, highwater.FileName), checkpoint)
	case missing == "":
		missing = "its log key is missing"
	}
	options := ContinueOptions{
		Reason:    "restored from the backup of " + done.Manifest.Time.UTC().Format(time.RFC3339) + ": " + missing,
		By:        o.By,
		Published: published, Now: time.Now(), HSM: o.HSM,
	}
	if !hasKey {
		options.Old, options.NewKey = key, true
	}
	next, err := Continue(ctx, scratch, options)
	if err != nil {
		return nil, err
	}
	done.Log = &NewLog{next.Key.Verifier.Name(), next.Key.VerifierText, missing}
	return next.Head.Checkpoint, nil
}

// Identify does for an unpacked journal in scratch what Restore does about its log (see NewLog), for callers that
// restore to another place than dir. dir has the high-water mark. It returns the checkpoint of the journal in scratch.
func (o RestoreOptions) Identify(ctx context.Context, dir, scratch string,
	m Manifest) (checkpoint []byte, log *NewLog, err error) {
	done := Restored{Manifest: m}
	err = asOwner(dir, func() error {
		checkpoint, err = o.identify(ctx, dir, scratch, &done)
		return err
	})
	return checkpoint, done.Log, err
}

// missing returns why records may have been published that the backup lacks, and the largest checkpoint that is known
// to have been published. why is empty if the backup has everything that the mark in dir covers.
func (o RestoreOptions) missing(ctx context.Context, dir, scratch string, key journal.LogKey,
	m Manifest) (why string, published []byte, err error) {
	path := filepath.Join(dir, highwater.FileName)
	mark, err := highwater.Read(path, key.Verifier)
	switch {
	case errors.Is(err, highwater.ErrOtherLog):
		return "the high-water mark belongs to another log", mark.Signed, nil
	case errors.Is(err, highwater.ErrDamaged):
		return "the high-water mark is damaged", o.Published, nil
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return "", nil, err
	}
	// Each of these was signed and may have been published.
	for _, signed := range [][]byte{mark.Signed, o.Published, headOf(ctx, dir, key)} {
		if signed == nil {
			continue
		}
		covered, err := o.covers(ctx, scratch, key, m, signed)
		if err != nil {
			return "", nil, err
		}
		if !covered {
			return lacks(m, signed), signed, nil
		}
		published = signed
	}
	switch {
	case IsRetired(dir, key):
		return "its log was already continued as another one", published, nil
	case published == nil:
		return "the high-water mark is missing, so that later published records are unknown", nil, nil
	}
	return "", published, nil
}

// lacks describes how many records of a published checkpoint the backup lacks.
func lacks(m Manifest, published []byte) string {
	_, tree, err := journal.ReadCheckpoint(published)
	if err != nil || tree.N <= m.Records {
		return "the backup lacks published records: its records contradict the published checkpoint"
	}
	return fmt.Sprintf("the backup lacks %d of the %d published records", tree.N-m.Records, tree.N)
}

// headOf returns the checkpoint of the journal in a folder, nil if that is unreadable or of another log.
func headOf(ctx context.Context, dir string, key journal.LogKey) []byte {
	in, err := ReadHead(ctx, dir)
	if err != nil {
		return nil
	}
	if _, err := journal.OpenCheckpoint(in.Checkpoint, key.Verifier); err != nil {
		return nil
	}
	return in.Checkpoint
}

// covers reports whether the backup begins with the records of a checkpoint.
func (o RestoreOptions) covers(ctx context.Context, scratch string, key journal.LogKey, m Manifest,
	signed []byte) (bool, error) {
	tree, err := journal.OpenCheckpoint(signed, key.Verifier)
	if err != nil {
		return false, fmt.Errorf("the published %w", err)
	}
	if tree.N > m.Records {
		return false, nil
	}
	store, err := m.open(scratch)
	if err != nil {
		return false, err
	}
	extends, err := highwater.Extends(ctx, store.Journal(), key, signed)
	return extends, errors.Join(err, store.Close())
}

// beforeContinued returns the head of the journal in dir before it was continued as another log, if it belonged to the
// backup's log then and only events followed. Otherwise it returns in. newest is the index of the newest attestation in
// dir.
func beforeContinued(dir string, m Manifest, in Head, newest int64) (Head, error) {
	_, events, err := bolt.Beginning(filepath.Join(dir, StoreFile))
	if err != nil {
		return in, err
	}
	for i, e := range events {
		c, ok := e.Continuation()
		if !ok || c.Log != m.VerifierKey {
			continue
		}
		if tree, err := c.Tree(); err == nil && newest < tree.N+int64(i)+1 {
			return Head{tree, []byte(c.Surviving)}, nil
		}
	}
	return in, nil
}

// sameLog reports whether a head belongs to the backup's log.
func sameLog(in Head, m Manifest) bool {
	key, err := m.logKey()
	return err == nil && journal.SignerOf(in.Checkpoint) == journal.LogName(key.Verifier)
}
