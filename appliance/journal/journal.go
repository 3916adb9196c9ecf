// Package journal is the format of the journal and the interface of its stores: records and events as the leaves of a
// Merkle tree (RFC 6962), proofs, signed checkpoints (C2SP tlog-checkpoint) and the keys that sign them.
package journal

import (
	"context"
	"time"

	"github.com/attestd/attestd/appliance"
	"github.com/google/uuid"
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
	Append(ctx context.Context, r appliance.Record, conditions ...Condition) (e Entry, replayed bool, err error)
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
	List(ctx context.Context, q Query) ([]Entry, error)
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
}

// Condition decides whether a record is appended, from the journal's content, in the transaction that appends the
// record. So two concurrent records cannot both take the last place under a cap. A condition applies to new records
// only, never to a replay.
type Condition interface {
	// Asks returns the query that Decide needs answered for the record. It may be called again with another Time.
	Asks(r appliance.Record) PastQuery
	// Decide returns nil, or the error that Append returns. It is called after Asks, with the same record.
	Decide(r appliance.Record, past Past) error
}

// PastQuery asks for the facts that decide about a record. The zero value asks for none.
type PastQuery struct {
	KeyID       string             // count this key's attestations
	Since       []time.Time        // one count from each of these times on
	Unspendable *appliance.Address // find the first attestation of this address
}

// Empty reports whether the query asks for no facts.
func (q PastQuery) Empty() bool { return len(q.Since) == 0 && q.Unspendable == nil }

// Past is the answer to a PastQuery.
type Past struct {
	Counts []int64           // number of attestations for each PastQuery.Since
	First  *appliance.Record // first attestation of the unspendable address; nil if it has none
}

// Query selects entries. Zero fields do not restrict.
type Query struct {
	KeyID       string             // only attestations requested with this API key
	Hash        *appliance.Digest  // only attestations of this hash
	Unspendable *appliance.Address // only attestations of this unspendable address

	From   time.Time // inclusive
	Until  time.Time // exclusive
	Before int64     // only indexes below this, for the next page; zero means from the newest
	Limit  int       // at most this many entries; zero means DefaultListed; the maximum is MaxListed

	AttestationsOnly bool // omit events
	EventsOnly       bool // omit attestations
}

// Limits of a Query.
const (
	DefaultListed = 100
	MaxListed     = 1000
)

// Size returns the maximum number of entries that the query selects.
func (q Query) Size() int {
	if q.Limit <= 0 {
		return DefaultListed
	}
	return min(q.Limit, MaxListed)
}

// Wants reports whether an entry matches the query, regardless of Before and Limit.
func (q Query) Wants(e Entry) bool {
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
