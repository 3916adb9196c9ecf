package appliance

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/mod/sumdb/tlog"
)

// tlogProof is the first line of a C2SP tlog-proof.
const tlogProof = "c2sp.org/tlog-proof@v1\n"

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
