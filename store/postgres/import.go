package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/attestd/attestd/appliance/journal"
)

// Import appends leaves of another store of this log, unchanged. first is the index of the first leaf and must equal
// the number of leaves here, so that an interrupted copy can continue. It needs Options.Copying. The first call must
// contain all EventLogContinued leaves and the leaf after them.
//
// No appliance uses the journal before FinishCopy.
func (s *Store) Import(ctx context.Context, first int64, leaves [][]byte) error {
	if !s.opts.Copying {
		return errors.New("import: the store was not opened for copying")
	}
	if err := s.watch.ready(ctx); err != nil {
		return err
	}
	err := s.transaction(ctx, func(tx pgx.Tx) error {
		h, err := s.lock(ctx, tx)
		if err != nil {
			return err
		}
		if h.tree.N != first {
			return fmt.Errorf("record %d cannot be next: the journal has %d records", first, h.tree.N)
		}
		i := &importRows{head: h, frontier: h.frontier.Clone(), continued: h.continued}
		if err := i.addAll(leaves); err != nil {
			return err
		}
		return i.write(ctx, tx)
	})
	if err != nil {
		return fmt.Errorf("import: %w", explain(err))
	}
	return nil
}

// Copied returns the head of an unfinished copy. A journal that is no unfinished copy is an error.
func (s *Store) Copied(ctx context.Context) (Head, error) {
	if err := s.watch.ready(ctx); err != nil {
		return Head{}, err
	}
	return s.Head(ctx)
}

// FinishCopy turns the copy into the journal if its tree matches the signed checkpoint.
func (s *Store) FinishCopy(ctx context.Context, checkpoint []byte) error {
	tree, err := journal.OpenCheckpoint(checkpoint, s.opts.Verifier)
	if err != nil {
		return fmt.Errorf("finish copy: %w", err)
	}
	err = s.transaction(ctx, func(tx pgx.Tx) error {
		h, err := s.lock(ctx, tx)
		if err != nil {
			return err
		}
		if h.tree != tree {
			return fmt.Errorf("the copy has %d records with root %s, the checkpoint %d with root %s", h.tree.N,
				h.tree.Hash, tree.N, tree.Hash)
		}
		_, err = tx.Exec(ctx, "UPDATE log_head SET log = $1, checkpoint = $2 WHERE id = 1",
			journal.LogName(s.opts.Verifier), string(checkpoint))
		return err
	})
	if err != nil {
		return fmt.Errorf("finish copy: %w", explain(err))
	}
	return nil
}

// Leave ends the journal in this database after a copy to another store. Its tree must still equal copied.
func (s *Store) Leave(ctx context.Context, copied tlog.Tree) error {
	err := s.transaction(ctx, func(tx pgx.Tx) error {
		h, err := s.lock(ctx, tx)
		if err != nil {
			return err
		}
		if h.tree != copied {
			return fmt.Errorf("the journal has %d records, the copy %d: an appliance attested during the copy. "+
				"Remove the copy, stop every appliance and copy again", h.tree.N, copied.N)
		}
		_, err = tx.Exec(ctx, "UPDATE log_head SET log = $1 WHERE id = 1", left+h.log)
		return err
	})
	if err != nil {
		return fmt.Errorf("end the journal in the database: %w", explain(err))
	}
	return nil
}

// lock locks and verifies the head.
func (s *Store) lock(ctx context.Context, tx pgx.Tx) (*head, error) {
	var r row
	if err := tx.QueryRow(ctx, selectHead+" FOR UPDATE").Scan(r.into()...); err != nil {
		return nil, err
	}
	h, err := r.head()
	if err == nil {
		err = s.check(h, s.safe.Load())
	}
	return h, err
}

// importRows collects the rows of imported leaves.
type importRows struct {
	head      *head
	frontier  journal.Frontier
	continued int64

	rows  [][]any
	roots []root
	last  time.Time
}

func (i *importRows) addAll(leaves [][]byte) error {
	entries := make([]journal.Entry, len(leaves))
	for k, leaf := range leaves {
		var err error
		if entries[k], err = journal.DecodeEntry(i.frontier.Size()+int64(k), leaf); err != nil {
			return fmt.Errorf("record %d: %w", i.frontier.Size()+int64(k), err)
		}
		if beginning := i.head.tree.N == 0 && i.continued == int64(k); beginning && continues(entries[k]) {
			i.continued++
		}
	}
	i.last = i.head.last
	for _, e := range entries {
		i.add(e)
	}
	return nil
}

// continues reports whether an entry is an EventLogContinued.
func continues(e journal.Entry) bool {
	return e.Event != nil && e.Event.Kind == journal.EventLogContinued
}

func (i *importRows) add(e journal.Entry) {
	hash := tlog.RecordHash(e.Leaf)
	i.roots = appendRoots(i.roots, i.frontier.Add(nil, hash), e.Index)
	if at := e.Time(); at.After(i.last) && !continues(e) {
		i.last = at
	}
	i.rows = append(i.rows, recordRow(e, e.Index-i.continued, hash))
}

// recordRow returns the row of a leaf.
func recordRow(e journal.Entry, index int64, hash tlog.Hash) []any {
	c := columnsOf(e)
	return []any{index, e.ID(), c.keyID, c.idempotentBy, e.Time(), hash[:], e.Leaf, c.digest, c.unspendable}
}

var recordColumns = []string{"index",
	"id", "key_id", "idempotency_key", "time", "hash", "leaf", "digest", "unspendable"}

func (i *importRows) write(ctx context.Context, tx pgx.Tx) error {
	if _, err := tx.CopyFrom(ctx, pgx.Identifier{"records"}, recordColumns, pgx.CopyFromRows(i.rows)); err != nil {
		return err
	}
	q := new(pgx.Batch)
	queueRoots(q, i.head.generation, i.roots)
	q.Queue("UPDATE log_head SET size = $1, edge = $2, last_time = $3, continued = $4 WHERE id = 1",
		i.frontier.Size(), encodeEdge(i.frontier), optional(i.last), i.continued)
	return tx.SendBatch(ctx, q).Close()
}

// Continue turns the journal into the journal of another log with the given key. The event becomes the first leaf, and
// the existing leaves follow unchanged. progress, if not nil, is called with the leaves done and their total. The
// change is atomic. Continue fails if the journal grows during the call.
func (s *Store) Continue(ctx context.Context, event journal.Event, key journal.LogKey,
	progress func(done, total int64)) error {
	if progress == nil {
		progress = func(done, total int64) {}
	}
	leaf, err := journal.EncodeEvent(event)
	if err != nil {
		return err
	}
	h, err := s.readHead(ctx)
	if err != nil {
		return err
	}
	next := *h
	next.log, next.continued, next.frontier = journal.LogName(key.Signer), h.continued+1, journal.Frontier{}
	if err := s.write.QueryRow(ctx,
		"SELECT coalesce(max(generation), 0) + 1 FROM hashes").Scan(&next.generation); err != nil {
		return fmt.Errorf("continue the log: %w", explain(err))
	}
	hash := tlog.RecordHash(leaf)
	next.frontier.Add(nil, hash)
	if err := s.rehash(ctx, h, &next, progress); err != nil {
		return fmt.Errorf("continue the log: %w", explain(err))
	}
	next.tree = next.frontier.Tree()
	if next.checkpoint, err = journal.SignCheckpoint(next.tree, key.Signer); err != nil {
		return fmt.Errorf("sign checkpoint: %w", err)
	}
	err = s.transaction(ctx, func(tx pgx.Tx) error {
		return s.replaceHead(ctx, tx, h, &next, key.Signer,
			recordRow(journal.Entry{Event: &event, Leaf: leaf}, -next.continued, hash))
	})
	if err != nil {
		return fmt.Errorf("continue the log: %w", explain(err))
	}
	return nil
}

// rehash computes the tree of next from the leaves of h and stores the roots of its tiles.
func (s *Store) rehash(ctx context.Context, h, next *head, progress func(done, total int64)) error {
	for done := int64(0); done < h.tree.N; done += entriesStep {
		progress(done, h.tree.N)
		end := min(h.tree.N, done+entriesStep)
		rows, err := s.read.Query(ctx, "SELECT hash FROM records WHERE index >= $1 AND index < $2 ORDER BY index",
			done-h.continued, end-h.continued)
		if err != nil {
			return err
		}
		hashes, err := pgx.CollectRows(rows, pgx.RowTo[[]byte])
		if err != nil {
			return err
		}
		if int64(len(hashes)) != end-done {
			return fmt.Errorf("%w: only some of records %d to %d exist: %d", ErrDamaged, done, end-1, len(hashes))
		}
		var roots []root
		for _, hash := range hashes {
			roots = appendRoots(roots, next.frontier.Add(nil, tlog.Hash(hash)), next.frontier.Size()-1)
		}
		q := new(pgx.Batch)
		queueRoots(q, next.generation, roots)
		if err := s.write.SendBatch(ctx, q).Close(); err != nil {
			return err
		}
	}
	progress(h.tree.N, h.tree.N)
	return nil
}

// replaceHead inserts the first leaf of the next log and replaces the head h.
func (s *Store) replaceHead(ctx context.Context, tx pgx.Tx, h, next *head, signer note.Signer, leaf []any) error {
	var r row
	if err := tx.QueryRow(ctx, selectHead+" FOR UPDATE").Scan(r.into()...); err != nil {
		return err
	}
	now, err := r.head()
	if err != nil || now.log != h.log || now.tree != h.tree {
		return errors.Join(errors.New("the journal changed during the operation: try again"), err)
	}
	if err := s.checkState(now, nil); err != nil {
		return err
	}
	if _, err := tx.CopyFrom(ctx, pgx.Identifier{"records"}, recordColumns,
		pgx.CopyFromRows([][]any{leaf})); err != nil {
		return err
	}
	secret, err := journal.StoreSecret(signer)
	if err == nil {
		err = s.resealWebhooks(ctx, tx, secret)
	}
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx,
		"UPDATE log_head SET log = $1, size = $2, edge = $3, checkpoint = $4, continued = $5, generation = $6, state_mac = $7 WHERE id = 1",
		next.log, next.tree.N, encodeEdge(next.frontier), string(next.checkpoint), next.continued, next.generation,
		stateMAC(secret, now))
	return err
}
