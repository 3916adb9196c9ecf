package chain

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/ethereum/go-ethereum/crypto"
	"github.com/ethereum/go-ethereum/rpc"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/attest"
)

var (
	selectorAttestor = crypto.Keccak256([]byte("attestor()"))[:4]
	// selectorIsValid is also the magic value for a valid signature (ERC-1271).
	selectorIsValid = crypto.Keccak256([]byte("isValidSignature(bytes32,bytes)"))[:4]
)

// opinions are the answers of a contract's RPCs about its attestor.
type opinions struct {
	mu               sync.Mutex
	of               map[string]opinion // by the RPC's id
	mismatchReported bool               // a mismatch was reported
}

type opinion struct {
	attestor appliance.Address
	matches  bool // the contract accepts our signatures
}

// trials caches a trial signature of each signer, for calls of isValidSignature.
type trials struct {
	mu   sync.Mutex
	made map[appliance.Address]trial
}

type trial struct {
	digest    appliance.Digest
	signature appliance.Signature
}

// of returns the signer's trial signature. The HSM makes it once, because contracts are asked often.
func (t *trials) of(ctx context.Context, s attest.Signer) (trial, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if made, ok := t.made[s.Address()]; ok {
		return made, nil
	}
	digest := appliance.TrialDigest()
	signature, err := s.Sign(ctx, digest)
	if err != nil {
		return trial{}, fmt.Errorf("trial signature: %w", err)
	}
	t.made[s.Address()] = trial{digest, signature}
	return t.made[s.Address()], nil
}

// compareAttestor asks an RPC for a contract's attestor. On an error, the last answer stays.
func (w *Watchtower) compareAttestor(ctx context.Context, f *feed) {
	if w.o.Signers == nil {
		return
	}
	signers := w.o.Signers()
	attestor, err := f.node.attestor(ctx, f.c.Address)
	matches := false
	if err == nil {
		matches, err = w.takesOurs(ctx, f.node, attestor, signers)
	}
	if err != nil {
		f.log.Debug("chain: the contract's attestor cannot be read", "error", err.Error())
		return
	}
	o := &f.c.opinions
	o.mu.Lock()
	if o.of == nil {
		o.of = make(map[string]opinion)
	}
	o.of[f.node.id] = opinion{attestor, matches}
	o.mu.Unlock()
	f.c.noteAttestor(signers)
}

// attestor asks the contract for its attestor.
func (n *node) attestor(ctx context.Context, contract appliance.Address) (a appliance.Address, err error) {
	answer, err := n.call(ctx, "attestor()", contract, selectorAttestor)
	if err != nil {
		return a, err
	}
	if len(answer) != 32 || !bytes.Equal(answer[:12], make([]byte, 12)) {
		return a, fmt.Errorf("attestor(): the answer is not an address: %d bytes", len(answer))
	}
	return appliance.Address(answer[12:]), nil
}

// takesOurs reports whether the attestor accepts our signatures: it is one of the signers, or a contract that accepts
// the first signer's trial signature (ERC-1271). If several appliances sign, it is the contract of their quorum.
func (w *Watchtower) takesOurs(ctx context.Context, n *node, attestor appliance.Address,
	signers []attest.Signer) (bool, error) {
	if w.o.Quorum != (appliance.Address{}) {
		return attestor == w.o.Quorum, nil
	}
	if slices.ContainsFunc(signers, func(s attest.Signer) bool { return s.Address() == attestor }) {
		return true, nil
	}
	has, err := n.hasCode(ctx, attestor)
	if err != nil || !has || len(signers) == 0 {
		return false, err
	}
	limit, cancel := context.WithTimeout(ctx, w.o.CallTimeout)
	defer cancel()
	t, err := w.trials.of(limit, signers[0])
	if err != nil {
		return false, err
	}
	answer, err := n.call(ctx, "isValidSignature()", attestor, isValidCall(t))
	if _, reverted := errors.AsType[rpc.Error](err); reverted {
		return false, nil
	}
	return len(answer) >= 32 && bytes.Equal(answer[:4], selectorIsValid), err
}

// isValidCall encodes the call isValidSignature(digest, r ‖ s ‖ v).
func isValidCall(t trial) []byte {
	word := func(n uint64) []byte { return binary.BigEndian.AppendUint64(make([]byte, 24), n) }
	const length = 65
	call := slices.Concat(selectorIsValid, t.digest[:], word(64), word(length), t.signature.R[:], t.signature.S[:],
		[]byte{t.signature.V})
	return append(call, make([]byte, 96-length)...)
}

// combined combines the answers of the total RPCs. A match needs half of them, a mismatch more than half, whether the
// others answer or not: one RPC of several must not end readiness. known is false if there is neither.
func (o *opinions) combined(total int) (attestor appliance.Address, matches, known bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	yes := 0
	for _, one := range o.of {
		if one.matches {
			yes++
		}
	}
	matches = 2*yes >= total
	for _, one := range o.of {
		if one.matches == matches {
			attestor = one.attestor
		}
	}
	return attestor, matches, matches || 2*(len(o.of)-yes) > total
}

// noteAttestor reports the begin and the end of a mismatch.
func (c *watched) noteAttestor(signers []attest.Signer) {
	attestor, matches, known := c.opinions.combined(len(c.feeds))
	if !known {
		return
	}
	c.opinions.mu.Lock()
	changed := c.opinions.mismatchReported == matches
	c.opinions.mismatchReported = !matches
	c.opinions.mu.Unlock()
	switch {
	case changed && !matches:
		ours := make([]string, len(signers))
		for i, s := range signers {
			ours[i] = s.Address().String()
		}
		c.log.Error("chain: the contract expects another attestor and refuses this appliance's signatures",
			"attestor", attestor.String(), "signers", ours)
		c.w.record(EventAttestorMismatch, map[string]string{"contract": c.Name, "attestor": attestor.String()})
	case changed:
		c.log.Info("chain: the contract accepts this appliance's signatures", "attestor", attestor.String())
	}
}

// Ready returns CodeAttestorMismatch if a contract is known to refuse this appliance's signatures.
func (w *Watchtower) Ready() error {
	for _, c := range w.contracts {
		if attestor, matches, known := c.opinions.combined(len(c.feeds)); known && !matches {
			return appliance.Errorf(appliance.CodeAttestorMismatch, "a contract refuses this appliance's signatures").
				Because(fmt.Errorf("the attestor of contract %s is %s", c.Name, attestor))
		}
	}
	return nil
}

// Inspection is the answer of an RPC about a contract.
type Inspection struct {
	URL      string            // without parts that may be secret
	ChainID  string            // "" on an error
	Attestor appliance.Address // of the contract; zero if Err is set
	Code     bool              // the attestor is a contract, so only a trial signature shows whether it accepts ours
	Err      error
}

// Inspect asks each RPC of a contract for its chain and its attestor. It needs no signer.
func Inspect(ctx context.Context, c Contract, userAgent string) []Inspection {
	all := make([]Inspection, len(c.RPCs))
	for i, shown := range shownURLs(c.RPCs) {
		all[i] = inspect(ctx, c, shown, c.RPCs[i], userAgent)
	}
	return all
}

func inspect(ctx context.Context, c Contract, shown, address, userAgent string) (found Inspection) {
	found.URL = shown
	n, err := newNode(address, shown, defaultCallTimeout, userAgent)
	if err != nil {
		found.Err = err
		return found
	}
	defer n.close()
	if found.ChainID, found.Err = n.chainID(ctx); found.Err != nil {
		return found
	}
	has, err := n.hasCode(ctx, c.Address)
	switch {
	case err != nil:
		found.Err = err
		return found
	case !has:
		found.Err = fmt.Errorf("no contract exists at %s on chain %s", c.Address, found.ChainID)
		return found
	}
	if found.Attestor, found.Err = n.attestor(ctx, c.Address); found.Err == nil {
		found.Code, found.Err = n.hasCode(ctx, found.Attestor)
	}
	return found
}
