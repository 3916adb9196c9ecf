// Package chain is the watchtower: it follows what verifying contracts on EVM chains redeem, and holds each redemption against the
// journal. One whose hash the journal does not have means that someone else signs with the attestor key.
//
// Each RPC of a contract is read by a feed of its own (feed.go), from its own position: one that lies, is behind or is away hides
// nothing that another tells. What they report is judged together (judge.go). The contract's attestor is compared with the
// appliance's signers (attestor.go).
package chain

import (
	"context"
	"encoding/json"
	"fmt"
	"math/big"
	"time"

	"github.com/google/uuid"

	"github.com/attestd/attestd/appliance"
)

// Contract is a verifying contract that is watched.
type Contract struct {
	Name       string // for people, and for the store
	Address    appliance.Address
	RPCs       []string // URLs, which may hold secrets
	StartBlock uint64   // the first that is read: the one in which the appliance's key became attestor, or an earlier one
	// Confirmations is how many blocks must be on top of one before it is read. Finalized is instead of it: only blocks that the
	// chain calls finalized are read.
	Confirmations uint64
	Finalized     bool
}

// Redemption is an Attested event of a contract: a part, or all, of what was sent to an unspendable address was paid out.
type Redemption struct {
	Contract        string           `json:"contract"` // its name
	Hash            appliance.Digest `json:"hash"`     // of the attestation
	Amount          Amount           `json:"amount"`
	Block           uint64           `json:"block"`
	BlockHash       appliance.Digest `json:"blockHash"`
	Time            time.Time        `json:"time"` // of the block
	TransactionHash appliance.Digest `json:"transactionHash"`
	LogIndex        uint             `json:"logIndex"` // in the block

	// AttestationID is the newest attestation of that hash that the journal had when it was redeemed; nil where it had none.
	AttestationID *uuid.UUID `json:"attestationId"`
	KeyID         string     `json:"keyId,omitempty"` // the API key that asked for it

	Judgement
}

// Judgement is what is thought of a redemption.
type Judgement struct {
	Verdict Verdict   `json:"verdict"`
	Reports []string  `json:"-"` // ids of the RPCs that tell of it
	Open    bool      `json:"-"` // it is looked at again
	Halted  bool      `json:"-"` // attesting was halted because of it, which happens once
	Seen    time.Time `json:"-"` // when an RPC first told of it, by the appliance's clock; zero means not known
}

// ClockTolerance is by how much an attestation's time may be later than the block that redeems it: blocks have whole seconds, and the
// clocks of an appliance and of block producers differ.
const ClockTolerance = 2 * time.Second

// Until returns the time at which an attestation of the redemption's hash is too late to account for it. A signature that is redeemed
// first and attested afterwards was stolen. Both times bound it: the block's, and the one at which the redemption was first seen,
// which a block's timestamp that is ahead does not move.
func (r Redemption) Until() time.Time {
	until := r.Time.Add(ClockTolerance)
	if !r.Seen.IsZero() && r.Seen.Before(until) {
		until = r.Seen
	}
	return until
}

// Verdict is how a redemption was found to be.
type Verdict string

// The verdicts. The empty one means that it is too early to say.
const (
	Known    Verdict = "known"    // the journal had its hash when it was redeemed
	Unknown  Verdict = "unknown"  // the journal had not, and most RPCs tell of the redemption
	Disputed Verdict = "disputed" // the journal had not, and half of the RPCs or fewer tell of it
)

// ID names the redemption, in whatever block its transaction is.
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

// Add returns the sum; what does not fit into 256 bits is cut off.
func (a Amount) Add(b Amount) (sum Amount) {
	n := new(big.Int).Add(new(big.Int).SetBytes(a[:]), new(big.Int).SetBytes(b[:]))
	n.And(n, new(big.Int).Sub(new(big.Int).Lsh(big.NewInt(1), 256), big.NewInt(1))).FillBytes(sum[:])
	return sum
}

// Redeemed is what was redeemed of an attestation, on all contracts.
type Redeemed struct {
	Hash   appliance.Digest `json:"hash"`
	Parts  int              `json:"parts"`
	Amount Amount           `json:"amount"` // of all parts
	Time   time.Time        `json:"time"`   // of the newest
}

// Sum adds up the parts of an attestation, at least one.
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

// Block is a block of a chain, as an RPC tells of it.
type Block struct {
	Number uint64
	Hash   appliance.Digest
	Time   time.Time
}

// Store keeps what was read, by contract and by RPC. It can be rebuilt at any time: what it has is on the chains. All methods are safe
// for concurrent use.
type Store interface {
	// Begin says which contract the name stands for and by which RPCs it is read. What was kept of another address is dropped, and
	// so is what only other RPCs have told. It returns the chain's id, "" where that is not known.
	Begin(name string, address appliance.Address, rpcs []string) (chainID string, err error)
	// SetChain keeps the id of the contract's chain.
	SetChain(name, chainID string) error
	// Position returns the block up to which an RPC was read; found is false where it was not.
	Position(name, rpc string) (at Block, found bool, err error)
	// Anchor returns the highest block that was a position of the RPC and is not above most. Some hundred are kept.
	Anchor(name, rpc string, most uint64) (at Block, found bool, err error)
	// Advance adds what an RPC reports up to a block, which becomes its position.
	Advance(name, rpc string, to Block, found []Redemption) error
	// Rewind takes back what an RPC has reported above a block, which becomes its position; nil takes back all. It returns the
	// redemptions that no RPC reports any more, which are gone.
	Rewind(name, rpc string, to *Block) (undone []Redemption, err error)
	// Alone returns how many redemptions of a contract this RPC alone reports.
	Alone(name, rpc string) (int64, error)
	// Open returns the redemptions of a contract that are to be looked at again.
	Open(name string) ([]Redemption, error)
	// Judge keeps attestation, API key, verdict, Open and Halted of redemptions that are there.
	Judge(name string, judged []Redemption) error
	// Each calls yield with each redemption, by contract and block, until the end or an error of yield's.
	Each(yield func(Redemption) error) error
	// ByHash returns the redemptions of an attestation, on all contracts, by contract and block.
	ByHash(hash appliance.Digest) ([]Redemption, error)
	// Count returns how many redemptions of a contract there are.
	Count(name string) (int64, error)
}

// Journal is what the watchtower asks of an appliance.Journal.
type Journal interface {
	List(ctx context.Context, q appliance.JournalQuery) ([]appliance.Entry, error)
}

// Events takes what an auditor should find in the log. It never blocks.
type Events interface{ Record(e appliance.Event) }

// The events of the watchtower.
const (
	EventUnknownRedemption appliance.EventKind = "unknown_redemption" // a redemption whose hash the journal does not have
	EventDisagreement      appliance.EventKind = "chain_disagreement" // RPCs do not agree on a redemption
	EventHalted            appliance.EventKind = "halted"             // attesting stopped because of one
	EventAttestorMismatch  appliance.EventKind = "attestor_mismatch"  // a contract refuses what is signed here
)

// Status is how the watchtower is.
type Status struct {
	Contracts []ContractStatus `json:"contracts"`
	Halted    bool             `json:"halted"`
}

// ContractStatus is how the watching of a contract is.
type ContractStatus struct {
	Name          string            `json:"name"`
	Address       appliance.Address `json:"address"`
	ChainID       json.Number       `json:"chainId,omitempty"`
	Attestor      *string           `json:"attestor"`      // of the contract, an address, zero while none is set; nil while it is not known
	SignerMatches *bool             `json:"signerMatches"` // whether the contract takes this appliance's signatures; nil while it is not known
	Block         uint64            `json:"block"`         // up to which most of its RPCs were read
	Redemptions   int64             `json:"redemptions"`
	Unknown       int64             `json:"unknown"`  // those that the journal does not have
	Disputed      int64             `json:"disputed"` // of unknown: those on which the RPCs do not agree
	RPCs          []RPCStatus       `json:"rpcs"`
}

// RPCStatus is how the reading from an RPC is.
type RPCStatus struct {
	URL   string `json:"url"` // without what may be secret
	Block uint64 `json:"block"`
	Head  uint64 `json:"head,omitempty"`  // the newest block that it may be read to
	Error string `json:"error,omitempty"` // why it is not read; empty while it is
}
