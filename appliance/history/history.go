// Package history keeps a summary of the appliance's work for each of the last 1,440 minutes and 1,440 half hours, so
// that the console's graphs reach back 30 days. The summaries are in one file of a fixed size. They are for operators:
// they are not part of the journal, and prove nothing.
package history

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/attestd/attestd/appliance/files"
)

// FileName is the file's name in data_dir.
const FileName = "history"

// Step is the work within one minute or one half hour.
type Step struct {
	Start        int64 `json:"start"` // in Unix seconds; a multiple of the step's length
	Attestations int64 `json:"attestations"`
	Refusals     int64 `json:"refusals"` // answered problems with a status below 500, on all routes
	Errors       int64 `json:"errors"`   // the other problems
	Reads        int64 `json:"reads"`    // GraphQL requests
	// Requests is the number of requests for attestations, including refused ones. Without any, P50 and P99 are 0. Of a
	// half hour, P50 is the mean of its minutes' medians, and P99 that of the worst minute.
	Requests int64   `json:"requests"`
	P50      float64 `json:"p50Seconds"`
	P99      float64 `json:"p99Seconds"`
	// Signatures is the number of the HSM's signatures, and HSM their mean latency; 0 without signatures.
	Signatures int64   `json:"signatures"`
	HSM        float64 `json:"hsmSeconds"`
	Sessions   int64   `json:"sessions"` // most HSM sessions inside a call, of the samples taken
}

// Add adds the work of a later step, or of a later part of the same step.
func (s *Step) Add(o Step) {
	s.P50 = mean(s.P50, s.Requests, o.P50, o.Requests)
	s.HSM = mean(s.HSM, s.Signatures, o.HSM, o.Signatures)
	s.P99, s.Sessions = max(s.P99, o.P99), max(s.Sessions, o.Sessions)
	s.Attestations += o.Attestations
	s.Refusals += o.Refusals
	s.Errors += o.Errors
	s.Reads += o.Reads
	s.Requests += o.Requests
	s.Signatures += o.Signatures
}

func mean(a float64, weightA int64, b float64, weightB int64) float64 {
	if weightA+weightB == 0 {
		return 0
	}
	return (a*float64(weightA) + b*float64(weightB)) / float64(weightA+weightB)
}

const (
	format   = "attestd history 1\n" // the file's beginning
	slots    = 1440                  // of each ring: a day of minutes, 30 days of half hours
	stepSize = 11 * 8                // of an encoded Step
	slotSize = stepSize + 4          // with its CRC-32
	fileSize = int64(len(format) + len(lengths)*slots*slotSize)
)

// lengths are the lengths of the rings' steps. A step's slot in its ring follows from its start, so the file needs no
// index, and a write that was cut off damages only its own slot.
var lengths = [...]time.Duration{time.Minute, 30 * time.Minute}

// Longest is how far back a History reaches.
const Longest = 30 * 24 * time.Hour

// History is the history in one file. It is safe for concurrent use.
type History struct {
	logger *slog.Logger
	file   *os.File // nil if it cannot be opened: the history then ends with the process

	mu     sync.Mutex // guards the fields below
	rings  [len(lengths)][slots]Step
	failed bool // the last write failed
}

// Open reads the history at path. A file that is missing, damaged or unreadable starts again: the history must never
// prevent a start. The log has the reason.
func Open(path string, logger *slog.Logger) *History {
	h := &History{logger: logger}
	damaged, err := h.open(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		logger.Warn("history: cannot be read; it starts again", "file", path, "error", err.Error())
	}
	if err != nil {
		h.rings = [len(lengths)][slots]Step{}
		if err = h.create(path); err != nil {
			logger.Warn("history: cannot be written; it ends when attestd stops", "file", path, "error", err.Error())
		}
	}
	if damaged > 0 {
		logger.Warn("history: damaged steps are left out", "file", path, "steps", damaged)
	}
	return h
}

// open reads all rings, and returns the number of damaged steps.
func (h *History) open(path string) (damaged int, err error) {
	f, err := os.OpenFile(path, os.O_RDWR|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return 0, err
	}
	text := make([]byte, fileSize)
	if found, err := f.Stat(); err != nil || !found.Mode().IsRegular() || found.Size() != fileSize {
		return 0, errors.Join(err, errors.New("it is not a history of this version"), f.Close())
	}
	if _, err := f.ReadAt(text, 0); err != nil {
		return 0, errors.Join(err, f.Close())
	}
	if !bytes.HasPrefix(text, []byte(format)) {
		return 0, errors.Join(errors.New("it is not a history of this version"), f.Close())
	}
	text = text[len(format):]
	for ring := range h.rings {
		for slot := range h.rings[ring] {
			if h.rings[ring][slot], err = decode(text[:slotSize]); err != nil {
				damaged++
			}
			text = text[slotSize:]
		}
	}
	h.file = f
	return damaged, nil
}

// create replaces the file at path by an empty history.
func (h *History) create(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	empty := append([]byte(format), make([]byte, fileSize-int64(len(format)))...)
	if err := files.Write(path, empty, 0o600); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_RDWR|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	h.file = f
	return files.HandOver(filepath.Dir(path), filepath.Base(path))
}

func encode(s Step) []byte {
	text, err := binary.Append(make([]byte, 0, slotSize), binary.LittleEndian, s)
	if err != nil {
		panic(err) // a Step has fields of fixed sizes only
	}
	return binary.LittleEndian.AppendUint32(text, crc32.ChecksumIEEE(text))
}

// decode returns the zero Step for a slot that was never written, and for a damaged one.
func decode(slot []byte) (s Step, err error) {
	text, sum := slot[:stepSize], binary.LittleEndian.Uint32(slot[stepSize:])
	if len(bytes.Trim(slot, "\x00")) == 0 {
		return s, nil
	}
	if crc32.ChecksumIEEE(text) != sum {
		return s, errors.New("wrong checksum")
	}
	_, err = binary.Decode(text, binary.LittleEndian, &s)
	return s, err
}

// Add adds the work that ended at a time. An error of the file is in the log; the work is then in memory only.
func (h *History) Add(end time.Time, s Step) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var failure error
	for ring, length := range lengths {
		s.Start = max(0, end.Add(-1).Truncate(length).Unix())
		slot := int(s.Start / int64(length.Seconds()) % slots)
		kept := &h.rings[ring][slot]
		if kept.Start == s.Start {
			kept.Add(s)
		} else {
			*kept = s
		}
		if h.file != nil {
			at := int64(len(format) + (ring*slots+slot)*slotSize)
			_, err := h.file.WriteAt(encode(*kept), at)
			failure = errors.Join(failure, err)
		}
	}
	if failure != nil && !h.failed {
		h.logger.Warn("history: cannot be written", "error", failure.Error())
	}
	h.failed = failure != nil
}

// Since returns the steps from a time on, oldest first, and their length: minutes up to a day before now, half hours
// up to Longest. A step in which attestd did not run is missing.
func (h *History) Since(from, now time.Time) (length time.Duration, steps []Step) {
	ring := 0
	if now.Sub(from) > slots*lengths[0] {
		ring = 1
	}
	length = lengths[ring]
	h.mu.Lock()
	defer h.mu.Unlock()
	first := max(0, from.Truncate(length).Unix(), now.Add(-(slots-1)*length).Truncate(length).Unix())
	for start := first; start <= now.Unix(); start += int64(length.Seconds()) {
		if s := h.rings[ring][start/int64(length.Seconds())%slots]; s.Start == start {
			steps = append(steps, s)
		}
	}
	return length, steps
}

// Run adds the work that measure returns, since its last call, at the end of each minute and when ctx ends.
func (h *History) Run(ctx context.Context, measure func() Step) {
	for {
		now := time.Now()
		timer := time.NewTimer(now.Truncate(time.Minute).Add(time.Minute).Sub(now))
		select {
		case end := <-timer.C:
			h.Add(end.Truncate(time.Minute), measure())
		case <-ctx.Done():
			timer.Stop()
			h.Add(time.Now(), measure())
			return
		}
	}
}

// Close closes the file.
func (h *History) Close() error {
	if h.file == nil {
		return nil
	}
	if err := h.file.Close(); err != nil {
		return fmt.Errorf("close the history: %w", err)
	}
	return nil
}
