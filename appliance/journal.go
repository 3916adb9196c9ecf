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

// Journal is the attestation log: an append-only Merkle tree (RFC 6962 hashing) with records and events as its leaves.
// All methods are safe for concurrent use. If the storage fails, methods return CodeJournalUnavailable.
type Journal interface {
	// Append sets the record's Time and Salt, makes it the next leaf, and returns when leaf, tree and checkpoint are
	// synced to disk. If the API key has used the record's idempotency key before, Append returns the earlier entry
	// with replayed set. If the API key is revoked or expired, the error is CodeAPIKeyRevoked or CodeAPIKeyExpired.
	// After Keys.Revoke has returned, no record of that key is appended.
	//
	// Each condition decides about a new record in the transaction that appends it. An error of a condition is returned
	// as it is, and the record is not appended.
	//
	// If ctx ends first, the error is CodeTimeout, and the record may or may not have been appended.
	Append(ctx context.Context, r Record, conditions ...Condition) (e Entry, replayed bool, err error)
	// Past answers a condition's query as of now, so that a request can be refused before the HSM signs it.
	Past(ctx context.Context, q PastQuery) (Past, error)
	// AppendEvent makes the event the next leaf and returns as Append does. It sets the event's Time, and its ID and
	// Salt if they are missing. An event whose ID is in the journal already is not appended again: AppendEvent returns
	// the earlier entry. So an event can be retried if the outcome of an attempt is unknown. EventLogContinued is
	// refused, because only a log's first leaf can have that kind.
	AppendEvent(ctx context.Context, e Event) (Entry, error)
	// Ready returns nil if Append is expected to succeed: the storage is open and the disk is not full.
	Ready(ctx context.Context) error
	// ByID returns the entry of an attestation or an event, or CodeNotFound.
	ByID(ctx context.Context, id uuid.UUID) (Entry, error)
	// ByIdempotencyKey returns the entry that an API key made under an idempotency key, or CodeNotFound.
	ByIdempotencyKey(ctx context.Context, keyID, idempotencyKey string) (Entry, error)
	// List returns the entries that match, newest first.
	List(ctx context.Context, q JournalQuery) ([]Entry, error)
	// Entries calls yield with each entry in order, beginning at index first, until the end or until yield returns an
	// error.
	Entries(ctx context.Context, first int64, yield func(Entry) error) error
	// Checkpoint returns the newest signed checkpoint, a C2SP tlog-checkpoint. It covers every entry that
	// Append has returned.
	Checkpoint(ctx context.Context) ([]byte, error)
	// Prove returns the proof that the entry is in the tree of the newest checkpoint, or CodeNotFound.
	Prove(ctx context.Context, index int64) (InclusionProof, error)
	// Tile returns the hashes of a tile of height 8 (C2SP tlog-tiles), or CodeNotFound if the tree is smaller. It
	// serves hash tiles only, never entry bundles.
	Tile(ctx context.Context, t tlog.Tile) ([]byte, error)
	// Verify checks everything in the journal and reports each damage; see Audit. The error is for a failure of the
	// audit itself.
	Verify(ctx context.Context, opts VerifyOptions) (AuditReport, error)
}

// Condition decides whether a record is appended, from the journal's content, in the transaction that appends the
// record. So two concurrent records cannot both take the last place under a cap. A condition applies to new records
// only, never to a replay.
type Condition interface {
	// Asks returns the query that Decide needs answered for the record. It may be called again with another Time.
	Asks(r Record) PastQuery
	// Decide returns nil, or the error that Append returns. It is called after Asks, with the same record.
	Decide(r Record, past Past) error
}

// PastQuery asks for the facts that decide about a record. The zero value asks for none.
type PastQuery struct {
	KeyID       string      // count this key's attestations
	Since       []time.Time // one count from each of these times on
	Unspendable *Address    // find the first attestation of this address
}

// Empty reports whether the query asks for no facts.
func (q PastQuery) Empty() bool { return len(q.Since) == 0 && q.Unspendable == nil }

// Past is the answer to a PastQuery.
type Past struct {
	Counts []int64 // number of attestations for each PastQuery.Since
	First  *Record // first attestation of the unspendable address; nil if it has none
}

// Entry is a leaf with its index: an attestation's record or an event.
type Entry struct {
	Index  int64  `json:"index"` // from 0
	Record Record `json:"record,omitzero"`
	Event  *Event `json:"event,omitempty"` // nil for an attestation; if set, Record is zero
	Leaf   []byte `json:"-"`               // the bytes in the tree, see EncodeLeaf and EncodeEvent
}

// WithoutAddresses returns the entry without the data that shows which address was attested to which beneficiary. It
// omits both addresses; the hash, the leaf and the salt, which contain or confirm them; the idempotency key; and the
// signature, which the contract on chain accepts.
func (e Entry) WithoutAddresses() Entry {
	e.Leaf = nil
	e.Record.Request, e.Record.Hash, e.Record.Signature = Request{}, Digest{}, Signature{}
	e.Record.Salt, e.Record.IdempotencyKey, e.Record.Quorum = Salt{}, "", nil
	if e.Event != nil {
		event := *e.Event
		event.Salt, event.Details = Salt{}, maps.Clone(event.Details)
		delete(event.Details, DetailUnspendable)
		delete(event.Details, DetailBeneficiary)
		delete(event.Details, detailIdempotencyKey)
		e.Event = &event
	}
	return e
}

// JournalQuery selects entries. Zero fields do not restrict.
type JournalQuery struct {
	KeyID       string   // only attestations requested with this API key
	Hash        *Digest  // only attestations of this hash
	Unspendable *Address // only attestations of this unspendable address

	From   time.Time // inclusive
	Until  time.Time // exclusive
	Before int64     // only indexes below this, for the next page; zero means from the newest
	Limit  int       // at most this many entries; zero means DefaultListed; the maximum is MaxListed

	AttestationsOnly bool // omit events
	EventsOnly       bool // omit attestations
}

// Limits of a JournalQuery.
const (
	DefaultListed = 100
	MaxListed     = 1000
)

// Size returns the maximum number of entries that the query selects.
func (q JournalQuery) Size() int {
	if q.Limit <= 0 {
		return DefaultListed
	}
	return min(q.Limit, MaxListed)
}

// Wants reports whether an entry matches the query, regardless of Before and Limit.
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

// InclusionProof proves that a leaf is in the tree of a signed checkpoint (RFC 6962, section 2.1.1).
type InclusionProof struct {
	Index      int64    `json:"index"`
	TreeSize   int64    `json:"treeSize"`
	LeafHash   []byte   `json:"leafHash"`   // SHA-256(0x00 ‖ leaf)
	Hashes     [][]byte `json:"hashes"`     // from the leaf's sibling upwards, 32 bytes each
	Checkpoint string   `json:"checkpoint"` // C2SP signed note
}

// Verify checks the proof of a leaf with the log's key.
func (p InclusionProof) Verify(leaf []byte, verifier note.Verifier) error {
	tree, err := OpenCheckpoint([]byte(p.Checkpoint), verifier)
	if err != nil {
		return err
	}
	if tree.N != p.TreeSize {
		return fmt.Errorf("the checkpoint has size %d, the proof has %d", tree.N, p.TreeSize)
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

// String returns the proof as a C2SP tlog-proof.
func (p InclusionProof) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "c2sp.org/tlog-proof@v1\nindex %d\n", p.Index)
	for _, h := range p.Hashes {
		b.WriteString(base64.StdEncoding.EncodeToString(h) + "\n")
	}
	return b.String() + "\n" + p.Checkpoint
}

// EncodeLeaf returns a record's leaf: compact JSON, members in the order of Record, no newline. Stores keep these bytes
// and never encode a record again, so a line of `attestd log export` is a leaf.
//
// The result equals json.Marshal, without the member bytes of the signature, which only repeats r, s and v. It is
// written by hand because each attestation calls it.
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
	if r.Coordinator != "" {
		b = appendJSON(append(b, `,"coordinator":`...), r.Coordinator)
	}
	if r.Quorum != nil {
		quorum, err := json.Marshal(r.Quorum)
		if err != nil {
			return nil, fmt.Errorf("record: %w", err)
		}
		b = append(append(b, `,"quorum":`...), quorum...)
	}
	if r.Approval != nil {
		b = append(append(append(b, `,"approval":"`...), r.Approval.String()...), '"')
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
			text, _ := json.Marshal(s) // never fails for a string
			return append(b, text...)
		}
	}
	return append(append(append(b, '"'), s...), '"')
}

// DecodeLeaf reads a record's leaf. It refuses bytes that EncodeLeaf would not have written.
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

// Frontier is the right edge of an append-only Merkle tree (RFC 6962, section 2.1). It suffices for adding leaves and
// computing the root. The zero value is the empty tree.
type Frontier struct {
	size int64
	edge []tlog.Hash // roots of the complete subtrees from left to right, one per set bit of size
}

// NewFrontier returns the frontier of a tree of the given size. r reads its stored hashes.
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

// Clone returns an independent copy.
func (f Frontier) Clone() Frontier { return Frontier{size: f.size, edge: slices.Clone(f.edge)} }

// Add adds a leaf. It appends to dst the roots of the subtrees that the leaf completes, from the leaf's own hash up.
// The result equals tlog.StoredHashesForRecordHash, but needs no reads.
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

// Edge returns the roots of the complete subtrees from left to right, one for each set bit of the size. NewFrontier
// reads the same hashes.
func (f Frontier) Edge() []tlog.Hash { return slices.Clone(f.edge) }

// Size returns the number of leaves.
func (f Frontier) Size() int64 { return f.size }

// Tree returns the size and the root.
func (f Frontier) Tree() tlog.Tree {
	if f.size == 0 {
		h, _ := tlog.TreeHash(0, nil) // SHA-256 of the empty string; never fails
		return tlog.Tree{Hash: h}
	}
	h := f.edge[len(f.edge)-1]
	for i := len(f.edge) - 2; i >= 0; i-- {
		h = tlog.NodeHash(f.edge[i], h)
	}
	return tlog.Tree{N: f.size, Hash: h}
}
