package index

import (
	"encoding/binary"
	"math"
	"time"
)

// The forms of times in packed rows, in addition to formValue and textSame. textSame is the number of an earlier field
// with this time. The base is the row's first time, such as the send time of a packet.
const (
	timeSeconds      = 1 // whole seconds since 1970, 4 bytes little-endian
	timeAfter        = 2 // nanoseconds since the base, 5 bytes little-endian
	timeSecondsAfter = 3 // whole seconds since the base's second, 2 bytes little-endian
)

// Time returns a time field in UTC, and false for null.
func (r Row) Time(f int) (time.Time, bool) {
	n, ok := r.nanoseconds(f)
	if !ok {
		return time.Time{}, false
	}
	return time.Unix(0, n).UTC(), true
}

// Nanoseconds returns a time field as nanoseconds since 1970, and false for null.
func (r Row) Nanoseconds(f int) (int64, bool) { return r.nanoseconds(f) }

func (r *Row) nanoseconds(f int) (int64, bool) {
	form, v := textTag(formValue), r.value(f)
	if r.h != nil {
		form = r.h.position(f).form
	}
	switch {
	case len(v) == 0:
		return 0, false
	case form == formValue:
		return int64(binary.BigEndian.Uint64(v)), true
	case form == textSame:
		return r.nanoseconds(int(v[0]))
	case form == timeSeconds:
		return int64(binary.LittleEndian.Uint32(v)) * 1e9, true
	}
	base, _ := r.nanoseconds(r.t.clock)
	if form == timeSecondsAfter {
		return (base/1e9 + int64(binary.LittleEndian.Uint16(v))) * 1e9, true
	}
	return base + int64(binary.LittleEndian.Uint32(v)) + int64(v[4])<<32, true
}

// appendJSONTime appends a time field as JSON.
func (r *Row) appendJSONTime(dst []byte, f int) []byte {
	n, ok := r.nanoseconds(f)
	if !ok {
		return append(dst, "null"...)
	}
	dst = append(dst, '"')
	dst = time.Unix(0, n).UTC().AppendFormat(dst, time.RFC3339Nano)
	return append(dst, '"')
}

// appendTime appends the time of a plain row's field in the shortest form.
func (r *Row) appendTime(out []byte, f int) (textTag, []byte) {
	n, _ := r.nanoseconds(f)
	for earlier := r.t.clock; earlier < f; earlier++ {
		if r.t.Fields[earlier].Kind == FieldTime {
			if at, ok := r.nanoseconds(earlier); ok && at == n {
				return textSame, append(out, byte(earlier))
			}
		}
	}
	if base, ok := r.nanoseconds(r.t.clock); ok && f > r.t.clock {
		if seconds := n/1e9 - base/1e9; n%1e9 == 0 && 0 <= seconds && seconds <= math.MaxUint16 {
			return timeSecondsAfter, binary.LittleEndian.AppendUint16(out, uint16(seconds))
		}
		if after := uint64(n - base); after < 1<<40 {
			return timeAfter, append(binary.LittleEndian.AppendUint32(out, uint32(after)), byte(after>>32))
		}
	}
	if seconds := n / 1e9; n%1e9 == 0 && 0 <= seconds && seconds <= math.MaxUint32 {
		return timeSeconds, binary.LittleEndian.AppendUint32(out, uint32(seconds))
	}
	return formValue, binary.BigEndian.AppendUint64(out, uint64(n))
}
