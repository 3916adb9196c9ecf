package console_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/attestd/attestd/appliance/chain/chaintest"
	"github.com/attestd/attestd/appliance/chain/comettest"
	"github.com/attestd/attestd/appliance/index/follower/followertest"
)

// startIndexing starts a daemon that reads three chains. One of the three RPCs of ethereum.1337 fails. The only RPC of
// ethereum.1001 fails after the first 200 of its blocks. union.union-1 is read to its head.
func (r *rig) startIndexing(t testing.TB) *rig {
	t.Helper()
	well, long, wasm := chaintest.New(t), chaintest.NewChain(t, 1001), comettest.New(t, "union-1")
	well.Mine(3)
	long.Mine(600)
	failing, partial := chaintest.NewProxy(t, well.URL), chaintest.NewProxy(t, long.URL)
	failing.Answer(func(chaintest.Request) *chaintest.Reply {
		return &chaintest.Reply{Status: http.StatusBadGateway}
	})
	const last = 200
	partial.Answer(func(q chaintest.Request) *chaintest.Reply {
		from, to, ok := q.Blocks()
		switch {
		case !ok || to <= last:
			return nil
		case from <= last:
			return &chaintest.Reply{Error: "query returned more than 10000 results"}
		}
		return &chaintest.Reply{Status: http.StatusServiceUnavailable}
	})
	indexing := r.startAnother(t, fmt.Sprintf(`graphql: { source: chains }
indexer:
  poll_interval: 100ms
  chains:
    - { id: ethereum.1337, rpcs: [%q, %q, %q], core: %q, zkgm: %[4]q, confirmations: 0 }
    - { id: ethereum.1001, rpcs: [%[5]q], core: %[4]q, zkgm: %[4]q, confirmations: 0 }
    - { id: union.union-1, rpcs: [%[6]q], core: %[7]q, zkgm: %[7]q, confirmations: 0 }
`, well.URL, chaintest.NewProxy(t, well.URL).URL, failing.URL, chaintest.Emitter.String(), partial.URL,
		wasm.URL, comettest.Core))
	followertest.Await(t, time.Minute, "the chains are read", func() bool {
		s, err := indexing.admin.IndexerStatus(t.Context())
		return err == nil && s.Chains[0].Begun && s.Chains[0].RPCs[2].Error != "" && s.Chains[1].Indexed == last &&
			s.Chains[1].Error != "" && s.Chains[2].Begun
	})
	return indexing
}

// The page shows each chain as 'attestd indexer status' does. A daemon that reads no chains has no such page.
func TestTheChainsAreShownAsTheyAreRead(t *testing.T) {
	t.Parallel()
	r := start(t)
	b := r.startIndexing(t).signedIn(t, "viewer")
	status, _, body := b.get("/indexer")
	if status != http.StatusOK {
		t.Fatalf("%d: %s", status, body)
	}
	sections := strings.Split(body, "<section")[1:]
	if len(sections) != 3 {
		t.Fatalf("%d chains: %s", len(sections), body)
	}
	for i, wants := range [][]string{
		{"ethereum.1337", `<span class="state warn">read to the head, with a faulty RPC</span>`, "Lag</dt><dd>0 blocks", "Gaps</dt><dd>none",
			"502", "check the URL in indexer.chains, and ask the RPC&#39;s provider", "fails", "answers"},
		{"ethereum.1001", "cannot be read", "cannot be read since block 200", "503", "check rpcs and core in indexer.chains",
			`<progress max="100" value="33"`, "Indexed</dt><dd>block 200", " events/s since the start"},
		{"union.union-1", `<span class="state good">read to the head</span>`, `<span class="state good">answers</span>`},
	} {
		for _, want := range wants {
			if !strings.Contains(sections[i], want) {
				t.Errorf("chain %d: %q is not shown\n%s", i, want, sections[i])
			}
		}
	}
	for path, want := range map[string]string{"/": `href="/indexer"`, "/replica": `href="/indexer">Indexer`} {
		if _, _, body := b.get(path); !strings.Contains(body, want) {
			t.Errorf("%s does not lead to the page", path)
		}
	}
	none := r.signedIn(t, "operator")
	if status, _, _ := none.get("/indexer"); status != http.StatusNotFound {
		t.Errorf("a daemon that reads no chains: %d", status)
	}
	if _, _, body := none.get("/"); strings.Contains(body, "/indexer") {
		t.Error("a daemon that reads no chains leads to the page")
	}
}
