package appliance

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

// Journal is the attestation log: an append-only Merkle tree (RFC 6962 hashing) whose leaves are records, and events.
// All methods are safe for concurrent use. Where the storage fails, methods return CodeJournalUnavailable.
type Journal interface {
	// Append sets the record's Time and Salt, makes it the next leaf and returns when leaf, tree and checkpoint
	// are synced to disk. Where the API key has used the record's idempotency key before, nothing is appended:
	// the earlier entry is returned, and replayed is true. A record of an API key that was revoked before, or has expired, is not
	// appended: the error is CodeAPIKeyRevoked or CodeAPIKeyExpired. Once Keys.Revoke has returned, none is.
	//
	// Each condition is asked about a record that would be appended, in the transaction that would append it; an error of its is
	// that of Append, and nothing is appended.
	//
	// When ctx ends first the error is CodeTimeout, and the record may or may not have been appended.
	Append(ctx context.Context, r Record, conditions ...Condition) (e Entry, replayed bool, err error)
	// Past answers what a Condition asks, as of now: to refuse early what Append would refuse.
	Past(ctx context.Context, q PastQuery) (Past, error)
	// AppendEvent makes the event the next leaf and returns as Append does. It sets the event's Time, and its ID and Salt where it has
	// none. An event whose ID is in the journal is not appended again: the earlier entry is returned, so that one of which it is not
	// known whether it was appended can be tried again. EventLogContinued is refused: only a log's first leaf is that.
	AppendEvent(ctx context.Context, e Event) (Entry, error)
	// Ready returns nil when Append can be expected to succeed: storage open, disk not full.
	Ready(ctx context.Context) error
	// ByID returns the entry of an attestation or an event, or CodeNotFound.
	ByID(ctx context.Context, id uuid.UUID) (Entry, error)
	// ByIdempotencyKey returns the entry that an API key made under an idempotency key, or CodeNotFound.
	ByIdempotencyKey(ctx context.Context, keyID, idempotencyKey string) (Entry, error)
	// List returns entries that match, newest first.
	List(ctx context.Context, q JournalQuery) ([]Entry, error)
	// Entries calls yield with each entry from index first on, in order, until the end or an error of yield's.
	Entries(ctx context.Context, first int64, yield func(Entry) error) error
	// Checkpoint returns the newest signed checkpoint, a C2SP tlog-checkpoint. It covers every entry that
	// Append has returned.
	Checkpoint(ctx context.Context) ([]byte, error)
	// Prove returns the proof that the entry is in the tree of the newest checkpoint, or CodeNotFound.
	Prove(ctx context.Context, index int64) (InclusionProof, error)
	// Tile returns the hashes of a tile of height 8 (C2SP tlog-tiles), or CodeNotFound where the tree is
	// smaller. It serves levels of hashes, never entries.
	Tile(ctx context.Context, t tlog.Tile) ([]byte, error)
	// Verify checks everything the journal holds and reports each damage it finds; see Audit. The error is only
	// for what stopped it.
	Verify(ctx context.Context, opts VerifyOptions) (AuditReport, error)
}

// Condition decides whether a record is appended, in the transaction that would append it, on what the journal has there: two records
// that come at once do not both find the room for one. It is asked about new records only, never about a replay.
type Condition interface {
	// Asks returns what must be known of the journal about a record with that Time. It may be asked again, for another.
	Asks(r Record) PastQuery
	// Decide returns nil, or the error with which Append ends. It is called after Asks, with the same record.
	Decide(r Record, past Past) error
}

// PastQuery asks what the journal has that decides on a record. Its zero value asks nothing.
type PastQuery struct {
	KeyID       string      // whose attestations are counted
	Since       []time.Time // from each of these times on
	Unspendable *Address    // whose first attestation is wanted
}

// Empty says whether nothing is asked.
func (q PastQuery) Empty() bool { return len(q.Since) == 0 && q.Unspendable == nil }

// Past is what the journal has.
type Past struct {
	Counts []int64 // of attestations, one for each PastQuery.Since
	First  *Record // of the unspendable address; nil where there is none
}

// Entry is a leaf in its place: an attestation's record or an event.
type Entry struct {
	Index  int64  `json:"index"` // from 0
	Record Record `json:"record,omitzero"`
	Event  *Event `json:"event,omitempty"` // nil for an attestation; else Record is zero
	Leaf   []byte `json:"-"`               // the bytes in the tree, see EncodeLeaf and EncodeEvent
}

// WithoutAddresses is the entry as those may see it who may not know who was attested to whom: without both addresses, without the hash, the
// leaf and its salt, which have them or confirm a guess, and without the signature, which is what the contract on chain asks for.
func (e Entry) WithoutAddresses() Entry {
	e.Leaf = nil
	e.Record.Request, e.Record.Hash, e.Record.Signature = Request{}, Digest{}, Signature{}
	e.Record.Salt, e.Record.IdempotencyKey = Salt{}, ""
	if e.Event != nil {
		event := *e.Event
		event.Salt, event.Details = Salt{}, maps.Clone(event.Details)
		delete(event.Details, DetailUnspendable)
		delete(event.Details, DetailBeneficiary)
		e.Event = &event
	}
	return e
}

// JournalQuery selects entries. Zero members do not restrict.
type JournalQuery struct {
	KeyID       string   // only attestations that this API key asked for
	Hash        *Digest  // only attestations of this hash
	Unspendable *Address // only attestations of this unspendable address

	From   time.Time // inclusive
	Until  time.Time // exclusive
	Before int64     // only indexes below this, for the next page; zero means from the newest
	Limit  int       // at most this many; zero means DefaultListed, and more than MaxListed means that

	AttestationsOnly bool // no events
	EventsOnly       bool // no attestations
}

// How many entries a JournalQuery selects.
const (
	DefaultListed = 100
	MaxListed     = 1000
)

// Size returns how many entries the query selects at most.
func (q JournalQuery) Size() int {
	if q.Limit <= 0 {
		return DefaultListed
	}
	return min(q.Limit, MaxListed)
}

// Wants says whether the query selects an entry, wherever that stands and however many there are.
func (q JournalQuery) Wants(e Entry) bool {
	if at := e.Time(); at.Before(q.From) || !q.Until.IsZero() && !at.Before(q.Until) {
		return false
	}
	if e.Event != nil {
		return !q.AttestationsOnly && q.KeyID == "" && q.Hash == nil && q.Unspendable == nil
	}
	r := e.Record
	return !q.EventsOnly && (q.KeyID == "" || r.KeyID == q.KeyID) &&
		(q.Hash == nil || r.Hash == *q.Hash) && (q.Unspendable == nil || r.UnspendableAddress == *q.Unspendable)
}

// InclusionProof shows that a leaf is in the tree of a signed checkpoint (RFC 6962, section 2.1.1).
type InclusionProof struct {
	Index      int64    `json:"index"`
	TreeSize   int64    `json:"treeSize"`
	LeafHash   []byte   `json:"leafHash"`   // SHA-256(0x00 ‖ leaf)
	Hashes     [][]byte `json:"hashes"`     // from the leaf's sibling up, 32 bytes each
	Checkpoint string   `json:"checkpoint"` // C2SP signed note
}

// Verify checks the proof for a leaf against the log's key.
func (p InclusionProof) Verify(leaf []byte, verifier note.Verifier) error {
	tree, err := OpenCheckpoint([]byte(p.Checkpoint), verifier)
	if err != nil {
		return err
	}
	if tree.N != p.TreeSize {
		return fmt.Errorf("the checkpoint is of size %d, the proof of %d", tree.N, p.TreeSize)
	}
	proof := make(tlog.RecordProof, len(p.Hashes))
	for i, h := range p.Hashes {
		if len(h) != tlog.HashSize {
			return fmt.Errorf("hash %d of the proof has %d bytes", i, len(h))
		}
		proof[i] = tlog.Hash(h)
	}
	return tlog.CheckRecord(proof, tree.N, tree.Hash, p.Index, tlog.RecordHash(leaf))
}

// String returns the proof as a C2SP tlog-proof, the file that stands beside what it proves.
func (p InclusionProof) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "c2sp.org/tlog-proof@v1\nindex %d\n", p.Index)
	for _, h := range p.Hashes {
		b.WriteString(base64.StdEncoding.EncodeToString(h) + "\n")
	}
	return b.String() + "\n" + p.Checkpoint
}

// EncodeLeaf returns a record's bytes in the tree: compact JSON, members in the order of Record, no newline. The
// bytes are kept as they are and never made again, so a line of `attestd log export` is a leaf.
//
// It is what json.Marshal returns but for the signature's bytes, which r, s and v are, written out because this is on the way of
// every attestation.
func EncodeLeaf(r Record) ([]byte, error) {
	b := make([]byte, 0, 768)
	b = append(append(append(b, `{"id":"`...), r.ID.String()...), `","hash":"0x`...)
	b = append(hex.AppendEncode(b, r.Hash[:]), `","signature":{"r":"0x`...)
	b = append(hex.AppendEncode(b, r.Signature.R[:]), `","s":"0x`...)
	b = append(hex.AppendEncode(b, r.Signature.S[:]), `","v":`...)
	b = append(strconv.AppendUint(b, uint64(r.Signature.V), 10), `},"signerAddress":"`...)
	b = append(r.SignerAddress.appendText(b), `","unspendableAddress":"`...)
	b = append(r.UnspendableAddress.appendText(b), `","beneficiary":"`...)
	b = append(r.Beneficiary.appendText(b), `","scheme":`...)
	b = appendJSON(b, r.Scheme)
	if r.Domain != nil {
		domain, err := json.Marshal(r.Domain)
		if err != nil {
			return nil, fmt.Errorf("record: %w", err)
		}
		b = append(append(b, `,"domain":`...), domain...)
	}
	b = appendJSON(append(b, `,"keyId":`...), r.KeyID)
	if r.IdempotencyKey != "" {
		b = appendJSON(append(b, `,"idempotencyKey":`...), r.IdempotencyKey)
	}
	when, err := r.Time.UTC().MarshalJSON()
	if err != nil {
		return nil, fmt.Errorf("record: %w", err)
	}
	b = append(append(append(b, `,"time":`...), when...), `,"salt":"`...)
	return append(hex.AppendEncode(b, r.Salt[:]), `"}`...), nil
}

// appendJSON appends a string as json.Marshal writes it.
func appendJSON(b []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || strings.IndexByte(`"\<>&`, c) >= 0 {
			text, _ := json.Marshal(s) // a string never fails
			return append(b, text...)
		}
	}
	return append(append(append(b, '"'), s...), '"')
}

// DecodeLeaf reads a leaf. It refuses bytes that EncodeLeaf would not have written.
func DecodeLeaf(leaf []byte) (Record, error) {
	var r Record
	if err := json.Unmarshal(leaf, &r); err != nil {
		return Record{}, fmt.Errorf("record: %w", err)
	}
	again, err := EncodeLeaf(r)
	if err != nil {
		return Record{}, err
	}
	if !bytes.Equal(again, leaf) {
		return r, errors.New("record: not in canonical form")
	}
	return r, nil
}

// Frontier is the right edge of an append-only Merkle tree (RFC 6962, section 2.1): all it takes to add leaves and
// to know the root. The zero value is the empty tree.
type Frontier struct {
	size int64
	edge []tlog.Hash // roots of the complete subtrees from left to right, as the bits of size say
}

// NewFrontier returns the frontier of a tree of that size whose stored hashes r reads.
func NewFrontier(size int64, r tlog.HashReader) (Frontier, error) {
	var indexes []int64
	for done, level := int64(0), 62; level >= 0; level-- {
		if size&(1<<level) != 0 {
			indexes = append(indexes, tlog.StoredHashIndex(level, done>>level))
			done += 1 << level
		}
	}
	edge, err := r.ReadHashes(indexes)
	if err != nil {
		return Frontier{}, fmt.Errorf("right edge of the tree: %w", err)
	}
	return Frontier{size: size, edge: edge}, nil
}

// Clone returns a copy that can be changed on its own.
func (f Frontier) Clone() Frontier { return Frontier{size: f.size, edge: slices.Clone(f.edge)} }

// Add adds a leaf and appends to dst the roots of the subtrees that it completes, from the leaf's own hash up:
// what tlog.StoredHashesForRecordHash returns, without reading anything.
func (f *Frontier) Add(dst []tlog.Hash, leaf tlog.Hash) []tlog.Hash {
	h := leaf
	dst = append(dst, h)
	for n := f.size; n&1 == 1; n >>= 1 {
		last := len(f.edge) - 1
		h = tlog.NodeHash(f.edge[last], h)
		f.edge = f.edge[:last]
		dst = append(dst, h)
	}
	f.edge = append(f.edge, h)
	f.size++
	return dst
}

// Edge returns the roots of the complete subtrees from left to right, one for each bit that the size has set: what NewFrontier reads.
func (f Frontier) Edge() []tlog.Hash { return slices.Clone(f.edge) }

// Size returns the number of leaves.
func (f Frontier) Size() int64 { return f.size }

// Tree returns the size and the root.
func (f Frontier) Tree() tlog.Tree {
	if f.size == 0 {
		h, _ := tlog.TreeHash(0, nil) // SHA-256 of nothing; never fails
		return tlog.Tree{Hash: h}
	}
	h := f.edge[len(f.edge)-1]
	for i := len(f.edge) - 2; i >= 0; i-- {
		h = tlog.NodeHash(f.edge[i], h)
	}
	return tlog.Tree{N: f.size, Hash: h}
}
