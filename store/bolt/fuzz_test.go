package bolt_test

import (
	"bytes"
	"encoding/binary"
	"hash/fnv"
	"reflect"
	"testing"
)

// FuzzFile changes arbitrary bytes of a journal's file. Opening, verifying, reading and appending must end, possibly
// with an error. If Verify finds no damage, the content must be unchanged.
//
// The input is a byte of flags and a list of changes. A change is a length (0 to 7), an offset of three bytes, and the
// bytes. The lowest bits of the flags say whether the meta pages' checksums are corrected, whether a record is
// appended, and whether the file is cut off.
func FuzzFile(f *testing.F) {
	f.Add([]byte{0})
	f.Add([]byte{1, 3, 0, 16, 0, 9, 9, 9})                        // the first meta page's pointer to page 1
	f.Add([]byte{3, 1, 48, 0, 0, 7})                              // the free list moves
	f.Add([]byte{2, 2, 10, 48, 0, 0xff, 0xff, 1, 8, 64, 0, 0x10}) // a page's number of entries, and another page's kind
	f.Add([]byte{4, 0x34, 0x12})
	j := seal(f)
	want := dump(f, j.file)
	f.Fuzz(func(t *testing.T, changes []byte) {
		file, appends := changed(j.file, changes)
		if appends {
			appendTo(t, file, j)
		}
		s, err := j.open(t, file, nil)
		if err != nil {
			return
		}
		report, err := audited(t.Context(), s, nil)
		if err == nil && report.OK() && !reflect.DeepEqual(dump(t, file), want) {
			t.Error("the damage was not found")
		}
		readAll(t, s, j)
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
}

// changed applies the changes to a copy of the file.
func changed(file, changes []byte) (damaged []byte, appends bool) {
	damaged = bytes.Clone(file)
	if len(changes) == 0 {
		return damaged, false
	}
	flags, changes := changes[0], changes[1:]
	if flags&4 != 0 && len(changes) >= 2 {
		damaged = damaged[:(int(binary.LittleEndian.Uint16(changes))*61)%len(damaged)]
		changes = changes[2:]
	}
	for len(changes) >= 4 && len(damaged) > 8 {
		n := min(int(changes[0]&7), len(changes)-4)
		where := int(changes[1]) | int(changes[2])<<8 | int(changes[3])<<16
		copy(damaged[where%len(damaged):], changes[4:4+n])
		changes = changes[4+n:]
	}
	if flags&1 != 0 {
		mendMeta(damaged)
	}
	return damaged, flags&2 != 0
}

// mendMeta corrects the checksums of the two meta pages. Only deliberate damage has valid checksums.
func mendMeta(file []byte) {
	const pageSize, header, checksum = 4096, 16, 72
	for at := 0; at+checksum+8 <= len(file) && at <= pageSize; at += pageSize {
		sum := fnv.New64a()
		sum.Write(file[at+header : at+checksum])
		binary.NativeEndian.PutUint64(file[at+checksum:], sum.Sum64())
	}
}
