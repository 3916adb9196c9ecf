package appliance

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

// Journal is the attestation log: an append-only Merkle tree (RFC 6962 hashing) whose leaves are records.
// All methods may be used at once. Where the storage fails, methods return CodeJournalUnavailable.
type Journal interface {
	// Append sets the record's Time and Salt, makes it the next leaf and returns when leaf, tree and checkpoint
	// are synced to disk. Where the API key has used the record's idempotency key before, nothing is appended:
	// the earlier entry is returned, and replayed is true.
	//
	// When ctx ends first the error is CodeTimeout, and the record may or may not have been appended.
	Append(ctx context.Context, r Record) (e Entry, replayed bool, err error)
	// Ready returns nil when Append can be expected to succeed: storage open, disk not full.
	Ready(ctx context.Context) error
	// ByID returns an attestation's entry, or CodeNotFound.
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

// Entry is a record in its place.
type Entry struct {
	Index  int64  `json:"index"` // from 0
	Record Record `json:"record"`
	Leaf   []byte `json:"-"` // the record's bytes in the tree, see EncodeLeaf
}

// JournalQuery selects entries. Zero members do not restrict.
type JournalQuery struct {
	KeyID  string
	From   time.Time // inclusive
	Until  time.Time // exclusive
	Before int64     // only indexes below this, for the next page; zero means from the newest
	Limit  int       // at most this many; zero means 100, and 1000 is the most
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
		b.WriteString(tlog.Hash(h).String() + "\n")
	}
	return b.String() + "\n" + p.Checkpoint
}

// EncodeLeaf returns a record's bytes in the tree: compact JSON, members in the order of Record, no newline. The
// bytes are kept as they are and never made again, so a line of `attestd log export` is a leaf.
func EncodeLeaf(r Record) ([]byte, error) { return json.Marshal(r) }

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

// SignCheckpoint returns the signed note of a tree (C2SP tlog-checkpoint). The signer's name is the log's origin.
func SignCheckpoint(tree tlog.Tree, signer note.Signer) ([]byte, error) {
	text := fmt.Sprintf("%s\n%d\n%s\n", signer.Name(), tree.N, tree.Hash)
	return note.Sign(&note.Note{Text: text}, signer)
}

// OpenCheckpoint returns the tree of a signed checkpoint of the verifier's log.
//
// Errors: the note has no valid signature of the verifier, names another log, or is malformed.
func OpenCheckpoint(signed []byte, verifier note.Verifier) (tlog.Tree, error) {
	n, err := note.Open(signed, note.VerifierList(verifier))
	if err != nil {
		return tlog.Tree{}, fmt.Errorf("checkpoint: %w", err)
	}
	origin, body, _ := strings.Cut(n.Text, "\n")
	if origin != verifier.Name() {
		return tlog.Tree{}, fmt.Errorf("checkpoint: of log %q, not of %q", origin, verifier.Name())
	}
	// ParseTree reads Go's own first line; what follows it is the same in every checkpoint.
	tree, err := tlog.ParseTree([]byte("go.sum database tree\n" + body))
	if err != nil {
		return tlog.Tree{}, fmt.Errorf("checkpoint: %w", err)
	}
	return tree, nil
}
