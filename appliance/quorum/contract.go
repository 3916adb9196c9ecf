package quorum

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/chain"
)

// ContractStatus is the contract on chain, as one RPC shows it, compared with the configuration.
type ContractStatus struct {
	chain.QuorumContract
	Refuses []string `json:"refuses,omitempty"` // differences that make the contract refuse attestations
	Differs []string `json:"differs,omitempty"` // other differences
}

// Matches reports whether members and threshold are those of the configuration.
func (c ContractStatus) Matches() bool { return c.Error == "" && len(c.Refuses)+len(c.Differs) == 0 }

// String describes the comparison in one sentence.
func (c ContractStatus) String() string {
	switch {
	case c.Error != "":
		return "not compared: " + c.Error
	case c.Matches():
		return fmt.Sprintf("%d of %d members must sign, as configured here", c.Threshold, len(c.Members))
	}
	return strings.Join(slices.Concat(c.Refuses, c.Differs), "; ")
}

// Refused reports whether more than half of the RPCs show that the contract refuses attestations. One RPC may lie.
func (s Status) Refused() bool {
	n := 0
	for _, c := range s.OnChain {
		if len(c.Refuses) > 0 {
			n++
		}
	}
	return 2*n > len(s.OnChain)
}

func (q *Quorum) onChain(ctx context.Context) []ContractStatus {
	if q.opts.OnChain == nil {
		return nil
	}
	var all []ContractStatus
	for _, c := range q.opts.OnChain(ctx) {
		all = append(all, q.compare(c))
	}
	return all
}

// compare compares the contract with the configuration. The contract refuses an attestation if a signer is not its
// member, or if fewer members than its threshold have signed. It accepts more than its threshold.
func (q *Quorum) compare(c chain.QuorumContract) ContractStatus {
	s := ContractStatus{QuorumContract: c}
	if c.Error != "" {
		return s
	}
	own := q.opts.Signers()
	if !slices.ContainsFunc(own, func(a appliance.Address) bool { return slices.Contains(c.Members, a) }) {
		s.Refuses = append(s.Refuses, fmt.Sprintf("this appliance's signer %s is not a member on chain", own[0]))
	}
	known := slices.Clone(own)
	for _, m := range q.members {
		known = append(known, m.Signer)
		if !slices.Contains(c.Members, m.Signer) {
			s.Refuses = append(s.Refuses, fmt.Sprintf("%s: signer %s is not a member on chain", m.Name, m.Signer))
		}
	}
	switch t := uint64(q.opts.Threshold); {
	case t < c.Threshold:
		s.Refuses = append(s.Refuses, fmt.Sprintf("the contract wants %d signatures, and quorum.threshold is %d",
			c.Threshold, t))
	case t > c.Threshold:
		s.Differs = append(s.Differs, fmt.Sprintf("the contract wants only %d signatures, and quorum.threshold is %d",
			c.Threshold, t))
	}
	for _, m := range c.Members {
		if !slices.Contains(known, m) {
			s.Differs = append(s.Differs, fmt.Sprintf("%s is a member on chain, and not in quorum.members", m))
		}
	}
	return s
}
