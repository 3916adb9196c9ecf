package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/attestd/attestd/appliance/archive"
	"github.com/attestd/attestd/appliance/config"
	"github.com/attestd/attestd/appliance/files"
	"github.com/attestd/attestd/appliance/journal"
)

// PrepareCopy copies the records from a store in use into an empty one, so that CopyStore has only the newest to copy.
// running are the leaves of a store in a file, which only the daemon can read; nil for a database. See archive.Prepare.
func PrepareCopy(ctx context.Context, c *config.Config, from, to string, running archive.Leaves,
	progress func(done, total int64)) (tree tlog.Tree, err error) {
	log, err := OpenLogHSM(c, nil, nil)
	if err != nil {
		return tree, err
	}
	defer func() { err = errors.Join(err, log.Close()) }()
	source := at(c, from)
	var key journal.LogKey
	if running != nil {
		if key, err = archive.ReadLogKey(source.DataDir); err != nil {
			return tree, fmt.Errorf("the source: %w", err)
		}
	} else {
		store, err := ReadStore(source)
		if err != nil {
			return tree, fmt.Errorf("the source: %w", err)
		}
		defer func() { err = errors.Join(err, store.Close()) }()
		running, key = archive.LeavesOf(store.Journal), store.LogKey
	}
	key = key.SignedBy(log.Signer())
	target, end, err := openTarget(source, to, key)
	if err != nil {
		return tree, fmt.Errorf("the target: %w", err)
	}
	defer func() { err = errors.Join(err, end()) }()
	mark := preparedMark(c.DataDir)
	if target.Verified, err = mark.of(ctx, to, key, target.CopyTarget); err != nil {
		return tree, err
	}
	if tree, err = archive.Prepare(ctx, archive.CopySource{Leaves: running, Verifier: key.Verifier},
		target.CopyTarget, progress); err != nil {
		return tree, err
	}
	return tree, mark.write(c, to, key, tree)
}

// preparedMark is a folder with the file of the records that PrepareCopy has read back. Without it, or with a wrong
// one, CopyStore reads back all records.
type preparedMark string

const preparedFile = "store-copy.prepared"

// preparedCopy is the content of the file.
type preparedCopy struct {
	To   string           `json:"to"`  // without a password
	Log  string           `json:"log"` // its verifier key
	Size int64            `json:"records"`
	Root journal.HexBytes `json:"rootHash"`
}

func (m preparedMark) path() string { return filepath.Join(string(m), preparedFile) }

// of returns the tree that is prepared in the target, or the zero tree. It removes the mark of another target.
func (m preparedMark) of(ctx context.Context, to string, key journal.LogKey,
	target archive.CopyTarget) (tlog.Tree, error) {
	there, err := target.Tree(ctx)
	if err != nil {
		return tlog.Tree{}, fmt.Errorf("what is in the target: %w", err)
	}
	tree := m.read(to, key)
	if tree.N == 0 || tree.N > there.N {
		return tlog.Tree{}, m.remove()
	}
	return tree, nil
}

func (m preparedMark) read(to string, key journal.LogKey) (tree tlog.Tree) {
	text, err := os.ReadFile(m.path())
	if err != nil {
		return tree
	}
	var p preparedCopy
	if json.Unmarshal(text, &p) != nil || p.To != withoutPassword(to) || p.Log != key.VerifierText ||
		len(p.Root) != tlog.HashSize {
		return tree
	}
	return tlog.Tree{N: p.Size, Hash: tlog.Hash(p.Root)}
}

func (m preparedMark) write(c *config.Config, to string, key journal.LogKey, tree tlog.Tree) error {
	text, err := json.Marshal(preparedCopy{withoutPassword(to), key.VerifierText, tree.N, tree.Hash[:]})
	if err != nil {
		return err
	}
	_, err = asOwner(c, func() (*Store, error) { return nil, files.Write(m.path(), text, 0o600) })
	return err
}

// withoutPassword returns the name of a store, which may be the URL of the configuration, without a password.
func withoutPassword(ref string) string { return string(config.DatabaseURL(ref).WithoutPassword()) }

func (m preparedMark) remove() error {
	if err := os.Remove(m.path()); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}
