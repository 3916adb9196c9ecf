package postgres

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/journal"
)

// batch is one transaction of the writer. It is retried until its outcome is known.
type batch struct {
	store   *Store
	ops     []*op
	unknown bool // a COMMIT got no answer, so the records may be in the journal
	taken   bool // an id of the batch is or may be in the journal

	// The current attempt.
	leaves   []leaf // of ops, encoded before the lock is taken
	head     *head  // before the batch
	now      time.Time
	ahead    error // the reason to refuse appends, or nil
	past     past  // results for the conditions
	keys     map[string]appliance.APIKey
	byID     map[uuid.UUID]journal.Entry // existing leaves with an id of the batch
	replayed bool                        // an op is answered with an existing leaf
	replays  map[idempotent]journal.Entry
	next     *head
	entries  []journal.Entry // appended by the batch
	hashes   []tlog.Hash
	roots    []root // of the tiles that the batch completes
}

// leaf is a record or an event with its time, ready to be appended.
type leaf struct {
	journal.Entry // without its Index
	hash          tlog.Hash
	asks          []journal.PastQuery // of a record's conditions, in their order
	err           error               // the reason to refuse it, or nil
}

// idempotent names a record by its API key and idempotency key.
type idempotent struct{ key, name string }

// root is the root hash of a complete tile, which is one hash of the level above.
type root struct {
	level int16
	n     int64
	hash  tlog.Hash
}

// write makes one attempt. Its error concerns the whole batch; the error of a single op is in the op.
func (b *batch) write(ctx context.Context) error {
	s := b.store
	b.reset()
	b.make(s.time(s.head.Load())) // before the lock is taken
	if err := b.countEarly(ctx); err != nil {
		return err
	}
	conn, err := s.write.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer conn.Release() // which closes a connection with an open transaction
	if err = b.begin(ctx, conn); err == nil {
		s.keepCounts(&b.past)
		err = b.build()
	}
	if err != nil || !b.commits() {
		s.abandon(conn, err)
		return err
	}
	if err := b.commit(conn); err != nil {
		return err
	}
	b.unknown = false
	// The head comes before the answers, so that Checkpoint covers every entry that Append has returned.
	s.observe(b.next)
	s.confirmed(b.next)
	return nil
}

// commits reports whether the batch needs a COMMIT: for new leaves, for an unknown outcome, or to confirm a replayed
// leaf.
func (b *batch) commits() bool {
	return len(b.entries) > 0 || b.unknown || b.replayed && !b.store.isConfirmed(b.head)
}

func (b *batch) reset() {
	*b = batch{store: b.store, ops: b.ops, unknown: b.unknown, taken: b.taken || b.unknown}
	for _, o := range b.ops {
		o.Err, o.Value.entry, o.Value.replayed = nil, journal.Entry{}, false
	}
}

// time returns the time for records after h, which is never earlier than the newest record.
func (s *Store) time(h *head) time.Time {
	now := s.opts.Now().UTC().Truncate(time.Millisecond)
	if h != nil && now.Before(h.last) {
		return h.last
	}
	return now
}

// make encodes the leaves of the ops with that time.
func (b *batch) make(now time.Time) {
	b.now, b.leaves = now, make([]leaf, len(b.ops))
	for i, o := range b.ops {
		b.leaves[i] = makeLeaf(&o.Value, now)
	}
}

func makeLeaf(c *change, now time.Time) (l leaf) {
	if c.event != nil {
		event := *c.event
		l.Event = &event
		l.Leaf, l.err = event.At(now)
		l.hash = tlog.RecordHash(l.Leaf)
		return l
	}
	if l.err = checkRecord(c.record); l.err != nil {
		return l
	}
	if !c.salted {
		rand.Read(c.record.Salt[:]) // never fails (Go 1.24)
		c.salted = true
	}
	l.Record = c.record
	l.Record.Time = now
	if l.Leaf, l.err = journal.EncodeLeaf(l.Record); l.err != nil {
		l.err = refuse(l.err)
	}
	l.hash = tlog.RecordHash(l.Leaf)
	for _, condition := range c.admits {
		l.asks = append(l.asks, condition.Asks(l.Record))
	}
	return l
}

func refuse(why error) error {
	return appliance.Errorf(appliance.CodeInternal, "the attestation cannot be recorded").Because(why)
}

// checkRecord refuses values that PostgreSQL or JSON would not return unchanged.
func checkRecord(r appliance.Record) error {
	kept := func(s string) bool { return utf8.ValidString(s) && !strings.Contains(s, "\x00") }
	switch {
	case r.ID == uuid.Nil:
		return refuse(errors.New("the record has no id"))
	case r.KeyID == "" || len(r.KeyID) > 255 || !kept(r.KeyID):
		return refuse(errors.New("the record's API key id is malformed"))
	case len(r.IdempotencyKey) > 1024 || !kept(r.IdempotencyKey):
		return refuse(errors.New("the record's idempotency key is malformed"))
	case !utf8.ValidString(r.Scheme), r.Domain != nil &&
		(!utf8.ValidString(r.Domain.Name) || !utf8.ValidString(r.Domain.Version)):
		return refuse(errors.New("the record has text that is not UTF-8"))
	}
	return nil
}

// begin locks the head and reads everything that decides on the batch, in one round trip. The queries run after the
// lock is granted, so that they see every earlier commit.
func (b *batch) begin(ctx context.Context, conn *pgxpool.Conn) error {
	q := new(pgx.Batch)
	q.Queue("BEGIN")
	q.Queue(selectHead + " FOR UPDATE").QueryRow(func(row pgx.Row) error { return b.scanHead(row) })
	if keys, names := b.idempotencyKeys(); len(keys) > 0 {
		q.Queue("SELECT r.index, r.leaf FROM unnest($1::text[], $2::text[]) AS q (k, i), "+
			"LATERAL (SELECT index, leaf FROM records WHERE key_id = q.k AND idempotency_key = q.i LIMIT 1) AS r", keys,
			names).Query(b.scanReplays)
	}
	if b.taken {
		q.Queue("SELECT index, leaf FROM records WHERE id = ANY($1)", b.ids()).Query(b.scanIDs)
	}
	b.queueConditions(q)
	if err := conn.SendBatch(ctx, q).Close(); err != nil {
		return fmt.Errorf("lock the head: %w", err)
	}
	made := b.now
	if err := b.verifyHead(); err != nil {
		return err
	}
	var err error
	if b.keys, err = b.store.keys.at(ctx, conn, b.head); err != nil {
		return err
	}
	if err := b.proveFound(ctx); err != nil || b.now.Equal(made) {
		return err
	}
	q = new(pgx.Batch) // the time has changed, and conditions may ask for another period
	if b.queueConditions(q); q.Len() == 0 {
		return nil
	}
	if err := conn.SendBatch(ctx, q).Close(); err != nil {
		return fmt.Errorf("ask again: %w", err)
	}
	return b.past.prove(ctx, b.store, b.head)
}

// proveFound proves the stored leaves on which answers and conditions depend.
func (b *batch) proveFound(ctx context.Context) error {
	found := slices.AppendSeq(slices.Collect(maps.Values(b.replays)), maps.Values(b.byID))
	if err := b.store.prove(ctx, b.head, found); err != nil {
		return err
	}
	return b.past.prove(ctx, b.store, b.head)
}

// verifyHead verifies the locked head.
func (b *batch) verifyHead() error {
	s := b.store
	known := s.safe.Load()
	if err := s.check(b.head, known); err != nil {
		return err
	}
	if err := forgot(b.head, known); err != nil {
		return err
	}
	if s.opts.Accept != nil {
		if err := s.opts.Accept(b.head.tree); err != nil {
			return err
		}
	}
	s.head.Store(b.head) // conditions read the stop state from it; under the lock, it is the newest
	b.ahead = s.checkClock(b.head.last)
	if b.now.Before(b.head.last) {
		b.make(b.head.last)
	}
	return nil
}

func (b *batch) idempotencyKeys() (keys, names []string) {
	for _, l := range b.leaves {
		if l.err == nil && l.Record.IdempotencyKey != "" {
			keys, names = append(keys, l.Record.KeyID), append(names, l.Record.IdempotencyKey)
		}
	}
	return keys, names
}

func (b *batch) ids() (ids []uuid.UUID) {
	for _, l := range b.leaves {
		ids = append(ids, l.ID())
	}
	return ids
}

func (b *batch) scanHead(from pgx.Row) (err error) {
	var r row
	if err := from.Scan(r.into()...); err != nil {
		return err
	}
	b.head, err = r.head()
	return err
}

func (b *batch) scanReplays(rows pgx.Rows) error {
	b.replays = make(map[idempotent]journal.Entry)
	return eachEntry(rows, b.head.continued, func(e journal.Entry) {
		b.replays[idempotent{e.Record.KeyID, e.Record.IdempotencyKey}] = e
	})
}

func (b *batch) scanIDs(rows pgx.Rows) error {
	b.byID = make(map[uuid.UUID]journal.Entry)
	return eachEntry(rows, b.head.continued, func(e journal.Entry) { b.byID[e.ID()] = e })
}

// build decides on each op and computes the next head.
func (b *batch) build() error {
	frontier := b.head.frontier.Clone()
	if b.byID == nil {
		b.byID = make(map[uuid.UUID]journal.Entry)
	}
	if b.replays == nil {
		b.replays = make(map[idempotent]journal.Entry)
	}
	for i, o := range b.ops {
		b.append(o, b.leaves[i], &frontier)
	}
	if len(b.entries) == 0 {
		b.next = b.head
		return nil
	}
	tree := frontier.Tree()
	checkpoint, err := journal.SignCheckpoint(tree, b.store.opts.Signer)
	if errors.Is(err, journal.ErrUnsigned) { // not tried again: the head is locked meanwhile
		return unavailable(err)
	}
	if err != nil {
		return fmt.Errorf("sign checkpoint: %w", err)
	}
	next := *b.head
	next.tree, next.frontier, next.checkpoint, next.last = tree, frontier, checkpoint, b.now
	b.next = &next
	return nil
}

// append decides on one op.
func (b *batch) append(o *op, l leaf, frontier *journal.Frontier) {
	if o.Err = l.err; o.Err != nil {
		return
	}
	if l.Event != nil {
		b.appendEvent(o, l, frontier)
		return
	}
	r := l.Record
	if e, found := b.byID[r.ID]; found {
		if e.Event == nil && e.Record.Salt == r.Salt { // an earlier attempt committed it
			o.Value.entry, b.replayed = e, true
			return
		}
		o.Err = refuse(fmt.Errorf("id %s exists already", r.ID))
		return
	}
	if key, found := b.keys[r.KeyID]; found {
		if o.Err = key.Usable(b.now); o.Err != nil {
			return
		}
	}
	name := idempotent{r.KeyID, r.IdempotencyKey}
	if e, found := b.replays[name]; found && r.IdempotencyKey != "" {
		o.Value.entry, o.Value.replayed, b.replayed = e, true, true
		return
	}
	if o.Err = b.ahead; o.Err != nil {
		return
	}
	if o.Err = b.admit(o.Value.admits, l); o.Err == nil {
		b.replays[name] = b.put(o, l, frontier)
	}
}

func (b *batch) appendEvent(o *op, l leaf, frontier *journal.Frontier) {
	if e, found := b.byID[l.ID()]; found {
		o.Value.entry, o.Value.replayed, b.replayed = e, true, true
		return
	}
	if o.Err = b.ahead; o.Err == nil {
		b.put(o, l, frontier)
	}
}

// put appends a leaf to the tree and sets the entry of its op.
func (b *batch) put(o *op, l leaf, frontier *journal.Frontier) journal.Entry {
	e := l.Entry
	e.Index = frontier.Size()
	b.entries = append(b.entries, e)
	b.hashes = append(b.hashes, l.hash)
	b.roots = appendRoots(b.roots, frontier.Add(nil, l.hash), e.Index)
	b.byID[e.ID()], o.Value.entry = e, e
	return e
}

// appendRoots appends the roots of the tiles that record n completes. completed has the roots of all subtrees that it
// completes.
func appendRoots(roots []root, completed []tlog.Hash, n int64) []root {
	for level := tileHeight; level < len(completed); level += tileHeight {
		roots = append(roots, root{level: int16(level / tileHeight), n: n >> level, hash: completed[level]})
	}
	return roots
}

// commit writes the batch and commits, in one round trip. The context of a caller does not cancel it.
func (b *batch) commit(conn *pgxpool.Conn) error {
	ctx, cancel := context.WithTimeout(context.Background(), commitTimeout)
	defer cancel()
	q := new(pgx.Batch)
	b.queueRecords(q)
	queueRoots(q, b.head.generation, b.roots)
	next := b.next
	// A batch without new leaves updates the row, too: its COMMIT confirms the replayed leaves on the synchronous
	// standby.
	q.Queue("UPDATE log_head SET size = $1, edge = $2, last_time = $3, checkpoint = $4, appended_by = $5 WHERE id = 1",
		next.tree.N, encodeEdge(next.frontier), optional(next.last), string(next.checkpoint), b.store.opts.Member.Name)
	q.Queue("COMMIT")
	err := conn.SendBatch(ctx, q).Close()
	switch {
	case err == nil:
		if err = replicated(conn); err == nil {
			return nil
		}
		b.unknown = true
	case aborted(err):
		if stateOf(err) == stateUnique {
			if b.taken {
				err = fmt.Errorf("%w: a record exists beyond the head: %w", ErrDamaged, err)
			}
			b.taken = true
		}
		b.store.abandon(conn, err)
		return fmt.Errorf("append: %w", err)
	default:
		b.unknown = true
	}
	return fmt.Errorf("commit: %w", err)
}

func (b *batch) queueRecords(q *pgx.Batch) {
	if len(b.entries) == 0 {
		return
	}
	n := len(b.entries)
	ids, keys, names := make([]uuid.UUID, n), make([]*string, n), make([]*string, n)
	hashes, leaves, digests, addresses := make([][]byte, n), make([][]byte, n), make([][]byte, n), make([][]byte, n)
	for i, e := range b.entries {
		c := columnsOf(e)
		ids[i], leaves[i], hashes[i] = e.ID(), e.Leaf, b.hashes[i][:]
		keys[i], names[i], digests[i], addresses[i] = c.keyID, c.idempotentBy, c.digest, c.unspendable
	}
	q.Queue("INSERT INTO records (index, id, key_id, idempotency_key, time, hash, leaf, digest, unspendable) "+
		"SELECT $1 + n - 1, id, k, i, $2, hash, leaf, d, u FROM unnest($3::uuid[], $4::text[], $5::text[], $6::bytea[], $7::bytea[], $8::bytea[], $9::bytea[]) "+
		"WITH ORDINALITY AS new (id, k, i, hash, leaf, d, u, n)", b.entries[0].Index-b.head.continued, b.now, ids, keys,
		names, hashes, leaves, digests, addresses)
}

// columns are the search columns of a leaf, except id and time. Nil is NULL.
type columns struct {
	keyID, idempotentBy *string
	digest, unspendable []byte
}

// columnsOf returns the search columns of a leaf. All are NULL for an event.
func columnsOf(e journal.Entry) (c columns) {
	if e.Event != nil {
		return c
	}
	r := e.Record
	c = columns{keyID: &r.KeyID, digest: r.Hash[:], unspendable: r.UnspendableAddress[:]}
	if r.IdempotencyKey != "" {
		c.idempotentBy = &r.IdempotencyKey
	}
	return c
}

func queueRoots(q *pgx.Batch, generation int64, roots []root) {
	for _, r := range roots {
		q.Queue("INSERT INTO hashes (generation, level, n, hash) VALUES ($1, $2, $3, $4)", generation, r.level, r.n,
			r.hash[:])
	}
}

// eachEntry decodes rows with the columns index and leaf.
func eachEntry(rows pgx.Rows, continued int64, fn func(journal.Entry)) error {
	for rows.Next() {
		var index int64
		var leaf []byte
		if err := rows.Scan(&index, &leaf); err != nil {
			return err
		}
		e, err := entry(index+continued, leaf)
		if err != nil {
			return err
		}
		fn(e)
	}
	return rows.Err()
}

// entry decodes the leaf at an index of the tree.
func entry(index int64, leaf []byte) (journal.Entry, error) {
	e, err := journal.DecodeEntry(index, leaf)
	if err != nil {
		return journal.Entry{}, fmt.Errorf("%w: record %d: %w", ErrDamaged, index, err)
	}
	return e, nil
}
