package follower_test

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/attestd/attestd/api/graphql"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/index"
	"github.com/attestd/attestd/appliance/index/follower"
)

// FuzzAnswer checks that the reader survives any answer. It returns valid rows, no more than requested, or an error
// that blames the upstream.
func FuzzAnswer(f *testing.F) {
	const limit = 3
	for _, row := range []string{goodPacket, `{"sort_order":5}`, `null`, `[{}]`} {
		f.Add(fmt.Appendf(nil,
			`{"p0":[%s,%[1]s],"p1":[%s],"p2":[{"universal_chain_id":"a.1","rpcs":[{"url":"x"}]}],"n":[{"name":"total_packets","value":"3"}]}`, row, goodTransfer))
	}
	f.Add([]byte(
		`{"p0":[],"p1":[],"p2":[{"universal_chain_id":"a","features":[null],"status":{"timestamp":"x"}}],"n":[]}`))
	s := newServer(f, 1, graphql.Options{})
	f.Fuzz(func(t *testing.T, data []byte) {
		answers, _, _, err := reader(t, canned{s, string(data)}).Fetch(t.Context(),
			follower.LookUp(index.PacketType, "0x05"), follower.Page(index.TransferType, "", index.Older, limit),
			follower.Page(index.ChainType, "", index.Older, limit))
		if err != nil {
			if appliance.CodeOf(err) != appliance.CodeUpstreamUnavailable {
				t.Fatalf("%s: %v", data, err)
			}
			return
		}
		if n := len(answers[1].Rows) + len(answers[1].Bad); n > limit {
			t.Fatalf("%d rows were answered, %d asked for", n, limit)
		}
		for _, a := range answers {
			for _, row := range a.Rows {
				if again, err := index.ParseLine(row.AppendLine(nil)); err != nil ||
					!bytes.Equal(again.Bytes(), row.Bytes()) {
					t.Fatalf("%s: %v", row.AppendLine(nil), err)
				}
			}
		}
	})
}
