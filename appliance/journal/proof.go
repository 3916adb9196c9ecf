package journal

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

// tlogProof is the first line of a C2SP tlog-proof.
const tlogProof = "c2sp.org/tlog-proof@v1\n"

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

// WithLeaf returns the proof as a C2SP tlog-proof with the leaf as its extra data, so that it can be verified on its
// own.
func (p InclusionProof) WithLeaf(leaf []byte) string {
	return tlogProof + "extra " + base64.StdEncoding.EncodeToString(leaf) + "\n" +
		strings.TrimPrefix(p.String(), tlogProof)
}

// IsProof reports whether a text begins like a C2SP tlog-proof.
func IsProof(text []byte) bool { return strings.HasPrefix(string(text), tlogProof) }

// ParseProof reads a C2SP tlog-proof. extra is its extra data, which is the leaf in a proof by WithLeaf, or nil.
// ParseProof checks only the form; see InclusionProof.Verify.
func ParseProof(text []byte) (p InclusionProof, extra []byte, err error) {
	rest, ok := strings.CutPrefix(string(text), tlogProof)
	if !ok {
		return p, nil, errors.New("not a C2SP tlog-proof")
	}
	head, checkpoint, ok := strings.Cut(rest, "\n\n")
	if !ok {
		return p, nil, errors.New("tlog-proof: the checkpoint is missing")
	}
	lines := strings.Split(head, "\n")
	if encoded, has := strings.CutPrefix(lines[0], "extra "); has {
		if extra, err = base64.StdEncoding.DecodeString(encoded); err != nil {
			return p, nil, errors.New("tlog-proof: the extra data is not base64")
		}
		lines = lines[1:]
	}
	if len(lines) == 0 {
		return p, nil, errors.New("tlog-proof: the index is missing")
	}
	index, has := strings.CutPrefix(lines[0], "index ")
	if p.Index, err = strconv.ParseInt(index, 10, 64); !has || err != nil || p.Index < 0 ||
		strconv.FormatInt(p.Index, 10) != index {
		return p, nil, fmt.Errorf("tlog-proof: %q is not an index line", lines[0])
	}
	for _, line := range lines[1:] {
		h, err := tlog.ParseHash(line)
		if err != nil {
			return p, nil, fmt.Errorf("tlog-proof: %q is not a hash", line)
		}
		p.Hashes = append(p.Hashes, h[:])
	}
	p.Checkpoint = checkpoint
	body := strings.SplitN(checkpoint, "\n", 3)
	if len(body) == 3 {
		p.TreeSize, err = strconv.ParseInt(body[1], 10, 64)
	}
	if len(body) < 3 || err != nil {
		return p, nil, errors.New("tlog-proof: the checkpoint lacks a size")
	}
	return p, extra, nil
}

// UnmarshalJSON accepts hashes in base64, as in the API, and in hex, as printed by the command.
func (p *InclusionProof) UnmarshalJSON(text []byte) error {
	type asIs InclusionProof // without this method
	read := struct {
		*asIs
		LeafHash hashText   `json:"leafHash"`
		Hashes   []hashText `json:"hashes"`
	}{asIs: (*asIs)(p)}
	if err := json.Unmarshal(text, &read); err != nil {
		return err
	}
	p.LeafHash, p.Hashes = read.LeafHash, make([][]byte, len(read.Hashes))
	for i, h := range read.Hashes {
		p.Hashes[i] = h
	}
	return nil
}

// hashText is a hash of the tree, in base64 or hex.
type hashText []byte

func (h *hashText) UnmarshalText(text []byte) (err error) {
	if len(text) == hex.EncodedLen(tlog.HashSize) {
		*h, err = hex.AppendDecode(nil, text)
	} else {
		*h, err = base64.StdEncoding.AppendDecode(nil, text)
	}
	return err
}
