// Package chain is the watchtower. It follows the redemptions at verifying contracts on EVM chains and looks each one
// up in the journal. If the journal lacks its hash, someone else signs with the attestor key.
//
// A feed (feed.go) reads each RPC of a contract from its own position, so that an RPC that lies, lags or fails hides
// nothing that another one reports. judge.go judges the reports of all RPCs. attestor.go compares the contract's
// attestor with the appliance's signers.
package chain

import (
	"context"
	"encoding/json"
	"fmt"
	"math/big"
	"time"

	"github.com/google/uuid"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/journal"
)

// Contract is a watched verifying contract.
type Contract struct {
	Name    string // for people, and for the store
	Address appliance.Address
	RPCs    []string // URLs, which may contain secrets
	// the first block to read: the one in which the appliance's key became attestor, or an earlier one
	StartBlock uint64
	// Confirmations is the number of blocks that must follow a block before it is read. With Finalized, only finalized
	// blocks are read instead.
	Confirmations uint64
	Finalized     bool
}

// Redemption is an Attested event of a contract. It pays out all or a part of the amount at an unspendable address.
type Redemption struct {
	Contract        string           `json:"contract"` // its name
	Hash            appliance.Digest `json:"hash"`     // of the attestation
	Amount          Amount           `json:"amount"`
	Block           uint64           `json:"block"`
	BlockHash       appliance.Digest `json:"blockHash"`
	Time            time.Time        `json:"time"` // of the block
	TransactionHash appliance.Digest `json:"transactionHash"`
	LogIndex        uint             `json:"logIndex"` // in the block

	// AttestationID is the newest attestation of that hash in the journal at the time of the redemption, or nil.
	AttestationID *uuid.UUID `json:"attestationId"`
	KeyID         string     `json:"keyId,omitempty"` // the API key that asked for it

	Judgement
}

// Judgement is the state of a redemption.
type Judgement struct {
	Verdict Verdict   `json:"verdict"`
	Reports []string  `json:"-"` // ids of the RPCs that report it; from Scan, their URLs
	Open    bool      `json:"-"` // it will be judged again
	Halted  bool      `json:"-"` // it has halted attesting, which it does once
	Seen    time.Time `json:"-"` // when an RPC first reported it, by the appliance's clock; zero if unknown
}

// ClockTolerance is how much later than the redeeming block an attestation's time may be. Block times are whole
// seconds, and clocks differ.
const ClockTolerance = 2 * time.Second

// Until returns the time before which an attestation must have been made to explain the redemption. A signature that is
// attested after its redemption was stolen. The result is bounded by the block's time and by the time of the first
// report, which a block's timestamp in the future cannot move.
func (r Redemption) Until() time.Time {
	until := r.Time.Add(ClockTolerance)
	if !r.Seen.IsZero() && r.Seen.Before(until) {
		until = r.Seen
	}
	return until
}

// Verdict is the judgement on a redemption.
type Verdict string

// The verdicts. An empty verdict means that it is too early.
const (
	Known Verdict = "known" // the journal had its hash at that time
	// Unknown: the journal lacked it, and most RPCs report the redemption. Of a quorum, also too few of the other
	// journals had it.
	Unknown  Verdict = "unknown"
	Disputed Verdict = "disputed" // the journal lacked it, and half of the RPCs or fewer report the redemption
	// Of a quorum, if this journal lacked it.
	Proven   Verdict = "proven"   // enough other members have proved that their journals had it
	Unproven Verdict = "unproven" // too few members have proved it or denied it
)

// IsUnknown reports whether the redemption is unknown, disputed or unproven.
func (j Judgement) IsUnknown() bool {
	return j.Verdict == Unknown || j.Verdict == Disputed || j.Verdict == Unproven
}

// ID identifies the redemption, also after a reorganisation.
func (r Redemption) ID() string {
	return r.Contract + " " + r.TransactionHash.String() + " " + r.Hash.String()
}

// Amount is an unsigned integer of 256 bits, big-endian. Its text form is decimal.
type Amount [32]byte

// String returns the decimal digits.
func (a Amount) String() string { return new(big.Int).SetBytes(a[:]).String() }

// MarshalText returns the decimal digits.
func (a Amount) MarshalText() ([]byte, error) { return []byte(a.String()), nil }

// UnmarshalText reads decimal digits.
func (a *Amount) UnmarshalText(text []byte) error {
	n, ok := new(big.Int).SetString(string(text), 10)
	if !ok || n.Sign() < 0 || n.BitLen() > 256 {
		return fmt.Errorf("amount: %q is not a whole number of at most 256 bits", text)
	}
	n.FillBytes(a[:])
	return nil
}

// Add returns the sum modulo 2^256.
func (a Amount) Add(b Amount) (sum Amount) {
	n := new(big.Int).Add(new(big.Int).SetBytes(a[:]), new(big.Int).SetBytes(b[:]))
	n.And(n, new(big.Int).Sub(new(big.Int).Lsh(big.NewInt(1), 256), big.NewInt(1))).FillBytes(sum[:])
	return sum
}

// Redeemed is the total redeemed of an attestation, on all contracts.
type Redeemed struct {
	Hash   appliance.Digest `json:"hash"`
	Parts  int              `json:"parts"`
	Amount Amount           `json:"amount"` // of all parts
	Time   time.Time        `json:"time"`   // of the newest
}

// Sum adds the parts of an attestation, of which there must be at least one.
func Sum(parts []Redemption) Redeemed {
	sum := Redeemed{Hash: parts[0].Hash, Parts: len(parts)}
	for _, part := range parts {
		sum.Amount = sum.Amount.Add(part.Amount)
		if part.Time.After(sum.Time) {
			sum.Time = part.Time
		}
	}
	return sum
}

// Block is a block as reported by an RPC.
type Block struct {
	Number uint64
	Hash   appliance.Digest
	Time   time.Time
}

// Store stores the reports, by contract and RPC. It can be rebuilt from the chains. All methods are safe for concurrent
// use.
type Store interface {
	// Begin sets the address and the RPCs of a contract's name. It drops the reports about another address, and those
	// of removed RPCs. It returns the chain ID, "" if unknown.
	Begin(name string, address appliance.Address, rpcs []string) (chainID string, err error)
	// SetChain stores the ID of the contract's chain.
	SetChain(name, chainID string) error
	// Position returns the block up to which an RPC was read. found is false if no block was read.
	Position(name, rpc string) (at Block, found bool, err error)
	// Anchor returns the highest earlier position of the RPC that is not above most. About a hundred are stored.
	Anchor(name, rpc string, most uint64) (at Block, found bool, err error)
	// Advance adds the reports of an RPC up to a block, which becomes its position.
	Advance(name, rpc string, to Block, found []Redemption) error
	// Rewind removes the reports of an RPC above a block, which becomes its position; nil removes all. It removes and
	// returns the redemptions that no RPC reports any more.
	Rewind(name, rpc string, to *Block) (undone []Redemption, err error)
	// Alone returns the number of redemptions of a contract that only this RPC reports.
	Alone(name, rpc string) (int64, error)
	// Open returns the redemptions of a contract that must be judged again.
	Open(name string) ([]Redemption, error)
	// SetVerdicts stores attestation, API key, verdict, Open and Halted of existing redemptions.
	SetVerdicts(name string, judged []Redemption) error
	// Each calls yield with each redemption, ordered by contract and block, until yield returns an error.
	Each(yield func(Redemption) error) error
	// ByHash returns the redemptions of an attestation on all contracts, ordered by contract and block.
	ByHash(hash appliance.Digest) ([]Redemption, error)
	// Count returns the number of redemptions of a contract.
	Count(name string) (int64, error)
}

// Journal is the part of journal.Journal that the watchtower needs.
type Journal interface {
	List(ctx context.Context, q journal.Query) ([]journal.Entry, error)
}

// Events records events. It never blocks.
type Events interface{ Record(e journal.Event) }

// The events of the watchtower.
const (
	EventUnknownRedemption journal.EventKind = "unknown_redemption" // the journal lacks the hash of a redemption
	EventDisagreement      journal.EventKind = "chain_disagreement" // RPCs do not agree on a redemption
	// too few members of a quorum answer whether their journals have a redemption
	EventUnproven journal.EventKind = "unproven_redemption"
	// attesting stopped because of an unknown redemption
	EventHalted           journal.EventKind = "halted"
	EventAttestorMismatch journal.EventKind = "attestor_mismatch" // a contract refuses this appliance's signatures
)

// Status is the state of the watchtower.
type Status struct {
	Contracts []ContractStatus `json:"contracts"`
	Halted    bool             `json:"halted"`
}

// ContractStatus is the state of a watched contract.
type ContractStatus struct {
	Name    string            `json:"name"`
	Address appliance.Address `json:"address"`
	ChainID json.Number       `json:"chainId,omitempty"`
	// address of the attestor, zero if none is set; nil if unknown
	Attestor *string `json:"attestor"`
	// the contract accepts this appliance's signatures; nil if unknown
	SignerMatches *bool  `json:"signerMatches"`
	Block         uint64 `json:"block"` // highest block that most of its RPCs have read up to
	Redemptions   int64  `json:"redemptions"`
	Unknown       int64  `json:"unknown"`  // redemptions that the journal lacks
	Disputed      int64  `json:"disputed"` // the part of unknown on which the RPCs do not agree
	// Of a quorum: the part of unknown about which too few members answer.
	Unproven int64       `json:"unproven,omitempty"`
	RPCs     []RPCStatus `json:"rpcs"`
}

// RPCStatus is the state of an RPC.
type RPCStatus struct {
	URL   string `json:"url"` // without parts that may be secret
	Block uint64 `json:"block"`
	Head  uint64 `json:"head,omitempty"`  // the newest block that may be read
	Error string `json:"error,omitempty"` // why the RPC is not read; may be empty
}
