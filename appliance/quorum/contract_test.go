package quorum_test

import (
	"context"
	"log/slog"
	"net/http"
	"testing"
	"time"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/chain"
	"github.com/attestd/attestd/appliance/quorum"
)

func address(n byte) appliance.Address { return appliance.Address{19: n} }

// onChain is the status of a quorum with these answers of the RPCs. This appliance's keys are 1 and 9, the others' 2
// and 3, and 2 of 3 must sign.
func onChain(t *testing.T, rpcs ...chain.QuorumContract) quorum.Status {
	t.Helper()
	q := quorum.New(quorum.Options{
		Threshold: 2, Timeout: time.Minute, Logger: slog.New(slog.DiscardHandler),
		Members: []quorum.Member{
			{Name: "geneva", Signer: address(2), URLs: []string{"http://127.0.0.1:1"}, HTTP: http.DefaultClient},
			{Name: "tokyo", Signer: address(3), URLs: []string{"http://127.0.0.1:1"}, HTTP: http.DefaultClient},
		},
		Signers: func() []appliance.Address { return []appliance.Address{address(1), address(9)} },
		OnChain: func(context.Context) []chain.QuorumContract { return rpcs },
	})
	t.Cleanup(q.Close)
	return q.Status(t.Context())
}

func TestTheContractIsComparedWithTheConfiguration(t *testing.T) {
	t.Parallel()
	all := []appliance.Address{address(3), address(2), address(1)}
	for name, c := range map[string]struct {
		contract         chain.QuorumContract
		refuses, differs int
	}{
		"the same":                {chain.QuorumContract{Members: all, Threshold: 2}, 0, 0},
		"a member is missing":     {chain.QuorumContract{Members: all[1:], Threshold: 2}, 1, 0},
		"our key is missing":      {chain.QuorumContract{Members: all[:2], Threshold: 2}, 1, 0},
		"one more member":         {chain.QuorumContract{Members: append(all, address(4)), Threshold: 2}, 0, 1},
		"more must sign":          {chain.QuorumContract{Members: all, Threshold: 3}, 1, 0},
		"fewer must sign":         {chain.QuorumContract{Members: all, Threshold: 1}, 0, 1},
		"the RPC does not answer": {chain.QuorumContract{Error: "HTTP 503"}, 0, 0},
	} {
		s := onChain(t, c.contract)
		got := s.OnChain[0]
		matches := c.refuses+c.differs == 0 && c.contract.Error == ""
		if len(got.Refuses) != c.refuses || len(got.Differs) != c.differs || got.Matches() != matches ||
			s.Refused() != (c.refuses > 0) {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// One of three RPCs cannot make the contract look as if it refused attestations.
func TestOneRPCDoesNotDecideAboutTheContract(t *testing.T) {
	t.Parallel()
	good := chain.QuorumContract{Members: []appliance.Address{address(1), address(2), address(3)}, Threshold: 2}
	lie := chain.QuorumContract{Threshold: 2}
	if onChain(t, good, lie, good).Refused() || !onChain(t, lie, lie, good).Refused() || onChain(t).Refused() {
		t.Error("the RPCs are not counted")
	}
}
