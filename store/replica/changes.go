package replica

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"runtime/debug"
	"time"

	"go.etcd.io/bbolt"

	"github.com/attestd/attestd/appliance/index"
)

// bucketChanges is the log of changes: number, 8 bytes → when (8 bytes, nanoseconds since 1970), the collection (1
// byte), the length of the status (1 byte), the status, and the row's key. Its sequence is the last number. A batch
// writes its changes in its transaction.
var bucketChanges = []byte("changes")

const (
	// keptChanges is how many changes the log keeps, newest last; they take about 12 MB.
	keptChanges = 100_000
	// recentlySent is the age up to which a new row counts as a change, even if newer rows exist. Older rows come from a
	// backfill, and changed long ago.
	recentlySent = time.Hour
)

var sumChanges = sumOf(bucketChanges)

// loggedChange is a change of the batch that is being written.
type loggedChange struct {
	c           *collection
	key, status string
}

func (c *collection) statusOf(row index.Row) string {
	column := index.TransferStatusColumn
	if c == packets {
		column = index.PacketStatusColumn
	}
	status, _ := row.Text(column)
	return status
}

// noteChange notes that row replaces old, which is zero for a new row, under a sort_order.
func (w *batchWriter) noteChange(c *collection, key string, old, row index.Row, order string) {
	status := c.statusOf(row)
	if len(status) > 255 {
		return
	}
	if old.IsZero() {
		sent, _ := row.Time(c.sent)
		newest := w.newest[c.number]
		if (len(newest) == 0 || order < string(newest)) && w.r.now().Sub(sent) > recentlySent {
			return
		}
	} else if c.statusOf(old) == status {
		return
	}
	w.logged = append(w.logged, loggedChange{c, key, status})
}

// logChanges writes the changes of the batch, and drops the oldest of the log.
func (w *batchWriter) logChanges() error {
	if len(w.logged) == 0 {
		return nil
	}
	b, err := w.tx.CreateBucketIfNotExists(bucketChanges)
	if err != nil {
		return err
	}
	b.FillPercent = fillOrdered
	now := uint64(w.r.now().UnixNano())
	for _, l := range w.logged {
		n, err := b.NextSequence()
		if err != nil {
			return err
		}
		v := binary.BigEndian.AppendUint64(make([]byte, 0, 128), now)
		v = append(append(append(v, byte(l.c.number), byte(len(l.status))), l.status...), l.key...)
		key := binary.BigEndian.AppendUint64(nil, n)
		if err := b.Put(key, seal(sumChanges, key, v)); err != nil {
			return err
		}
	}
	cursor := b.Cursor()
	for k, _ := cursor.First(); k != nil && b.Sequence()-binary.BigEndian.Uint64(k) >= keptChanges; k, _ = cursor.First() {
		if err := cursor.Delete(); err != nil {
			return err
		}
	}
	return nil
}

// viewChanges calls read with the log of changes, which is nil before the first change.
func (r *Store) viewChanges(ctx context.Context, read func(s *snapshot, b *bbolt.Bucket) error) (err error) {
	if err := ctx.Err(); err != nil {
		return timeoutError(err)
	}
	defer r.surviveView(debug.SetPanicOnFault(true), &err)
	return r.view(func(tx *bbolt.Tx) error {
		return read(&snapshot{ctx: ctx, r: r, tx: tx, tables: r.tables.Load(), dictionary: r.dictionary.Load()},
			tx.Bucket(bucketChanges))
	})
}

// Changed returns the numbers of the oldest change in the log and of the next one to come, and index.Status.ID.
func (r *Store) Changed(ctx context.Context) (id string, oldest, next int64, err error) {
	oldest, next = 1, 1
	err = r.viewChanges(ctx, func(_ *snapshot, b *bbolt.Bucket) error {
		if b != nil {
			first, _ := b.Cursor().First()
			oldest, next = changeNumber(first), int64(b.Sequence())+1
		}
		return nil
	})
	return r.id, oldest, next, err
}

// ReadChanges calls yield with the changes from a number on, in order. The row of a change is as it is now, and zero if
// it was removed; it is valid only until yield returns. An error of yield ends the read and is returned.
func (r *Store) ReadChanges(ctx context.Context, from int64, yield func(index.Change) error) error {
	return r.viewChanges(ctx, func(s *snapshot, b *bbolt.Bucket) error {
		return eachChange(b, from, func(change index.Change, c *collection, key []byte) error {
			if ctx.Err() != nil {
				return timeoutError(ctx.Err())
			}
			change.Row, _ = s.find(c, key)
			return yield(change)
		})
	})
}

// ChangedSince returns the number of the first change at or after a time. reaches means that the log has all changes
// since then. A log that never had a change has all.
func (r *Store) ChangedSince(ctx context.Context, at time.Time) (number int64, reaches bool, err error) {
	err = r.viewChanges(ctx, func(_ *snapshot, b *bbolt.Bucket) error {
		if number = 1; b == nil {
			reaches = true
			return nil
		}
		number = int64(b.Sequence()) + 1
		return eachChange(b, 1, func(change index.Change, _ *collection, _ []byte) error {
			if change.Time.Before(at) {
				reaches = true
				return nil
			}
			number = min(number, change.Number)
			return nil
		})
	})
	return number, reaches, err
}

func changeNumber(key []byte) int64 {
	if len(key) != 8 {
		panic(damage(fmt.Sprintf("the log of changes has the key %x", key)))
	}
	return int64(binary.BigEndian.Uint64(key))
}

func eachChange(b *bbolt.Bucket, from int64, yield func(c index.Change, in *collection, key []byte) error) error {
	if b == nil {
		return nil
	}
	cursor := b.Cursor()
	for k, v := cursor.Seek(binary.BigEndian.AppendUint64(nil, uint64(from))); k != nil; k, v = cursor.Next() {
		v = unseal(sumChanges, k, v)
		if len(v) < 10 || int(v[8]) >= len(collections) || len(v) < 10+int(v[9]) {
			panic(damage(fmt.Sprintf("a change has %d bytes", len(v))))
		}
		c, end := collections[v[8]], 10+int(v[9])
		change := index.Change{Number: changeNumber(k), Type: c.t, Status: string(v[10:end]),
			Time: time.Unix(0, int64(binary.BigEndian.Uint64(v))).UTC()}
		if err := yield(change, c, bytes.Clone(v[end:])); err != nil {
			return err
		}
	}
	return nil
}

// Changed is Store.Changed.
func (k *Kept) Changed(ctx context.Context) (id string, oldest, next int64, err error) {
	r, err := k.replica()
	if err != nil {
		return "", 0, 0, err
	}
	return r.Changed(ctx)
}

// ReadChanges is Store.ReadChanges.
func (k *Kept) ReadChanges(ctx context.Context, from int64, yield func(index.Change) error) error {
	r, err := k.replica()
	if err != nil {
		return err
	}
	return r.ReadChanges(ctx, from, yield)
}

// ChangedSince is Store.ChangedSince.
func (k *Kept) ChangedSince(ctx context.Context, at time.Time) (number int64, reaches bool, err error) {
	r, err := k.replica()
	if err != nil {
		return 0, false, err
	}
	return r.ChangedSince(ctx, at)
}
