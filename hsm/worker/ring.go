package worker

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/attestd/attestd/appliance"
)

// slots bounds the unanswered signature requests of a worker, so that no slot is used twice at the same time.
const slots = 1024

// ringWords is the memory that the daemon shares with a worker, for signature requests and signatures. Under load, each
// side finds the next entry without a system call. All other messages use the socket. Counters start at 0 and wrap.
//
// The daemon writes a request into the slot of the counter asked and then increments asked. A worker thread takes the
// oldest request by incrementing taken. The counter answered selects a signature's slot. The signature is complete
// once the slot's turn is that counter plus 1. Neither side trusts values that the other can write. The daemon keeps
// its own counters, knows which ids it has issued, and checks every signature.
type ringWords struct {
	asked    atomic.Uint32 // a futex, on which worker threads sleep
	_        [60]byte      // words that different threads write have separate cache lines
	taken    atomic.Uint32
	asleep   atomic.Uint32 // threads that sleep, or are about to
	_        [56]byte
	answered atomic.Uint32
	_        [60]byte
	waits    atomic.Uint32 // 1: the daemon waits, and the next answer writes to the eventfd
	_        [60]byte
	requests [slots]askedWords
	answers  [slots]answeredWords
}

type askedWords struct {
	id     uint32
	digest appliance.Digest
}

type answeredWords struct {
	turn                  atomic.Uint32
	id, sessions, repairs uint32
	signature             [64]byte
}

// ring is the daemon's side of the shared memory.
type ring struct {
	words *ringWords
	event *os.File // reading it waits for answers
	asked uint32   // guarded by Signer.mu
	heard uint32   // owned by the goroutine of hear
}

// newRing returns a ring, and the files that a worker needs for it.
func newRing() (r *ring, files []*os.File, err error) {
	memory, err := newMemory(int64(unsafe.Sizeof(ringWords{})))
	if err != nil {
		return nil, nil, err
	}
	words, err := mapRing(int(memory.Fd()))
	if err != nil {
		memory.Close()
		return nil, nil, err
	}
	r = &ring{words: words}
	runtime.AddCleanup(r, unmap, words)
	events, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		memory.Close()
		return nil, nil, fmt.Errorf("eventfd: %w", err)
	}
	return r, []*os.File{memory, os.NewFile(uintptr(events), "event")}, nil
}

// newMemory returns memory that no holder can shrink. Shrinking it would crash the other side.
func newMemory(size int64) (*os.File, error) {
	const name, flags = "attestd-hsm", unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	fd, err := unix.MemfdCreate(name, flags|unix.MFD_NOEXEC_SEAL)
	if errors.Is(err, unix.EINVAL) { // Linux before 6.3
		fd, err = unix.MemfdCreate(name, flags)
	}
	if err != nil {
		return nil, fmt.Errorf("memfd_create: %w", err)
	}
	memory := os.NewFile(uintptr(fd), name)
	err = memory.Truncate(size)
	if err == nil {
		_, err = unix.FcntlInt(memory.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL)
	}
	if err != nil {
		memory.Close()
		return nil, fmt.Errorf("shared memory: %w", err)
	}
	return memory, nil
}

// hear prepares the ring for wait after a worker was started with the event file. Starting a process makes the file
// blocking.
func (r *ring) hear(events *os.File) error {
	fd, err := unix.FcntlInt(events.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err == nil {
		err = unix.SetNonblock(fd, true)
	}
	if err != nil {
		return fmt.Errorf("eventfd: %w", err)
	}
	r.event = os.NewFile(uintptr(fd), "event")
	return nil
}

func mapRing(fd int) (*ringWords, error) {
	at, err := unix.MmapPtr(fd, 0, nil, unsafe.Sizeof(ringWords{}), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("mmap: %w", err)
	}
	return (*ringWords)(at), nil
}

func unmap(words *ringWords) { _ = unix.MunmapPtr(unsafe.Pointer(words), unsafe.Sizeof(*words)) }

// ask adds a signature request; wake must follow. The caller holds Signer.mu, and makes sure that a slot is free.
func (r *ring) ask(id uint32, digest appliance.Digest) {
	r.words.requests[r.asked%slots] = askedWords{id, digest}
	r.asked++
	r.words.asked.Store(r.asked)
}

const futexWake = 1 // futex(2)

// wake wakes one sleeping thread for each new request.
func (r *ring) wake(requests int) {
	if requests > 0 && r.words.asleep.Load() > 0 {
		_, _, _ = unix.Syscall(unix.SYS_FUTEX, uintptr(unsafe.Pointer(&r.words.asked)), futexWake, uintptr(requests))
	}
	runtime.KeepAlive(r)
}

// next returns the next answer as a frame, if it has arrived.
func (r *ring) next() (f frame, there bool) {
	defer runtime.KeepAlive(r)
	slot := &r.words.answers[r.heard%slots]
	if slot.turn.Load() != r.heard+1 {
		return f, false
	}
	r.heard++
	signature := slot.signature
	return frame{kind: kindAnswered, id: slot.id, sessions: uint16(slot.sessions), repairs: slot.repairs,
		payload: signature[:]}, true
}

// wait waits until there may be another answer. It returns an error when the event is closed.
func (r *ring) wait() error {
	var count [8]byte
	r.words.waits.Store(1)
	if r.words.answers[r.heard%slots].turn.Load() == r.heard+1 { // it arrived before the worker could see waits
		return nil
	}
	_, err := r.event.Read(count[:])
	return err
}
