// Package highwater keeps the highest signed checkpoint that an appliance has ever seen committed, the mark, in a file of its own,
// apart from the store of the journal. A journal that is not what the mark says, because a database lost its tail or an older copy was
// put in its place, is noticed, and nothing is signed on it. Checkpoints are C2SP tlog-checkpoints; growth is checked by RFC 6962
// consistency proofs.
package highwater

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/files"
)

// FileName is the mark's in data_dir. It holds one signed checkpoint and nothing else, so that its signature shows any damage.
const FileName = "high-water-mark"

// What Read refuses beside a file that is not there; errors.Is tells them.
var (
	ErrDamaged  = errors.New("the high-water mark is damaged")
	ErrOtherLog = errors.New("the high-water mark is of another log")
)

// Mark is a checkpoint that was committed.
type Mark struct {
	Tree   tlog.Tree
	Signed []byte // C2SP signed note
}

// maxMark bounds the file; a checkpoint has some 200 bytes, and may have cosignatures.
const maxMark = 64 << 10

// Read returns the higher of the mark in a file and the newest commit beside it. Where ErrOtherLog is the error, Signed is what the file
// holds.
func Read(path string, verifier note.Verifier) (Mark, error) {
	mark, err := read(path, verifier)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return mark, err
	}
	newest, failed := read(NewestPath(path), verifier)
	if failed != nil || newest.Tree.N <= mark.Tree.N { // a power cut may have torn it, and it is of no use then
		return mark, err
	}
	return newest, nil
}

func read(path string, verifier note.Verifier) (Mark, error) {
	stat, err := os.Stat(path)
	if err != nil {
		return Mark{}, err
	}
	if !stat.Mode().IsRegular() || stat.Size() > maxMark {
		return Mark{}, fmt.Errorf("%w: %s is no file of at most %d bytes", ErrDamaged, path, maxMark)
	}
	signed, err := os.ReadFile(path)
	if err != nil {
		return Mark{}, err
	}
	m, err := parse(signed, verifier)
	if err == nil {
		return m, nil
	}
	if name := appliance.SignerOf(signed); name != "" && name != appliance.LogName(verifier) {
		return Mark{Signed: signed}, fmt.Errorf("%w: %s is of %s, the log key is that of %s", ErrOtherLog, path, name, appliance.LogName(verifier))
	}
	return Mark{}, fmt.Errorf("%w: %s: %w", ErrDamaged, path, err)
}

// Write replaces the mark in a file, of mode 0600, and returns when it is on the disk. A power cut leaves the one before or this one.
// The file is the folder's owner's, whoever writes it. What was committed by the log before is forgotten.
func Write(path string, signed []byte) error {
	if err := write(path, signed); err != nil {
		return err
	}
	if err := os.Remove(NewestPath(path)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func write(path string, signed []byte) error {
	if err := files.Write(path, signed, 0o600); err != nil {
		return err
	}
	return files.HandOver(filepath.Dir(path), filepath.Base(path))
}

func parse(signed []byte, verifier note.Verifier) (Mark, error) {
	tree, err := appliance.OpenCheckpoint(signed, verifier)
	return Mark{Tree: tree, Signed: signed}, err
}
