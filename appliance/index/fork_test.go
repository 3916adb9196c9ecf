package index_test

import (
	"bytes"
	"sync"
	"testing"

	"github.com/attestd/attestd/appliance/index"
)

// Rows packed concurrently read as before, and texts that any fork has seen are shared from the next round on.
func TestForksPackTogether(t *testing.T) {
	t.Parallel()
	rows := append(unlikely(t), madeUp(t, 800)...)
	p := index.NewPacker(nil, nil)
	samples := [][]byte{p.Learn(rows[:16])}
	forks := []*index.Packer{p.Fork(), p.Fork(), p.Fork()}
	packed := make([][]byte, len(rows))
	for half := range 2 {
		var working sync.WaitGroup
		from, to := half*len(rows)/2, (half+1)*len(rows)/2
		for n, fork := range forks {
			working.Go(func() {
				for i := from + n; i < to; i += len(forks) {
					packed[i] = fork.Pack(nil, rows[i])
				}
			})
		}
		working.Wait()
		p.Join(forks...)
	}
	again := index.NewPacker(p.Texts(0), samples)
	if last := len(rows) - 1; len(p.Pack(nil, rows[last])) != len(p.Fork().Pack(nil, rows[last])) ||
		len(p.Texts(0)) < 50 {
		t.Errorf("%d texts are shared, or a fork does not share them", len(p.Texts(0)))
	}
	for i, row := range rows {
		if got := again.Row(row.Type(), []byte(row.SortOrder()), packed[i]); !bytes.Equal(got.Bytes(), row.Bytes()) {
			t.Errorf("%s %s has other bytes", row.Type().Name, row.Key())
		}
	}
}
