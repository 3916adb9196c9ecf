package postgres

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/attestd/attestd/appliance/audit"
	"github.com/attestd/attestd/appliance/journal"
)

const (
	verifyStep   = 1024        // records that are read and checked at a time
	auditTimeout = time.Minute // of one query
)

var errLost = errors.New("is missing")

// Verify implements journal.Journal. In addition to the leaves, it checks the search columns, the stored hashes, the
// lookups by id and idempotency key, the API keys, and that no row lies beyond the head. It continues after a missing
// record. Appends may run at the same time: Verify checks the journal as it was at the beginning.
func (j *Journal) Verify(ctx context.Context, opts audit.Options) (audit.Report, error) {
	a, err := audit.New(j.store.opts.Verifier, opts.Earlier)
	if err != nil {
		return audit.Report{}, err
	}
	a.Expect(opts)
	v := &auditor{ctx: ctx, store: j.store, audit: a, progress: opts.Progress}
	if v.progress == nil {
		v.progress = func(done, total int64) {}
	}
	before, err := j.store.keys.stored(ctx)
	if err != nil {
		return audit.Report{}, err
	}
	if err := v.begin(); err != nil {
		return audit.Report{}, err
	}
	if err := audit.Ahead((v.size+verifyStep-1)/verifyStep, v.readBlock, v.addBlock); err != nil {
		return audit.Report{}, err
	}
	v.progress(v.size, v.size)
	now, err := j.store.keys.stored(ctx)
	if err != nil {
		return audit.Report{}, err
	}
	a.Keys(before, now)
	return a.Finish(v.checkpoint), nil
}

// auditor is one run of Verify.
type auditor struct {
	ctx      context.Context
	store    *Store
	audit    *audit.Audit
	progress func(done, total int64)

	checkpoint []byte
	size       int64 // of the journal that is verified
	continued  int64
	generation int64
}

// stored is a row of records.
type stored struct {
	columns
	index      int64
	id         uuid.UUID
	time       time.Time
	hash, leaf []byte
	checked    audit.Leaf
}

func (v *auditor) report(index int64, id uuid.UUID, part, format string, args ...any) {
	v.audit.Report(audit.Damage{Index: index, ID: id, Part: part, Detail: fmt.Sprintf(format, args...)})
}

// begin reads the head and counts the rows beyond it, in one snapshot.
func (v *auditor) begin() error {
	if _, err := v.store.begun(v.ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(v.ctx, auditTimeout)
	defer cancel()
	var r row
	var before, beyond, roots int64
	const query = "SELECT " + headColumns + ", (SELECT count(*) FROM records WHERE index < -continued), " +
		"(SELECT count(*) FROM records WHERE index >= size - continued), (SELECT count(*) FROM hashes WHERE hashes.generation = log_head.generation) FROM log_head WHERE id = 1"
	if err := v.store.read.QueryRow(ctx, query).Scan(append(r.into(), &before, &beyond, &roots)...); err != nil {
		return answer(v.ctx, "verify", err)
	}
	h, err := r.head()
	if err == nil {
		err = v.store.check(h, nil)
	}
	if errors.Is(err, ErrNoSchema) || errors.Is(err, ErrOlderSchema) || errors.Is(err, ErrNewerSchema) {
		return err // not a damage: another attestd can read it
	}
	if err != nil {
		part := "checkpoint"
		if errors.Is(err, ErrForged) || errors.Is(err, ErrForgot) {
			part = "api_key"
		}
		v.report(-1, uuid.Nil, part, "%s", err)
	}
	v.size, v.checkpoint, v.continued, v.generation = max(r.size, 0), r.checkpoint, r.continued, r.generation
	if n := before + beyond; n > 0 {
		v.report(-1, uuid.Nil, "record", "the database has %d records beyond the checkpoint's %d", n, v.size)
	}
	if want := countRoots(v.size); roots != want {
		v.report(-1, uuid.Nil, "tree", "the database has %d stored hashes of tiles, but a tree needs %d for %d records",
			roots, want, v.size)
	}
	return nil
}

// countRoots returns the number of complete tiles on all levels.
func countRoots(size int64) (n int64) {
	for level := tileHeight; level < 63; level += tileHeight {
		n += size >> level
	}
	return n
}

// block is verifyStep records.
type block struct {
	records []stored
	found   lookups
}

// readBlock reads and checks the records of a block.
func (v *auditor) readBlock(n int64) (b block, err error) {
	if v.ctx.Err() != nil {
		return b, timeout(v.ctx, "verify")
	}
	ctx, cancel := context.WithTimeout(v.ctx, auditTimeout)
	defer cancel()
	first := n * verifyStep
	end := min(v.size, first+verifyStep)
	b.records = make([]stored, end-first)
	rows, err := v.store.read.Query(ctx,
		"SELECT index, id, key_id, idempotency_key, time, hash, leaf, digest, unspendable FROM records "+
			"WHERE index >= $1 AND index < $2", first-v.continued, end-v.continued)
	if err == nil {
		err = scanStored(rows, b.records, first-v.continued)
	}
	if err != nil {
		return b, answer(v.ctx, "verify", err)
	}
	leaves := make([][]byte, len(b.records))
	for i := range b.records {
		leaves[i] = b.records[i].leaf
	}
	for i, c := range v.audit.Check(leaves) {
		b.records[i].checked = c
	}
	if b.found, err = v.lookUp(ctx, b.records); err != nil {
		return b, answer(v.ctx, "verify", err)
	}
	return b, nil
}

// addBlock adds the records of a block to the audit.
func (v *auditor) addBlock(n int64, b block) error {
	first := n * verifyStep
	v.progress(first, v.size)
	ctx, cancel := context.WithTimeout(v.ctx, auditTimeout)
	defer cancel()
	var roots []root
	for i := range b.records {
		roots = append(roots, v.record(first+int64(i), &b.records[i], b.found)...)
	}
	if err := v.tiles(ctx, roots); err != nil {
		return answer(v.ctx, "verify", err)
	}
	return nil
}

func scanStored(rows pgx.Rows, records []stored, first int64) error {
	for rows.Next() {
		var r stored
		if err := rows.Scan(&r.index, &r.id, &r.keyID, &r.idempotentBy, &r.time, &r.hash, &r.leaf, &r.digest,
			&r.unspendable); err != nil {
			return err
		}
		records[r.index-first] = r
	}
	return rows.Err()
}

// tiles checks that the roots of tiles are stored.
func (v *auditor) tiles(ctx context.Context, roots []root) error {
	for _, want := range roots {
		var hash []byte
		err := v.store.read.QueryRow(ctx, "SELECT hash FROM hashes WHERE generation = $1 AND level = $2 AND n = $3",
			v.generation, want.level, want.n).Scan(&hash)
		if err != nil && !errors.Is(err, pgx.ErrNoRows) {
			return err
		}
		if !bytes.Equal(hash, want.hash[:]) {
			v.report((want.n+1)<<(tileHeight*want.level)-1, uuid.Nil, "tree", "the hash of the tile that ends at "+
				"this record, at level %d, differs from the stored one", want.level)
		}
	}
	return nil
}

// lookups are the indexes that lookups by id and idempotency key return.
type lookups struct {
	byID   map[uuid.UUID]int64
	byName map[idempotent]int64
}

// lookUp looks the records up by id and by idempotency key.
func (v *auditor) lookUp(ctx context.Context, records []stored) (lookups, error) {
	found := lookups{make(map[uuid.UUID]int64), make(map[idempotent]int64)}
	var ids []uuid.UUID
	var keys, names []string
	for _, r := range records {
		if id := r.checked.ID(); id != uuid.Nil {
			ids = append(ids, id)
		}
		if name := r.checked.Record.IdempotencyKey; name != "" {
			keys, names = append(keys, r.checked.Record.KeyID), append(names, name)
		}
	}
	q := new(pgx.Batch)
	q.Queue("SELECT id, index FROM records WHERE id = ANY($1)", ids).Query(func(rows pgx.Rows) error {
		var id uuid.UUID
		var index int64
		_, err := pgx.ForEachRow(rows, []any{&id, &index}, func() error {
			found.byID[id] = index + v.continued
			return nil
		})
		return err
	})
	q.Queue("SELECT q.k, q.i, r.index FROM unnest($1::text[], $2::text[]) AS q (k, i), "+
		"LATERAL (SELECT index FROM records WHERE key_id = q.k AND idempotency_key = q.i LIMIT 1) AS r", keys,
		names).Query(func(rows pgx.Rows) error {
		var name idempotent
		var index int64
		_, err := pgx.ForEachRow(rows, []any{&name.key, &name.name, &index}, func() error {
			found.byName[name] = index + v.continued
			return nil
		})
		return err
	})
	return found, v.store.read.SendBatch(ctx, q).Close()
}

// record checks one record. It returns the roots of the tiles that the record completes.
func (v *auditor) record(n int64, r *stored, found lookups) []root {
	c := r.checked
	if r.leaf == nil {
		var hash tlog.Hash
		copy(hash[:], r.hash)
		c = audit.LostLeaf(hash, errLost)
	}
	roots := appendRoots(nil, v.audit.Add(c), n)
	if r.leaf != nil && !bytes.Equal(r.hash, c.Hash[:]) {
		v.report(n, c.ID(), "tree", "the record's hash differs from the stored one")
	}
	v.columns(n, r, c.Entry, found)
	return roots
}

// columns compares the search columns with the leaf.
func (v *auditor) columns(n int64, r *stored, e journal.Entry, found lookups) {
	id, record := e.ID(), e.Record
	if id == uuid.Nil {
		return // skipped, or unreadable, which is reported elsewhere
	}
	check := func(column string, right bool) {
		if !right {
			v.report(n, id, "lookup", "%s: differs from the record or refers to another record", column)
		}
	}
	at, ok := found.byID[id]
	check("id", r.id == id && ok && at == n)
	want := columnsOf(e)
	check("key_id", text(r.keyID) == text(want.keyID) && (r.keyID == nil) == (want.keyID == nil))
	check("digest", bytes.Equal(r.digest, want.digest))
	check("unspendable", bytes.Equal(r.unspendable, want.unspendable))
	check("time", r.time.Equal(e.Time()))
	at, ok = found.byName[idempotent{record.KeyID, record.IdempotencyKey}]
	check("idempotency_key", text(r.idempotentBy) == record.IdempotencyKey &&
		(record.IdempotencyKey == "" || ok && at == n))
}

// text returns "" for nil (NULL).
func text(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}
