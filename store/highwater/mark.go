// Package highwater stores the high-water mark: the largest signed checkpoint that an appliance has seen committed. The
// mark has its own file, apart from the journal. If the journal contradicts the mark, because a database lost its tail
// or an older copy was restored, the appliance stops signing. Checkpoints are C2SP tlog-checkpoints. Growth is verified
// by RFC 6962 consistency proofs.
package highwater

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/attestd/attestd/appliance/files"
	"github.com/attestd/attestd/appliance/journal"
)

// FileName is the file of the mark in data_dir. It holds one signed checkpoint. Its signature reveals any damage.
const FileName = "high-water-mark"

// Errors of Read, in addition to fs.ErrNotExist. Use errors.Is.
var (
	ErrDamaged  = errors.New("the high-water mark is damaged")
	ErrOtherLog = errors.New("the high-water mark belongs to another log")
)

// Mark is a committed checkpoint.
type Mark struct {
	Tree   tlog.Tree
	Signed []byte // C2SP signed note
}

// maxMark is the maximum size of the file in bytes. A checkpoint has about 200, plus its cosignatures.
const maxMark = 64 << 10

// Read returns the mark in a file, or the checkpoint in NewestPath if that is larger. With ErrOtherLog, Signed is the
// content of the file.
func Read(path string, verifier note.Verifier) (Mark, error) {
	mark, err := read(path, verifier)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return mark, err
	}
	newest, failed := read(NewestPath(path), verifier)
	if failed != nil || newest.Tree.N <= mark.Tree.N { // a power cut may have torn the second file
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
		return Mark{}, fmt.Errorf("%w: %s is not a regular file of at most %d bytes", ErrDamaged, path, maxMark)
	}
	signed, err := os.ReadFile(path)
	if err != nil {
		return Mark{}, err
	}
	m, err := parse(signed, verifier)
	if err == nil {
		return m, nil
	}
	if name := journal.SignerOf(signed); name != "" && name != journal.LogName(verifier) {
		return Mark{Signed: signed}, fmt.Errorf("%w: %s has a checkpoint of %s, the log key belongs to %s", ErrOtherLog,
			path, name, journal.LogName(verifier))
	}
	return Mark{}, fmt.Errorf("%w: %s: %w", ErrDamaged, path, err)
}

// Write replaces the mark in a file of mode 0600 and returns when it is on the disk. A power cut leaves the old mark or
// the new one. The owner of the folder owns the file. Write removes the file NewestPath, which belongs to the old mark.
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
	tree, err := journal.OpenCheckpoint(signed, verifier)
	return Mark{Tree: tree, Signed: signed}, err
}
