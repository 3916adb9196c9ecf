package follower

import (
	"fmt"
	"strings"
	"testing"

	"github.com/attestd/attestd/appliance/index"
)

// A batch is bounded by its row count, and by its bytes if the rows are large.
func TestABatchIsBounded(t *testing.T) {
	for _, c := range []struct {
		data string
		most int // packets
	}{{"", batchRows}, {strings.Repeat("ab", 1<<20), 8}} {
		in := New(Options{}).newIngest()
		n := 0
		for ; !in.full(); n++ {
			row, err := index.NewRow(index.Packet{
				SortOrder: fmt.Sprint(n), PacketHash: fmt.Sprint(n), SourceUniversalChainID: "a.1",
				DestUniversalChainID: "b.1", Data: new("0x" + c.data),
			})
			if err != nil {
				t.Fatal(err)
			}
			in.addPacket(&packet{row: row})
		}
		if n != c.most {
			t.Errorf("with %d bytes each, %d packets are a batch, want %d", len(c.data)/2, n, c.most)
		}
	}
}
