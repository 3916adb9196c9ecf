package bolt

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// The write-ahead log is a file next to the journal's file. It holds the leaves that the journal's file may lack. It is
// created full of zeros, so that a sync writes the frame only, without file system metadata. It has two halves. While
// one half is flushed into the journal's file, frames go into the other.
//
// A frame is a batch of leaves with the checkpoint after them. It begins at a multiple of frameAlign. Integers are
// big-endian:
//
//	magic       8
//	log         8 bytes of the SHA-256 of the log's name
//	length      4, length of the frame
//	sum         4, CRC-32C of the frame without these 4
//	first       8, the index of its first leaf
//	leaves      4, number of leaves
//	checkpoint  4, length of the checkpoint
//	            for each leaf, 4 bytes of length and the leaf; then the checkpoint
//
// A frame is overwritten once its leaves are in the journal's file. At a start, the frames beyond the journal's end
// must follow it without a gap; see replay.
const (
	frameMagic  = "\xffattwal\x01" // occurs in no leaf, because leaves are UTF-8
	frameHeader = 40
	frameSum    = 20   // offset of the sum
	frameAlign  = 4096 // the unit that disks write; frames do not share one

	// walSize holds about 9,000 records, which the checkpointer flushes in at most a third of a second. The flush of a
	// half begins when it is half full, which leaves room for three times as many records during the flush.
	walSize   = 8 << 20
	maxWAL    = 1 << 30 // attestd never writes a larger one
	walSuffix = "-wal"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// WALPath returns the path of the write-ahead log of the journal at a path. A clean stop removes the log.
func WALPath(path string) string { return path + walSuffix }

// logMark identifies the log in each frame.
func logMark(name string) [8]byte {
	sum := sha256.Sum256([]byte(name))
	return [8]byte(sum[:8])
}

// wal is an open write-ahead log. It is not safe for concurrent use.
type wal struct {
	file  handle
	log   [8]byte
	size  int64
	half  int64 // size of a half in bytes
	start int64 // start of the current half
	next  int64 // offset of the next frame
	frame []byte
	last  [frameHeader]byte // header of the newest frame, which begins at lastAt; zero before the first

	lastAt int64
}

// createWAL creates a write-ahead log and replaces an existing one. The file gets its name once it is complete on the
// disk.
func createWAL(journal string, log [8]byte, size int64) (_ *wal, err error) {
	path := WALPath(journal)
	if err := os.Remove(path + ".new"); err != nil && !errors.Is(err, fs.ErrNotExist) { // left by a killed process
		return nil, err
	}
	f, err := os.OpenFile(path+".new", os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = f.Close()
			_ = os.Remove(f.Name())
		}
	}()
	if err := ownAs(f, journal); err != nil {
		return nil, err
	}
	zeros := make([]byte, 1<<20)
	for at := int64(0); at < size; at += int64(len(zeros)) {
		if _, err := f.WriteAt(zeros[:min(int64(len(zeros)), size-at)], at); err != nil {
			return nil, err
		}
	}
	if err := f.Sync(); err != nil {
		return nil, err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return nil, err
	}
	file, err := newHandle(f, path)
	if err != nil {
		return nil, err
	}
	return &wal{file: file, log: log, size: size, half: size / 2}, syncDir(filepath.Dir(path))
}

// ownAs gives a new file the owner of the journal, because root's commands write into a folder of the service's user.
func ownAs(f *os.File, journal string) error {
	if os.Geteuid() != 0 {
		return nil
	}
	stat, err := os.Stat(journal)
	if err != nil {
		return err
	}
	owner, ok := stat.Sys().(*syscall.Stat_t)
	if !ok {
		return nil
	}
	return f.Chown(int(owner.Uid), int(owner.Gid))
}

// encode returns the frame of a segment. The bytes are valid until the next call.
func (w *wal) encode(s *segment) []byte {
	b := append(w.frame[:0], frameMagic...)
	b = append(b, w.log[:]...)
	b = append(b, make([]byte, 8)...) // length and sum
	b = binary.BigEndian.AppendUint64(b, uint64(s.first))
	b = binary.BigEndian.AppendUint32(b, uint32(len(s.entries)))
	b = binary.BigEndian.AppendUint32(b, uint32(len(s.checkpoint)))
	for i := range s.entries {
		b = binary.BigEndian.AppendUint32(b, uint32(len(s.entries[i].Leaf)))
		b = append(b, s.entries[i].Leaf...)
	}
	b = append(b, s.checkpoint...)
	binary.BigEndian.PutUint32(b[16:], uint32(len(b)))
	binary.BigEndian.PutUint32(b[frameSum:], checksum(b))
	w.frame = append(b, make([]byte, aligned(len(b))-len(b))...)
	return w.frame
}

func checksum(frame []byte) uint32 {
	return crc32.Update(crc32.Checksum(frame[:frameSum], castagnoli), castagnoli, frame[frameSum+4:])
}

// aligned returns the space that a frame of the given length takes.
func aligned(length int) int { return (length + frameAlign - 1) / frameAlign * frameAlign }

// fits reports whether a frame fits into an empty half. hasRoom reports whether it fits into the current half.
func (w *wal) fits(frame []byte) bool    { return int64(len(frame)) <= w.half }
func (w *wal) hasRoom(frame []byte) bool { return w.next+int64(len(frame)) <= w.start+w.half }

// halfFull reports whether the current half is half full.
func (w *wal) halfFull() bool { return w.next-w.start >= w.half/2 }

// write writes and syncs a frame.
func (w *wal) write(frame []byte) error {
	if _, err := w.file.WriteAt(frame, w.next); err != nil {
		return err
	}
	if err := fdatasync(w.file.File); err != nil {
		return err
	}
	w.lastAt = w.next
	copy(w.last[:], frame)
	w.next += int64(len(frame))
	return nil
}

// check returns ErrReplaced unless the file has its name and contains the newest frame.
func (w *wal) check() error {
	if err := w.file.check(); err != nil {
		return err
	}
	stat, err := w.file.Stat()
	if err != nil {
		return err
	}
	if stat.Size() != w.size {
		return fmt.Errorf("%w: %s has %d bytes instead of %d", ErrReplaced, w.file.path, stat.Size(), w.size)
	}
	var last [frameHeader]byte
	if _, err := w.file.ReadAt(last[:], w.lastAt); err != nil {
		return fmt.Errorf("read %s: %w", w.file.path, err)
	}
	if last != w.last {
		return fmt.Errorf("%w: %s was overwritten", ErrReplaced, w.file.path)
	}
	return nil
}

// fdatasync returns a bare errno, which distinguishes a failed sync from a failed write.
func fdatasync(f *os.File) error {
	for {
		if err := unix.Fdatasync(int(f.Fd())); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// switchHalf switches to the other half. All frames in it are flushed.
func (w *wal) switchHalf() {
	w.start = w.half - w.start
	w.next = w.start
}

// frame is a decoded frame.
type frame struct {
	first      int64
	leaves     [][]byte
	checkpoint []byte
}

func (f frame) end() int64 { return f.first + int64(len(f.leaves)) }

// readFrames returns all complete frames in a write-ahead log, in the order of the file, and none without a file. It
// skips an incomplete frame, which a power cut has interrupted.
func readFrames(path string, log string, fromDisk bool) (frames []frame, err error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if fromDisk {
		forgetCached(f)
	}
	b, err := io.ReadAll(io.LimitReader(f, maxWAL+1))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	if len(b) > maxWAL {
		return nil, fmt.Errorf("%w: the file is too large", ErrDamaged)
	}
	mark := logMark(log)
	for at := 0; at+frameHeader <= len(b); {
		text, ok := wholeFrame(b[at:])
		if !ok {
			at += frameAlign
			continue
		}
		if !bytes.Equal(text[8:16], mark[:]) {
			return nil, fmt.Errorf("%w: the file has records of another log than %s", ErrOtherLog, log)
		}
		read, err := decodeFrame(text)
		if err != nil {
			return nil, fmt.Errorf("%w: at byte %d: %w", ErrDamaged, at, err)
		}
		frames = append(frames, read)
		at += aligned(len(text))
	}
	return frames, nil
}

// wholeFrame decodes the frame at the start of b.
func wholeFrame(b []byte) (text []byte, ok bool) {
	if string(b[:8]) != frameMagic {
		return nil, false
	}
	length := binary.BigEndian.Uint32(b[16:])
	if length < frameHeader || int64(length) > int64(len(b)) {
		return nil, false
	}
	text = b[:length]
	return text, binary.BigEndian.Uint32(text[frameSum:]) == checksum(text)
}

func decodeFrame(b []byte) (f frame, err error) {
	malformed := errors.New("a frame is malformed")
	first, leaves, signed := binary.BigEndian.Uint64(b[24:]), binary.BigEndian.Uint32(b[32:]),
		binary.BigEndian.Uint32(b[36:])
	if first > 1<<62 || leaves == 0 {
		return f, malformed
	}
	f.first = int64(first)
	b = b[frameHeader:]
	for range leaves {
		if len(b) < 4 {
			return f, malformed
		}
		length := binary.BigEndian.Uint32(b)
		if int64(length) > int64(len(b)-4) {
			return f, malformed
		}
		f.leaves, b = append(f.leaves, b[4:4+length]), b[4+length:]
	}
	if int64(len(b)) != int64(signed) {
		return f, malformed
	}
	f.checkpoint = b
	return f, nil
}
