package journal

import (
	"bytes"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

// SignCheckpoint returns the signed note of a tree (C2SP tlog-checkpoint). The signer's name is the log's origin.
func SignCheckpoint(tree tlog.Tree, signer note.Signer) ([]byte, error) {
	text := fmt.Sprintf("%s\n%d\n%s\n", signer.Name(), tree.N, tree.Hash)
	return note.Sign(&note.Note{Text: text}, signer)
}

// OpenCheckpoint verifies a signed checkpoint of the verifier's log and returns its tree.
//
// Errors: the note has no valid signature of the verifier, names another log, or is malformed.
func OpenCheckpoint(signed []byte, verifier note.Verifier) (tlog.Tree, error) {
	n, err := note.Open(signed, note.VerifierList(verifier))
	if err != nil {
		return tlog.Tree{}, fmt.Errorf("checkpoint: %w", err)
	}
	origin, tree, err := parseCheckpoint(n.Text)
	if err == nil && origin != verifier.Name() {
		err = fmt.Errorf("it belongs to log %q, not to %q", origin, verifier.Name())
	}
	if err != nil {
		return tlog.Tree{}, fmt.Errorf("checkpoint: %w", err)
	}
	return tree, nil
}

// ReadCheckpoint returns the origin and the tree of a signed checkpoint without verifying a signature.
func ReadCheckpoint(signed []byte) (origin string, tree tlog.Tree, err error) {
	text := signed
	if i := bytes.LastIndex(signed, []byte("\n\n")); i >= 0 {
		text = signed[:i+1]
	}
	if origin, tree, err = parseCheckpoint(string(text)); err != nil {
		err = fmt.Errorf("checkpoint: %w", err)
	}
	return origin, tree, err
}

// parseCheckpoint reads the signed text: origin, size, root hash and extension lines. None of them may be empty.
func parseCheckpoint(text string) (origin string, tree tlog.Tree, err error) {
	origin, body, _ := strings.Cut(text, "\n")
	if origin == "" || strings.Contains(text, "\n\n") {
		return "", tree, errors.New("it has an empty line (C2SP tlog-checkpoint)")
	}
	// ParseTree expects the first line of Go's own checksum database. The other lines have the same format in every
	// checkpoint.
	tree, err = tlog.ParseTree([]byte("go.sum database tree\n" + body))
	return origin, tree, err
}
