package appliance

import (
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
