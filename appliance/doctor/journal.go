package doctor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"path/filepath"

	"github.com/google/uuid"
	"golang.org/x/mod/sumdb/note"

	"github.com/attestd/attestd/api/client"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/archive"
	"github.com/attestd/attestd/appliance/audit"
	"github.com/attestd/attestd/appliance/daemon"
	"github.com/attestd/attestd/appliance/files"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/appliance/text"
)

// Doctor checks all records of a journal of up to sampledRecords. Of a larger journal it checks the newest block of
// sampledAtOnce records, and random blocks. 'attestd log verify' checks all records.
const (
	sampledRecords = 1000
	sampledAtOnce  = 20
)

func checkJournal(ctx context.Context, p *subject) []Finding {
	db, key := filepath.Join(p.config.DataDir, archive.StoreFile), filepath.Join(p.config.DataDir, archive.LogKeyFile)
	if !p.running() && !daemon.StoreExists(p.config) && !files.Exists(key) {
		return []Finding{ok(
			"none yet: the first start creates it. On a machine that replaces another, run this first: attestd restore FILE")}
	}
	if unread := p.unread(ctx); unread != nil {
		return unread
	}
	ctx, cancel := p.patience(ctx)
	defer cancel()
	journal, verifier, err := p.openJournal()
	if err == nil {
		defer func() { _ = journal.Close() }() // it was only read
		var s journalSample
		if s, err = sampleJournal(ctx, journal, verifier); err == nil {
			return []Finding{ok("%s", s)}
		}
	}
	switch {
	case client.CodeOf(err) == appliance.CodeJournalLost:
		return nil // checkMark reports it
	case errors.Is(err, fs.ErrPermission):
		return []Finding{warn(asRoot, "%s", err)}
	case p.config.Store.URL != "":
		return []Finding{fail("see the findings on the database, then list all damage: attestd log verify", "%s",
			oneLine(err))}
	case files.Exists(db) && !files.Exists(key):
		return []Finding{fail("restore both from a backup: attestd restore --force FILE", "%s", err)}
	}
	return []Finding{fail("list all damage: attestd log verify. Stop attestd, keep a copy of "+
		text.ShellWord(p.config.DataDir)+
		" as evidence, then restore the newest backup: attestd restore --force FILE", "%s", err)}
}

// patience bounds the reading of a journal in a database. Each reading waits for a commit on the standby.
func (p *subject) patience(ctx context.Context) (context.Context, context.CancelFunc) {
	if p.config.Store.URL == "" {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, trialCommit)
}

// openJournal returns the running daemon, or the files, opened for reading.
func (p *subject) openJournal() (openedJournal, note.Verifier, error) {
	if p.running() {
		secret, err := archive.ReadLogKey(p.config.DataDir)
		return client.NewAdmin(p.config.Admin.Socket), secret.Verifier, err
	}
	store, err := daemon.ReadStore(p.config)
	if err != nil {
		return nil, nil, err
	}
	return offline{store.Journal, store}, store.LogKey.Verifier, nil
}

// openedJournal reads the journal, through the daemon or from its file.
type openedJournal interface {
	Checkpoint(ctx context.Context) ([]byte, error)
	Records(ctx context.Context, q journal.Query) ([]journal.Entry, error)
	Prove(ctx context.Context, id uuid.UUID) (journal.Entry, journal.InclusionProof, error)
	io.Closer
}

// offline reads the journal's file while no daemon runs.
type offline struct {
	audit.Journal
	io.Closer
}

// Records lists entries, as the daemon does.
func (f offline) Records(ctx context.Context, q journal.Query) ([]journal.Entry, error) {
	return f.List(ctx, q)
}

// Prove proves the record with that id.
func (f offline) Prove(ctx context.Context, id uuid.UUID) (journal.Entry, journal.InclusionProof, error) {
	e, err := f.ByID(ctx, id)
	if err != nil {
		return journal.Entry{}, journal.InclusionProof{}, err
	}
	proof, err := f.Journal.Prove(ctx, e.Index)
	return e, proof, err
}

// journalSample counts the records that were checked and are good.
type journalSample struct{ size, checked int64 }

func (s journalSample) String() string {
	switch s.checked {
	case 0:
		return "no records yet"
	case s.size:
		return fmt.Sprintf("%s records and their checkpoint are valid; all were checked", text.Count(s.size))
	}
	return fmt.Sprintf(
		"%s records with a valid checkpoint; %s of them, the newest and random ones, were checked (attestd log verify checks all)",
		text.Count(s.size), text.Count(s.checked))
}

// sampleJournal checks the checkpoint and the sampled records. It returns the first fault.
func sampleJournal(ctx context.Context, from openedJournal, verifier note.Verifier) (s journalSample, err error) {
	checkpoint, err := from.Checkpoint(ctx)
	if err != nil {
		return s, err
	}
	tree, err := journal.OpenCheckpoint(checkpoint, verifier)
	if err != nil {
		return s, err
	}
	s.size = tree.N
	for _, before := range sampledPlaces(tree.N) {
		entries, err := from.Records(ctx,
			journal.Query{Before: before, Limit: int(min(sampledAtOnce, before))})
		if err != nil {
			return s, fmt.Errorf("records before %d: %w", before, err)
		}
		for _, e := range entries {
			if err := checkEntry(ctx, from, verifier, e); err != nil {
				return s, fmt.Errorf("record %d: %w", e.Index, err)
			}
			s.checked++
		}
	}
	return s, nil
}

// sampledPlaces returns the ends of blocks that do not overlap.
func sampledPlaces(size int64) (before []int64) {
	if size <= sampledRecords {
		for end := size; end > 0; end -= sampledAtOnce {
			before = append(before, end)
		}
		return before
	}
	const blocks = sampledRecords / sampledAtOnce
	before = append(before, size)
	stretch := (size - sampledAtOnce) / (blocks - 1) // each stretch has one block
	for i := range int64(blocks - 1) {
		before = append(before, i*stretch+sampledAtOnce+rand.Int64N(stretch-sampledAtOnce+1))
	}
	return before
}

// checkEntry verifies a record, and its inclusion in the tree of the newest checkpoint.
func checkEntry(ctx context.Context, from openedJournal, verifier note.Verifier, e journal.Entry) error {
	read, err := journal.DecodeEntry(e.Index, e.Leaf)
	if err == nil {
		err = read.Verify()
	}
	if err != nil {
		return err
	}
	_, proof, err := from.Prove(ctx, read.ID())
	if err != nil {
		return err
	}
	return proof.Verify(e.Leaf, verifier)
}
