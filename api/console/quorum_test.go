package console_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/chain/chaintest"
	"github.com/attestd/attestd/appliance/quorum"
)

// startInQuorum starts a member of a quorum of three: geneva answers, lima is away, and the contract on chain lacks
// lima.
func (r *rig) startInQuorum(t testing.TB) *rig {
	t.Helper()
	geneva, lima := appliance.Address{19: 1}, appliance.Address{19: 2}
	attestor, err := r.admin.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	node := chaintest.New(t)
	contract := node.DeployQuorum(t, 2, attestor.SignerAddress, geneva)
	member := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(quorum.State{SignerAddress: geneva, Version: "1.2.3",
			VerifierKey: "geneva.example/attestd+1a2b3c4d+AQ"})
	}))
	t.Cleanup(member.Close)
	key := filepath.Join(t.TempDir(), "member.key")
	if err := os.WriteFile(key, []byte("attestd_key"), 0o600); err != nil {
		t.Fatal(err)
	}
	return r.startAnother(t, fmt.Sprintf(`journal: { origin: example.com/console }
quorum:
  contract: %q
  threshold: 2
  members:
    - { name: geneva, signer: %q, url: %q, api_key: "file:%s" }
    - { name: lima, signer: %q, url: "http://127.0.0.1:1", api_key: "file:%s" }
chain:
  contracts:
    - { name: usdc, address: %q, rpc: [%q], confirmations: 0 }
`, contract.Address, geneva, member.URL, key, lima, key, chaintest.Contract, node.URL))
}

// The page shows each member and the contract. An appliance that signs alone has no such page.
func TestTheQuorumIsShown(t *testing.T) {
	t.Parallel()
	r := start(t)
	b := r.startInQuorum(t).signedIn(t, "viewer")
	status, _, body := b.get("/quorum")
	for _, want := range []string{
		"geneva", "version 1.2.3", "geneva.example/attestd&#43;1a2b3c4d&#43;AQ", "lima", "connection refused",
		"the contract would refuse attestations",
		"lima: signer 0x0000000000000000000000000000000000000002 is not a member on chain",
		"2 of 3 members must sign", `href="/quorum"`,
	} {
		if status != http.StatusOK || !strings.Contains(body, want) {
			t.Errorf("%d, %q is not shown\n%s", status, want, body)
		}
	}
	alone := r.signedIn(t, "operator")
	if status, _, _ := alone.get("/quorum"); status != http.StatusNotFound {
		t.Errorf("an appliance that signs alone: %d", status)
	}
	if _, _, body := alone.get("/"); strings.Contains(body, "/quorum") {
		t.Error("an appliance that signs alone leads to the page")
	}
}
