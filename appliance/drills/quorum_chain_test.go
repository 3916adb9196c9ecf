package drills

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/chain"
	"github.com/attestd/attestd/appliance/chain/chaintest"
	"github.com/attestd/attestd/appliance/daemontest"
)

// watch gives each member a watchtower that halts.
func (q *quorumRig) watch(node *chaintest.Node) {
	q.Helper()
	for _, m := range q.members {
		m.Configure("ATTESTD_CHAIN_HALT=true", "ATTESTD_CHAIN_POLL_INTERVAL=100ms", fmt.Sprintf(
			`ATTESTD_CHAIN_CONTRACTS=[{"name": "usdc", "rpc": [%q], "address": %q, "start_block": 0, "confirmations": 0}]`,
			node.URL, chaintest.Contract))
		m.restart(q.T)
	}
}

// awaitVerdicts waits until the member has judged its redemptions so.
func (m *quorumMember) awaitVerdicts(t *testing.T, want ...chain.Verdict) {
	t.Helper()
	daemontest.Await(t, fmt.Sprintf("%s judges %v", m.name, want), func() (bool, string) {
		var list struct{ Redemptions []chain.Redemption }
		cmd := m.Command("chain", "redemptions", "--output", "json")
		out, err := cmd.Output()
		var got []chain.Verdict
		if err == nil && json.Unmarshal(out, &list) == nil {
			for _, r := range list.Redemptions {
				got = append(got, r.Verdict)
			}
		}
		return fmt.Sprint(got) == fmt.Sprint(want), fmt.Sprintf("%v\n%s", got, m.Log())
	})
}

// A member that was away finds the redemption of an attestation of the others, and their journals prove it. A
// redemption that no journal has halts every member, although the thief has a member's key.
func TestAThiefWithoutJournalsIsCaughtByAllMembers(t *testing.T) {
	q, node := startQuorum(t, 2), chaintest.New(t)
	a, b, c := q.members[0], q.members[1], q.members[2]
	q.watch(node)
	node.SetAttestor(t, a.signer) // this contract needs one signature only: the watchtower sees the redemptions alone
	c.Kill(t)
	made := q.attests(1, a, a, b)
	node.Redeem(t, made.Attestation, 10)
	c.Start(t)
	a.awaitVerdicts(t, chain.Known)
	b.awaitVerdicts(t, chain.Known)
	c.awaitVerdicts(t, chain.Proven)
	if out := c.Run(t, "chain", "redemptions"); !strings.Contains(out, "at other members") {
		t.Error(out)
	}
	c.Run(t, "chain", "status")
	q.attests(2, c, a, b, c) // and it was not halted

	stolen := appliance.Attestation{Hash: appliance.Digest{1: 0x5e, 31: 1}, SignerAddress: a.signer}
	stolen.Signature = a.Steal(t, stolen.Hash)
	node.Redeem(t, stolen, 1_000)
	for _, m := range q.members {
		last := chain.Known
		if m == c {
			last = chain.Proven
		}
		m.awaitVerdicts(t, last, chain.Unknown)
		if got, err := m.attestAs(t, 3, ""); err != nil || got.status != http.StatusServiceUnavailable ||
			got.Code != appliance.CodeHalted {
			t.Errorf("%s goes on: %v, %s", m.name, err, got.text)
		}
	}
}
