package replica

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/index"
	"github.com/attestd/attestd/store/storetest"
)

// Offsets in bbolt's pages: the kind and the number of entries in each header, and the transaction and freelist of a
// meta page.
const (
	pageKind, pageEntries = 8, 10
	branchPage, leafPage  = 0x01, 0x02

	metaFreelist, metaTransaction = 16 + 32, 16 + 48
)

// damagedReplica opens a file with the given bytes.
func damagedReplica(t *testing.T, text []byte, o Options) (*Store, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "replica.db")
	check(t, os.WriteFile(path, text, 0o600))
	o.Now = func() time.Time { return storetest.ReplicaNow }
	r, err := Open(path, o)
	if err == nil {
		t.Cleanup(r.abandon)
	}
	return r, err
}

// freelistOf returns the offset of a file's freelist page.
func freelistOf(file []byte) int {
	newest := file[:pageSize]
	if other := file[pageSize : 2*pageSize]; binary.NativeEndian.Uint64(
		other[metaTransaction:]) > binary.NativeEndian.Uint64(newest[metaTransaction:]) {
		newest = other
	}
	return int(binary.NativeEndian.Uint64(newest[metaFreelist:])) * pageSize
}

// free returns the numbers of a file's free pages.
func free(file []byte) (ids []uint64) {
	at := freelistOf(file)
	for i := range int(binary.NativeEndian.Uint16(file[at+pageEntries:])) {
		ids = append(ids, binary.NativeEndian.Uint64(file[at+16+8*i:]))
	}
	return ids
}

// A tree must not lead to a free page. It would serve the page's old contents now, and the contents of the next write
// later.
func TestAFreePageInATreeIsDamage(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "replica.db")
	r := openReplica(t, path)
	for _, status := range []string{"sent", "received", "acknowledged"} {
		write(t, r, index.Batch{Rows: carrying(t, 300, status)})
	}
	check(t, r.Close())
	whole := usedPart(t, path)
	freed := free(whole)
	isFree := make(map[int]bool)
	for _, id := range freed {
		isFree[int(id)] = true
	}
	tried := 0
	for at := 2 * pageSize; at < len(whole); at += pageSize {
		if isFree[at/pageSize] || binary.NativeEndian.Uint16(whole[at+pageKind:]) != branchPage {
			continue
		}
		for _, id := range freed {
			if binary.NativeEndian.Uint16(whole[int(id)*pageSize+pageKind:]) != leafPage {
				continue
			}
			tried++
			text := bytes.Clone(whole)
			binary.NativeEndian.PutUint64(text[at+16+8:], id) // the first child
			if _, err := damagedReplica(t, text, Options{ReadOnly: true}); !errors.Is(err, ErrDamaged) {
				t.Errorf("page %d leads to page %d, which is free: opened with %v", at/pageSize, id, err)
			}
			text = bytes.Clone(whole)
			child := binary.NativeEndian.Uint64(text[at+16+8:])
			binary.NativeEndian.PutUint64(text[freelistOf(text)+16:], child)
			if _, err := damagedReplica(t, text, Options{ReadOnly: true}); !errors.Is(err, ErrDamaged) {
				t.Errorf("page %d, to which page %d leads, is free: opened with %v", child, at/pageSize, err)
			}
			break
		}
	}
	if tried == 0 {
		t.Error("the file has no branches, or no leaves that are free")
	}
}

// TestAPageThatHasLostEntriesIsFound removes the last entry from each leaf of a file, in the page header alone.
func TestAPageThatHasLostEntriesIsFound(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "replica.db")
	r := openReplica(t, path)
	fill(t, r, 60)
	records := export(t, r)
	check(t, r.Close())
	whole := usedPart(t, path)
	found := 0
	for at := 2 * pageSize; at < len(whole); at += pageSize {
		entries := binary.NativeEndian.Uint16(whole[at+pageEntries:])
		if binary.NativeEndian.Uint16(whole[at+pageKind:]) != leafPage || entries == 0 {
			continue
		}
		text := bytes.Clone(whole)
		binary.NativeEndian.PutUint16(text[at+pageEntries:], entries-1)
		r, err := damagedReplica(t, text, Options{ReadOnly: true})
		var got []byte
		if err == nil {
			got, err = exported(t, r)
		}
		switch {
		case err != nil:
			found++
		case !bytes.Equal(got, records):
			t.Errorf("page %d has %d entries of %d, and %d bytes of %d are exported", at/pageSize, entries-1, entries,
				len(got), len(records))
		}
	}
	if found < len(collections)+2 { // the rows of each collection, the counts, the tables
		t.Errorf("found in %d pages", found)
	}
}

// exported returns all rows.
func exported(t *testing.T, r *Store) (lines []byte, err error) {
	t.Helper()
	err = r.View(t.Context(), func(s index.Snapshot) error {
		for _, kind := range index.RowTypes {
			if err := s.Each(t.Context(), kind, func(row index.Row) error {
				lines = append(row.AppendLine(lines), '\n')
				return nil
			}); err != nil {
				return err
			}
		}
		return nil
	})
	return lines, err
}

// ordered returns transfers with their packets; both have the same sort_order.
func ordered(t *testing.T, n int) (rows []index.Row) {
	t.Helper()
	for i := range n {
		order, hash := fmt.Sprintf("%08d", 10*i), fmt.Sprintf("0x%064x", i)
		for _, value := range []any{
			index.Packet{SortOrder: order, PacketHash: hash, SourceUniversalChainID: "a.1", DestUniversalChainID: "b.1",
				SendBlockHash: new("0xb1")},
			index.Transfer{SortOrder: order, PacketHash: hash, SourceUniversalChainID: "a.1",
				DestUniversalChainID: "b.1"},
		} {
			row, err := index.NewRow(value)
			check(t, err)
			rows = append(rows, row)
		}
	}
	return rows
}

// orderedReplica returns the path of a closed file with the given rows.
func orderedReplica(t *testing.T, rows []index.Row) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "replica.db")
	r := openReplica(t, path)
	write(t, r, index.Batch{Rows: rows})
	check(t, r.Close())
	return path
}

// If a disk loses the write of a page, its old contents stay: perhaps rows of another type under the same keys.
func TestARowOfAnotherTypeIsDamage(t *testing.T) {
	t.Parallel()
	path := orderedReplica(t, ordered(t, 10))
	db, err := bbolt.Open(path, 0o600, nil)
	check(t, err)
	check(t, db.Update(func(tx *bbolt.Tx) error {
		key, value := tx.Bucket(packets.rows).Cursor().Last()
		return tx.Bucket(transfers.rows).Put(key, value)
	}))
	check(t, db.Close())
	_, err = exported(t, openReplica(t, path))
	if appliance.CodeOf(err) != appliance.CodeReplicaUnavailable {
		t.Errorf("a packet among the transfers: %v", err)
	}
}

// TestARowWithADamagedKeyIsMissed damages the key of a packet that postings refer to. A lookup must report damage, not
// a missing packet: otherwise a writer would insert the packet again.
func TestARowWithADamagedKeyIsMissed(t *testing.T) {
	t.Parallel()
	rows := ordered(t, 10)
	path := orderedReplica(t, rows)
	db, err := bbolt.Open(path, 0o600, nil)
	check(t, err)
	check(t, db.Update(func(tx *bbolt.Tx) error {
		b := tx.Bucket(packets.rows)
		key, value := b.Cursor().Last()
		key, value = bytes.Clone(key), bytes.Clone(value)
		return errors.Join(b.Delete(key), b.Put(append(key[:len(key)-1], 'x'), value))
	}))
	check(t, db.Close())
	whole, err := os.ReadFile(path)
	check(t, err)
	packet, transfer := rows[len(rows)-2], rows[len(rows)-1]
	relation, _ := index.TransferType.Relation("packet")
	view := func(read func(s index.Snapshot) error) func(r *Store) error {
		return func(r *Store) error { return r.View(t.Context(), read) }
	}
	for name, use := range map[string]func(r *Store) error{
		"the packet of a transfer": view(func(s index.Snapshot) error { s.Related(transfer, relation); return nil }),
		"the transfers of a block": view(func(s index.Snapshot) error {
			_, err := s.Transfers(t.Context(), index.TransferQuery{BlockHash: "0xb1"})
			return err
		}),
		"the packet again": func(r *Store) error {
			_, err := r.Write(t.Context(), index.Batch{Rows: []index.Row{packet}})
			return err
		},
	} {
		r, err := damagedReplica(t, whole, Options{})
		check(t, err)
		if err := use(r); appliance.CodeOf(err) != appliance.CodeReplicaUnavailable {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestADamagedKeyBesideACursorHidesNoRows damages the key of each packet of a page in turn, and reads from each of the
// others.
func TestADamagedKeyBesideACursorHidesNoRows(t *testing.T) {
	t.Parallel()
	const rows, limit = 8, 3
	path := orderedReplica(t, ordered(t, rows))
	keys, values := make([][]byte, rows), make([][]byte, rows)
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{ReadOnly: true})
	check(t, err)
	check(t, db.View(func(tx *bbolt.Tx) error {
		n := 0
		return tx.Bucket(packets.rows).ForEach(func(k, v []byte) error {
			keys[n], values[n] = bytes.Clone(k), bytes.Clone(v)
			n++
			return nil
		})
	}))
	check(t, db.Close())
	whole, err := os.ReadFile(path)
	check(t, err)
	found := 0
	for i := range keys {
		for _, first := range []byte{'!', '~'} { // below and above all other keys
			text := bytes.ReplaceAll(whole, append(bytes.Clone(keys[i]), values[i]...),
				append(append([]byte{first}, keys[i][1:]...), values[i]...))
			var r *Store // opened again after damage was found
			for from := range keys {
				for _, direction := range []index.Direction{index.Older, index.Newer} {
					if r == nil {
						r, err = damagedReplica(t, text, Options{ReadOnly: true})
						check(t, err)
					}
					if err := pageIsWhole(t, r, keys, from, direction, limit); errors.Is(err, errDamage) {
						found, r = found+1, nil
					} else if err != nil {
						t.Errorf("with %s damaged: %v", keys[i], err)
					}
				}
			}
		}
	}
	if found < rows {
		t.Errorf("damage was found %d times only", found)
	}
}

// pageIsWhole reads a page of packets from a key on, and checks that no row is missing.
func pageIsWhole(t *testing.T, r *Store, keys [][]byte, from int, direction index.Direction, limit int32) error {
	t.Helper()
	step, want, got := 1, "", ""
	if direction == index.Older {
		step = -1
	}
	for i := from + step; i >= 0 && i < len(keys) && len(want) < int(limit)*len(keys[0]); i += step {
		want += string(keys[i])
	}
	err := r.View(t.Context(), func(s index.Snapshot) error {
		page, err := s.Packets(t.Context(),
			index.PacketQuery{Page: index.Page{Cursor: string(keys[from]), Direction: direction, Limit: &limit}})
		for _, row := range page {
			got += row.SortOrder()
		}
		return err
	})
	switch {
	case err != nil:
		return errDamage
	case got != want:
		return fmt.Errorf("from %s by %d: %s, want %s", keys[from], step, got, want)
	}
	return nil
}
