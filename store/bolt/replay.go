package bolt

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"github.com/attestd/attestd/appliance/journal"
	"golang.org/x/mod/sumdb/note"
)

var errWAL = errors.New("the write-ahead log")

// loadTail reads the leaves that the file lacks from the write-ahead log and adds them to the head. It validates them:
// they must follow the file's head and make the trees of the signed checkpoints.
func (s *Store) loadTail(frontier journal.Frontier) (journal.Frontier, error) {
	path := WALPath(s.path)
	frames, err := readFrames(path, journal.LogName(s.opts.Verifier), !s.opts.ReadOnly)
	if err != nil {
		return frontier, fmt.Errorf("%w %s: %w", errWAL, path, err)
	}
	filed := s.head.Load()
	lacking := slices.DeleteFunc(frames, func(f frame) bool { return f.end() <= filed.tree.N })
	if len(lacking) == 0 {
		return frontier, nil
	}
	tail, frontier, err := replay(lacking, frontier, s.opts.Verifier)
	if err != nil {
		return frontier, fmt.Errorf("%w %s: %w; it must match %s: put back the right version of the older or damaged "+
			"one, or restore a backup", errWAL, path, err, s.path)
	}
	s.recent.add(tail, true)
	s.head.Store(&head{tree: frontier.Tree(), checkpoint: tail.checkpoint, last: tail.last, tail: s.recent.tail()})
	return frontier, nil
}

// replay combines frames into one segment. Every complete frame except the last was answered, so that a gap is damage.
// An incomplete last frame was never answered; readFrames drops it.
func replay(frames []frame, frontier journal.Frontier, verifier note.Verifier) (*segment, journal.Frontier, error) {
	slices.SortStableFunc(frames, func(a, b frame) int { return cmp.Compare(a.first, b.first) })
	frontier = frontier.Clone()
	tail := newSegment(frontier.Size())
	for _, f := range frames {
		switch size := frontier.Size(); {
		case f.first > size:
			return nil, frontier, fmt.Errorf("%w: records %d to %d are missing: the journal's file is older than the "+
				"write-ahead log, or a frame is damaged", ErrDamaged, size, f.first-1)
		case f.first < size:
			return nil, frontier, fmt.Errorf("%w: its frame has records %d to %d, the journal's next record is %d",
				ErrDamaged, f.first, f.end()-1, size)
		}
		for i, leaf := range f.leaves {
			e, err := journal.DecodeEntry(f.first+int64(i), leaf)
			if err != nil {
				return nil, frontier, fmt.Errorf("%w: record %d: %w", ErrDamaged, f.first+int64(i), err)
			}
			tail.add(&frontier, &e)
		}
		tree, err := journal.OpenCheckpoint(f.checkpoint, verifier)
		if err != nil {
			return nil, frontier, fmt.Errorf("%w: %w", ErrDamaged, err)
		}
		if tree != frontier.Tree() {
			return nil, frontier, fmt.Errorf("%w: records %d to %d do not match their checkpoint's root hash",
				ErrDamaged, f.first, f.end()-1)
		}
		tail.checkpoint = f.checkpoint
	}
	return tail, frontier, nil
}

// fileTail flushes the replayed leaves into the file. If the disk is full, the checkpointer retries later.
func (s *Store) fileTail() error {
	if len(s.recent.segments) == 0 {
		removeWAL(s.path)
		return nil
	}
	h := *s.head.Load()
	records := h.tree.N - h.inFile()
	switch err := s.fileSegment(s.recent.segments[0]); {
	case err == nil:
		s.opts.Logger.Info("journal: moved the newest records from the write-ahead log into the journal",
			"records", records)
	case notWritten(err):
		s.opts.Logger.Error("journal: the disk is not writable, and the newest records are still in the write-ahead "+
			"log; signing stops until the disk is writable", "records", records, "error", err)
		return nil
	default:
		return fmt.Errorf("move %d records from %s into the journal: %w", records, WALPath(s.path), err)
	}
	s.recent.drop()
	h.tail = nil
	s.head.Store(&h)
	removeWAL(s.path)
	return nil
}

// FlushWAL moves the leaves that a crash has left in the write-ahead log into the file at a path, and removes the
// write-ahead log. No process may have the file open.
func FlushWAL(path string, verifier note.Verifier) (err error) {
	if _, err := os.Lstat(WALPath(path)); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	s := &Store{path: path, opts: Options{Verifier: verifier}}
	s.opts.complete()
	if err := s.takeOver(); err != nil {
		return fmt.Errorf("open %s: %w", path, err)
	}
	return nil
}

func (s *Store) takeOver() (err error) {
	if err := s.openFile(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.db.Close()) }()
	if err := s.migrate(); err != nil {
		return err
	}
	frontier, err := s.load()
	if err == nil {
		_, err = s.loadTail(frontier)
	}
	if err == nil {
		err = s.fileTail()
	}
	if n := len(s.recent.segments); err == nil && n > 0 {
		err = fmt.Errorf("the disk is not writable, and records are only in %s", WALPath(s.path))
	}
	return err
}
