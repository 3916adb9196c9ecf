package index_test

import (
	"testing"

	"github.com/attestd/attestd/appliance/index"
)

// FuzzPack packs a row until every repeating part is in the dictionary. Each time it must read as the plain row.
func FuzzPack(f *testing.F) {
	for _, row := range append(madeUp(f, 5), unlikely(f)...) {
		if line := row.AppendLine(nil); len(line) < 10_000 {
			f.Add(line)
		}
	}
	full := index.NewPacker(crowded(), nil)
	f.Fuzz(func(t *testing.T, line []byte) {
		row, err := index.ParseLine(line)
		if err != nil || row.Type() != index.PacketType && row.Type() != index.TransferType {
			return
		}
		const shared = 10 // times
		p := index.NewPacker(nil, nil)
		for i := range shared {
			if i == shared/2 {
				p.Learn([]index.Row{row})
			}
			packed := p.Pack(nil, row)
			if i%3 == 0 {
				samePacked(t, p.Row(row.Type(), []byte(row.SortOrder()), packed), row)
			}
			if i < 2 {
				packed = full.Pack(nil, row)
				samePacked(t, full.Row(row.Type(), []byte(row.SortOrder()), packed), row)
			}
		}
	})
}
