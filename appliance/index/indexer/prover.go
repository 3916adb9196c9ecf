package indexer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/rlp"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/chain"
	"github.com/attestd/attestd/appliance/index"
)

// Prover reads proofs of packets from the RPCs of an EVM chain. It believes only the hash of a block that more than
// half of the RPCs give; all else is verified. It is safe for concurrent use.
type Prover struct {
	r    *reader
	now  func() time.Time
	turn chan struct{} // a semaphore of one: requests of a chain never run concurrently

	// The holder of turn owns the fields below.
	identified time.Time
	at         *anchor
	until      time.Time // at is used until then
	failed     error     // of the last request; nil if it succeeded
	rests      time.Time // until then, the chain is not asked again after failed
	pause      time.Duration
	most       int // packets in one request
}

// anchor is the block after which packets are proved.
type anchor struct {
	ProvenBlock
	header *types.Header
}

const (
	anchorAge  = 5 * time.Second // time for which a block is used
	mostProven = 100             // packets in one request
)

// Commitment is a slot of the core contract after a block: of a packet's commitment, or of its receipt.
type Commitment struct {
	Block ProvenBlock
	// Value is CommitmentSent, CommitmentDone, or zero for a packet that was not sent. Of a receipt, it is
	// ReceiptOnly, the commitment of the acknowledgement, or zero for a packet that was not received.
	Value common.Hash

	header         *types.Header
	account, nodes []hexutil.Bytes // the account proof and the storage proof
}

// newProver returns a prover of an EVM chain. It makes no request.
func newProver(c Chain, version string, now func() time.Time) (*Prover, error) {
	nodes, err := dial(c, version)
	if err != nil {
		return nil, fmt.Errorf("chain %s: %w", c.ID, err)
	}
	x := &Indexer{o: Options{Now: now, Log: slog.New(slog.DiscardHandler)}}
	return &Prover{r: newReader(x, c, nodes), now: now, turn: make(chan struct{}, 1), most: mostProven}, nil
}

// commitments returns the values of slots of the core contract after the same recent block. The block is final, or has
// the configured number of confirmations.
//
// Errors: the RPCs are unreachable, disagree on the block, or have no valid proof; ctx's error.
func (p *Prover) commitments(ctx context.Context, slots []common.Hash) (found []Commitment, err error) {
	select {
	case p.turn <- struct{}{}:
		defer func() { <-p.turn }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if p.failed != nil && p.now().Before(p.rests) {
		return nil, p.failed
	}
	defer func() { p.settle(ctx, err) }()
	at, err := p.anchor(ctx)
	if err != nil {
		return nil, err
	}
	for len(slots) > 0 {
		n := min(len(slots), p.most)
		some, err := p.ask(ctx, at, slots[:n])
		switch {
		case err == nil:
			found, slots = append(found, some...), slots[n:]
		case chain.TooLarge(err) && n > 1 && ctx.Err() == nil:
			p.most = n / 2
		default:
			p.at = nil // the RPCs may no longer have the state of the block
			return nil, err
		}
	}
	return found, nil
}

// newest returns the block after which packets are proved.
func (p *Prover) newest(ctx context.Context) (ProvenBlock, error) {
	select {
	case p.turn <- struct{}{}:
		defer func() { <-p.turn }()
	case <-ctx.Done():
		return ProvenBlock{}, ctx.Err()
	}
	if p.failed != nil && p.now().Before(p.rests) {
		return ProvenBlock{}, p.failed
	}
	at, err := p.anchor(ctx)
	if err != nil {
		p.settle(ctx, err)
		return ProvenBlock{}, err
	}
	return at.ProvenBlock, nil
}

// settle lets the chain rest after a failure, twice as long after each further one. Callers do not wait for RPCs that
// do not answer again and again.
func (p *Prover) settle(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}
	p.failed = err
	if err == nil {
		p.pause = 0
		return
	}
	p.pause = min(max(2*p.pause, time.Second), mostWait)
	p.rests = p.now().Add(p.pause)
}

// anchor returns the newest block that a quorum of the RPCs has and that may be read.
func (p *Prover) anchor(ctx context.Context) (*anchor, error) {
	now := p.now()
	if p.at != nil && now.Before(p.until) {
		return p.at, nil
	}
	if now.Sub(p.identified) >= checkEvery {
		if err := p.r.identify(ctx); err != nil {
			return nil, err
		}
		p.identified = now
	}
	number, ok, err := p.r.head(ctx)
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, fmt.Errorf("chain %s has no final block yet", p.r.ID)
	}
	header, err := p.agreedHeader(ctx, number)
	if err != nil {
		return nil, err
	}
	p.at = &anchor{ProvenBlock: ProvenBlock{number, header.Hash()}, header: header}
	p.until = now.Add(anchorAge)
	return p.at, nil
}

// agreedHeader returns the header that more than half of the RPCs give for a block.
func (p *Prover) agreedHeader(ctx context.Context, number uint64) (*types.Header, error) {
	headers := make([]*types.Header, len(p.r.nodes))
	results := p.r.each(func(s *source) (result, error) {
		header, err := s.node.(evmNode).Header(ctx, number)
		headers[slices.Index(p.r.nodes, s)] = header
		return result{}, err
	})
	votes := make(map[common.Hash]int)
	var failures []error
	for i, one := range results {
		if one.err != nil {
			failures = append(failures, fmt.Errorf("%s: %w", p.r.nodes[i].node, one.err))
			continue
		}
		votes[headers[i].Hash()]++
	}
	for _, header := range headers {
		if header != nil && votes[header.Hash()] >= p.r.quorum() {
			return header, nil
		}
	}
	if len(votes) > 1 {
		return nil, fmt.Errorf("the RPCs of chain %s disagree on block %d", p.r.ID, number)
	}
	return nil, errors.Join(failures...)
}

// ask asks the RPCs for a proof, one after the other, until one is valid. RPCs that failed lately come last.
func (p *Prover) ask(ctx context.Context, at *anchor, slots []common.Hash) ([]Commitment, error) {
	nodes, now := slices.Clone(p.r.nodes), p.now()
	slices.SortStableFunc(nodes, func(a, b *source) int {
		return max(a.get().rests.Compare(now), 0) - max(b.get().rests.Compare(now), 0)
	})
	var failures []error
	for _, s := range nodes {
		if state := s.get(); state.foreign != nil {
			failures = append(failures, fmt.Errorf("%s: %w", s.node, state.foreign))
			continue
		}
		found, err := p.askOne(ctx, s, at, slots)
		if err == nil {
			return found, nil
		}
		s.judge(p.now(), err)
		failures = append(failures, fmt.Errorf("%s: %w", s.node, err))
	}
	return nil, errors.Join(failures...)
}

func (p *Prover) askOne(ctx context.Context, s *source, at *anchor, slots []common.Hash) ([]Commitment, error) {
	var answer proofAnswer
	if err := s.node.(evmNode).Proof(ctx, p.r.Core, slots, at.Number, &answer); err != nil {
		return nil, err
	}
	root, err := proveStorage(at.header.Root, p.r.Core, answer.Account)
	if err != nil {
		return nil, err
	}
	if len(answer.Storage) != len(slots) {
		return nil, fmt.Errorf("the answer has %d proofs for %d slots", len(answer.Storage), len(slots))
	}
	found := make([]Commitment, len(slots))
	for i, slot := range slots {
		value, err := proveSlot(root, slot, answer.Storage[i].Proof)
		if err != nil {
			return nil, err
		}
		found[i] = Commitment{Block: at.ProvenBlock, Value: value, header: at.header, account: answer.Account,
			nodes: answer.Storage[i].Proof}
	}
	return found, nil
}

// Verifier checks packets against the chains that they were sent on. It is safe for concurrent use.
type Verifier struct {
	chains map[string]*Prover // by universal chain id; nil for CosmWasm chains, whose proofs are not supported

	mu     sync.Mutex
	failed map[string]string // why chains cannot be read, by universal chain id; guarded by mu
}

// NewVerifier returns a verifier of packets that were sent on these chains. It makes no request. version is attestd's,
// for the User-Agent.
func NewVerifier(chains []Chain, version string) (*Verifier, error) {
	v := &Verifier{chains: make(map[string]*Prover), failed: make(map[string]string)}
	for _, c := range chains {
		if c.isCosmWasm() {
			v.chains[c.ID] = nil
			continue
		}
		p, err := newProver(c, version, time.Now)
		if err != nil {
			return nil, err
		}
		v.chains[c.ID] = p
	}
	return v, nil
}

// Unproven is why a packet's chain does not confirm it.
type Unproven struct {
	Text  string
	waits bool
}

// Error returns the text.
func (u *Unproven) Error() string { return u.Text }

// Temporary reports whether a later check may confirm the packet: its chain cannot be read, or its block is too new.
func (u *Unproven) Temporary() bool { return u.waits }

func contradicted(format string, args ...any) *Unproven {
	return &Unproven{fmt.Sprintf(format, args...), false}
}
func unchecked(format string, args ...any) *Unproven {
	return &Unproven{fmt.Sprintf(format, args...), true}
}

// Check returns for each packet nil if the core contract of its source chain knows it, or an *Unproven. It also checks
// that a packet that is acknowledged or timed out has ended on its chain. If the destination is an EVM chain of
// indexer.chains, its core contract must have the receipt and the acknowledgement that the packet claims.
func (v *Verifier) Check(ctx context.Context, packets []index.Row) []error {
	results := make([]error, len(packets))
	of := make(map[string][]int) // positions by chain
	for i, row := range packets {
		id, _ := row.Text(index.PacketSourceChainColumn)
		if v.chains[id] == nil {
			results[i] = contradicted("its chain %.80q is not an EVM chain of indexer.chains, so it cannot be checked", id)
			continue
		}
		of[id] = append(of[id], i)
	}
	for id, positions := range of {
		rows := make([]index.Row, len(positions))
		for i, at := range positions {
			rows[i] = packets[at]
		}
		found, _, _, err := v.checkOn(ctx, v.chains[id], rows)
		for i, at := range positions {
			switch {
			case err != nil:
				results[at] = unchecked("chain %s cannot be read: %v", id, err)
			case found[i] != nil:
				results[at] = found[i]
			}
		}
	}
	return results
}

// checkOn checks packets of one chain. A nil result confirms a packet, and its commitment proves that. block is the
// block after which it was proved.
//
// Errors: as Prover.commitments.
func (v *Verifier) checkOn(ctx context.Context, p *Prover, rows []index.Row) (results []*Unproven,
	commitments []Commitment, block ProvenBlock, err error) {
	defer func() { v.note(p.r.ID, err) }()
	if block, err = p.newest(ctx); err != nil {
		return nil, nil, block, err
	}
	results, commitments = make([]*Unproven, len(rows)), make([]Commitment, len(rows))
	var asked []int
	var slots []common.Hash
	for i, row := range rows {
		_, hash, err := provenPacketOf(row)
		switch height, heightErr := numberIn(row, sendHeightColumn); {
		case err != nil:
			results[i] = contradicted("%v", err)
		case heightErr == nil && height > block.Number:
			results[i] = unchecked("it was sent in block %d, and block %d of %s is the newest that can be proved",
				height, block.Number, p.r.ID)
		default:
			asked, slots = append(asked, i), append(slots, PacketSlot(hash))
		}
	}
	found, err := p.commitments(ctx, slots)
	if err != nil {
		return nil, nil, block, err
	}
	for i, at := range asked {
		results[at], commitments[at] = compare(rows[at], found[i], p.r.ID), found[i]
		block = found[i].Block
	}
	v.checkReceipts(ctx, rows, results)
	return results, commitments, block, nil
}

// note records whether a chain could be read.
func (v *Verifier) note(id string, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.failed, id)
	if err != nil && !errors.Is(err, context.Canceled) {
		v.failed[id] = err.Error()
	}
}

// Failure returns why chains cannot be read; empty if the last check of each chain succeeded.
func (v *Verifier) Failure() string {
	v.mu.Lock()
	defer v.mu.Unlock()
	var all []string
	for id, text := range v.failed {
		all = append(all, fmt.Sprintf("chain %s: %s", id, text))
	}
	slices.Sort(all)
	return strings.Join(all, "; ")
}

// Prove returns the proof of a packet of an index, and keeps it in the index.
//
// Errors: CodeNotFound if the index does not have the packet or its chain is not configured; the RPCs are unreachable,
// disagree on the block, or have no valid proof; those of the index.
func (v *Verifier) Prove(ctx context.Context, idx index.Index, packet string) (*PacketProof, error) {
	var row index.Row
	err := idx.View(ctx, func(snap index.Snapshot) error {
		rows, err := snap.Packets(ctx, index.PacketQuery{Page: index.Page{Limit: new(int32(1))}, PacketHash: packet})
		if len(rows) > 0 {
			row = rows[0].Clone()
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	if row.IsZero() {
		return nil, appliance.Errorf(appliance.CodeNotFound, "the replica does not have packet %.80q", packet)
	}
	id, _ := row.Text(index.PacketSourceChainColumn)
	p := v.chains[id]
	if p == nil {
		return nil, appliance.Errorf(appliance.CodeNotFound, "chain %.80q is not in indexer.chains", id)
	}
	_, hash, err := provenPacketOf(row)
	if err != nil {
		return nil, appliance.Errorf(appliance.CodeInvalidField, "packet %s: %v", row.Key(), err)
	}
	found, err := p.commitments(ctx, []common.Hash{PacketSlot(hash)})
	if err != nil {
		return nil, appliance.Errorf(appliance.CodeUpstreamUnavailable, "chain %s: %v", id, err)
	}
	proof, err := p.proofOf(row, found[0])
	if err != nil || proof.Value == (common.Hash{}) {
		return proof, err
	}
	return proof, keepProofs(ctx, idx, []*PacketProof{proof})
}

// proofOf returns the proof of a packet whose commitment was found.
func (p *Prover) proofOf(row index.Row, c Commitment) (*PacketProof, error) {
	packet, hash, err := provenPacketOf(row)
	if err != nil {
		return nil, err
	}
	header, err := rlp.EncodeToBytes(c.header)
	if err != nil {
		return nil, err
	}
	return &PacketProof{
		Chain: p.r.ID, Core: p.r.Core, Packet: packet, PacketHash: hash, Slot: PacketSlot(hash), Value: c.Value,
		Block: c.Block, Header: header, AccountProof: c.account, StorageProof: c.nodes,
	}, nil
}

// keepProofs stores proofs in an index, each in place of an earlier one.
func keepProofs(ctx context.Context, idx index.Index, proofs []*PacketProof) error {
	positions := make(map[string]string)
	for _, proof := range proofs {
		text, err := json.Marshal(proof)
		if err != nil {
			return err
		}
		positions[index.ProofPosition(proof.PacketHash.String())] = string(text)
	}
	_, err := idx.Write(ctx, index.Batch{Positions: positions})
	return err
}
