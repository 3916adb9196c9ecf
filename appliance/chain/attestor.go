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
)

var (
	selectorAttestor = crypto.Keccak256([]byte("attestor()"))[:4]
	// selectorIsValid is also what the function returns for a good signature (ERC-1271).
	selectorIsValid = crypto.Keccak256([]byte("isValidSignature(bytes32,bytes)"))[:4]
)

// opinions are what the RPCs of a contract say of its attestor.
type opinions struct {
	mu   sync.Mutex
	of   map[string]opinion // by the RPC's id
	told bool               // that the attestor is another
}

type opinion struct {
	attestor appliance.Address
	matches  bool // the contract takes a signature of ours
}

// trials are signatures by which contracts are asked whether they take them, one for each signer.
type trials struct {
	mu   sync.Mutex
	made map[appliance.Address]trial
}

type trial struct {
	digest    appliance.Digest
	signature appliance.Signature
}

// of returns the signer's trial. Each is made once: a contract on chain is asked often, and the HSM has better to do.
func (t *trials) of(ctx context.Context, s appliance.Signer) (trial, error) {
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

// compareAttestor asks an RPC for a contract's attestor. What cannot be found out leaves what was known before.
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
		f.log.Debug("chain: the contract's attestor is not known", "error", err.Error())
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

// takesOurs says whether a signature of ours is the attestor's: the attestor is one of the signers, or a contract that takes a trial
// of the first (ERC-1271).
func (w *Watchtower) takesOurs(ctx context.Context, n *node, attestor appliance.Address, signers []appliance.Signer) (bool, error) {
	if slices.ContainsFunc(signers, func(s appliance.Signer) bool { return s.Address() == attestor }) {
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

// isValidCall is the call isValidSignature(digest, r ‖ s ‖ v).
func isValidCall(t trial) []byte {
	word := func(n uint64) []byte { return binary.BigEndian.AppendUint64(make([]byte, 24), n) }
	const length = 65
	call := slices.Concat(selectorIsValid, t.digest[:], word(64), word(length), t.signature.R[:], t.signature.S[:], []byte{t.signature.V})
	return append(call, make([]byte, 96-length)...)
}

// combined is what the RPCs say, total of them: half are enough to say that ours are taken, and more than half must say that they are not,
// whether the others answer or not. Readiness is not for a single RPC of several to end. known is false while neither is so.
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

// noteAttestor tells when the contract begins to refuse what is signed here, and when that ends.
func (c *watched) noteAttestor(signers []appliance.Signer) {
	attestor, matches, known := c.opinions.combined(len(c.feeds))
	if !known {
		return
	}
	c.opinions.mu.Lock()
	changed := c.opinions.told == matches
	c.opinions.told = !matches
	c.opinions.mu.Unlock()
	switch {
	case changed && !matches:
		ours := make([]string, len(signers))
		for i, s := range signers {
			ours[i] = s.Address().String()
		}
		c.log.Error("chain: the contract's attestor is not this appliance's signer: it refuses what is signed here", "attestor", attestor.String(), "signers", ours)
		c.w.record(EventAttestorMismatch, map[string]string{"contract": c.Name, "attestor": attestor.String()})
	case changed:
		c.log.Info("chain: the contract takes this appliance's signatures", "attestor", attestor.String())
	}
}

// Ready returns nil unless a contract is known to refuse what this appliance signs; else its error has CodeAttestorMismatch.
func (w *Watchtower) Ready() error {
	for _, c := range w.contracts {
		if attestor, matches, known := c.opinions.combined(len(c.feeds)); known && !matches {
			return appliance.Errorf(appliance.CodeAttestorMismatch, "a contract refuses what is signed here").
				Because(fmt.Errorf("the attestor of contract %s is %s", c.Name, attestor))
		}
	}
	return nil
}

// Inspection is what an RPC says of a contract, asked once.
type Inspection struct {
	URL      string            // without what may be secret
	ChainID  string            // "" where it could not be asked
	Attestor appliance.Address // of the contract; zero where Err is set
	Code     bool              // the attestor is a contract itself, which takes a trial signature to ask
	Err      error
}

// Inspect asks each RPC of a contract for its chain and its attestor: for who has no signer to try.
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
		found.Err = fmt.Errorf("there is no contract at %s on chain %s", c.Address, found.ChainID)
		return found
	}
	if found.Attestor, found.Err = n.attestor(ctx, c.Address); found.Err == nil {
		found.Code, found.Err = n.hasCode(ctx, found.Attestor)
	}
	return found
}
