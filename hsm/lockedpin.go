package hsm

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"unsafe"

	"golang.org/x/sys/unix"
)

// PIN is a PIN in separate memory pages, which are neither swapped nor part of a core dump. A nil PIN is empty.
type PIN struct {
	pages    []byte
	size     int
	unlocked error // why the pages could not be locked; nil if they are locked
}

// maxPIN bounds the size of a PIN, in bytes. No token accepts a PIN this long.
const maxPIN = 1024

// LockPIN reads a PIN to its end, without the line break. The caller wipes it. Its errors never contain the PIN.
func LockPIN(from io.Reader) (*PIN, error) {
	pages, err := unix.Mmap(-1, 0, maxPIN, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, err
	}
	p := &PIN{pages: pages}
	// If memory cannot be locked, as in containers with a filter that denies mlock, signing matters more.
	p.unlocked = errors.Join(unix.Mlock(pages), unix.Madvise(pages, unix.MADV_DONTDUMP))
	if err := p.fill(from); err != nil {
		p.Wipe()
		return nil, err
	}
	return p, nil
}

func (p *PIN) fill(from io.Reader) (err error) {
	for err == nil && p.size < len(p.pages) {
		var n int
		n, err = from.Read(p.pages[p.size:])
		p.size += n
	}
	switch {
	case err == nil:
		return fmt.Errorf("the PIN has %d bytes or more", maxPIN)
	case !errors.Is(err, io.EOF):
		return err
	}
	for p.size > 0 && (p.pages[p.size-1] == '\n' || p.pages[p.size-1] == '\r') {
		p.size--
	}
	switch {
	case p.size == 0:
		return errors.New("the PIN is empty")
	case bytes.IndexByte(p.Bytes(), 0) >= 0:
		return errors.New("the PIN has a NUL byte")
	}
	return nil
}

// Bytes returns the PIN itself, not a copy. It must not be used after Wipe.
func (p *PIN) Bytes() []byte {
	if p == nil {
		return nil
	}
	return p.pages[:p.size]
}

// text is Bytes for a binding that takes a string.
func (p *PIN) text() string { return unsafe.String(unsafe.SliceData(p.Bytes()), len(p.Bytes())) }

// Wipe clears the PIN and frees its memory.
func (p *PIN) Wipe() {
	if p == nil {
		return
	}
	clear(p.pages)
	_ = unix.Munmap(p.pages) // also unlocks them
	p.pages, p.size = nil, 0
}
