package worker

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/hsm"
	"github.com/attestd/attestd/hsm/sandbox"
)

// argument is the command-line argument of a worker.
const argument = "hsm-worker"

// The descriptors of a worker, in addition to the standard ones.
const (
	socketDescriptor = 3
	pinDescriptor    = 4
)

// settings are the worker's instructions for opening a key.
type settings struct {
	URI              string        `json:"uri"`
	Sessions         int           `json:"sessions"`
	Algorithm        hsm.Algorithm `json:"algorithm"`
	AllowExtractable bool          `json:"allowExtractable"`
	Sandbox          sandbox.Rules `json:"sandbox"`
	Again            bool          `json:"again"` // the log already describes how the library is confined
}

// opened is the worker's answer to settings.
type opened struct {
	PublicKey []byte     `json:"publicKey"`
	Status    hsm.Status `json:"status"`
}

// Main runs a worker, and does not return, if this process was started as one; otherwise it returns at once. A program
// that calls Open must call Main first.
func Main() {
	if len(os.Args) != 2 || os.Args[1] != argument {
		return
	}
	if err := serve(); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", argument, err)
		os.Exit(1)
	}
	os.Exit(0) // skips the module's exit handlers, because its threads may hang
}

// child is the worker process.
type child struct {
	wire   wire
	pin    *os.File // answers to kindWantPIN
	signer *hsm.Signer
	tuner  *tuner

	done calls // since the tuner's current measurement began

	working, wanted atomic.Int32 // goroutines that serve requests; wanted is how many there should be
}

// calls counts completed calls into the module, and the time that they took.
type calls struct {
	number atomic.Int64
	busy   atomic.Int64 // nanoseconds
}

func serve() error {
	// the name in ps and top, which would otherwise be exe
	_ = os.WriteFile("/proc/self/comm", []byte("attestd-hsm"), 0)
	if err := hide(); err != nil {
		return err
	}
	// The daemon ends the worker with a frame, or by ending itself, which closes the socket.
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE)
	if kind, err := unix.GetsockoptInt(socketDescriptor, unix.SOL_SOCKET, unix.SO_TYPE); err != nil ||
		kind != unix.SOCK_SEQPACKET {
		return errors.New("only the daemon starts this command, with a socket")
	}
	c := &child{
		wire: wire{descriptor(socketDescriptor)}, pin: os.NewFile(pinDescriptor, "pin"),
	}
	buffer := make([]byte, headerSize+mostPayload)
	first, err := c.wire.receive(buffer)
	if err != nil {
		return err
	}
	if !c.open(first) {
		return nil // open has reported the error to the daemon
	}
	if err := c.dispatch(buffer); !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) {
		return err
	}
	return nil
}

// dispatch serves each request that it receives in a goroutine of its own, until the daemon ends. Requests thus arrive
// while all goroutines of work are inside calls.
func (c *child) dispatch(buffer []byte) error {
	for {
		f, err := c.wire.receive(buffer)
		if err != nil {
			return err
		}
		f.payload = bytes.Clone(f.payload)
		go c.serve(f)
	}
}

// hide keeps the memory, which with some modules contains the key, out of core dumps and from other processes of the
// user.
func hide() error {
	err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0)
	var core unix.Rlimit
	// a sandbox that has set it may forbid setting it
	if unix.Getrlimit(unix.RLIMIT_CORE, &core) != nil || core.Max != 0 {
		err = errors.Join(err, unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}))
	}
	if err != nil {
		return fmt.Errorf("switch core dumps off: %w", err)
	}
	return nil
}

// open carries out the first frame and answers it.
func (c *child) open(f frame) bool {
	answer, err := c.opened(f)
	if err != nil {
		// if this fails, the daemon is gone
		_ = c.wire.send(frame{kind: kindFailed, id: f.id, payload: encodeError(err)})
		return false
	}
	c.staff(c.signer.Usage().Sessions)
	c.answer(f.id, answer)
	return true
}

func (c *child) opened(f frame) ([]byte, error) {
	var told settings
	if err := json.Unmarshal(f.payload, &told); err != nil || f.kind != kindOpen {
		return nil, errGarbage
	}
	log := slog.New(slog.NewJSONHandler(logWriter{c.wire}, &slog.HandlerOptions{Level: slog.LevelDebug}))
	signer, err := c.openSigner(told, log)
	if err != nil {
		return nil, err
	}
	c.signer = signer
	if told.Sessions == 0 && told.Algorithm != hsm.Ed25519 {
		c.tuner = newTuner(&c.done, c.resize, log, signer.Usage())
	}
	status, err := signer.Status(context.Background())
	if err != nil {
		return nil, err
	}
	return json.Marshal(opened{PublicKey: signer.PublicKey(), Status: status})
}

func (c *child) openSigner(told settings, log *slog.Logger) (*hsm.Signer, error) {
	uri, err := hsm.ParseURI(told.URI)
	if err != nil {
		return nil, err
	}
	if err := confine(uri, told, log); err != nil {
		return nil, err
	}
	return hsm.Open(context.Background(), hsm.Options{
		URI: uri, Sessions: told.Sessions, Algorithm: told.Algorithm, AllowExtractable: told.AllowExtractable,
		PIN:    c.askPIN,
		Logger: log,
	})
}

// confine denies the library access to the daemon's files, before the library is loaded.
func confine(uri hsm.URI, told settings, log *slog.Logger) error {
	library, err := uri.Locate()
	if err != nil {
		return err
	}
	if library, err = filepath.Abs(library); err != nil {
		return err
	}
	level, err := sandbox.Enter(library, told.Sandbox)
	if err != nil {
		return err
	}
	attributes := []any{"landlock_abi", level.Landlock, "network", level.Network, "paths", level.Paths}
	switch {
	case told.Again:
	case level.Landlock == 0:
		log.Warn("this kernel lacks Landlock: the HSM's library can open every file that attestd can", attributes...)
	default:
		log.Info("HSM library confined", attributes...)
	}
	return nil
}

// logWriter sends each line of the log as a frame.
type logWriter struct{ wire wire }

func (l logWriter) Write(line []byte) (int, error) {
	return len(line), l.wire.send(frame{kind: kindLog, payload: line})
}

// askPIN asks the daemon to write the PIN into the pipe, for one login.
func (c *child) askPIN() (pin *hsm.PIN, outcome func(error), err error) {
	if err := c.wire.send(frame{kind: kindWantPIN}); err != nil {
		return nil, nil, err
	}
	f, err := receiveAll(c.pin)
	if err != nil {
		return nil, nil, fmt.Errorf("read the PIN from the daemon: %w", err)
	}
	if f.id == 0 {
		return nil, nil, decodeError(f.payload)
	}
	if pin, err = hsm.LockPIN(io.LimitReader(c.pin, int64(f.id))); err != nil {
		return nil, nil, fmt.Errorf("read the PIN from the daemon: %w", err)
	}
	return pin, func(err error) {
		told := frame{kind: kindLoggedIn}
		if err != nil {
			told.payload = encodeError(err)
		}
		_ = c.wire.send(told) // if this fails, the daemon is gone
	}, nil
}

// staff runs n goroutines that serve requests. A call that waits for the HSM occupies one of Go's processors. With one
// processor for each session, no call waits for another.
func (c *child) staff(n int) {
	if procs := max(runtime.NumCPU(), n+2); procs != runtime.GOMAXPROCS(0) {
		runtime.GOMAXPROCS(procs)
	}
	c.wanted.Store(int32(n))
	for int(c.working.Load()) < n {
		c.working.Add(1)
		go c.work()
	}
}

// spare reports whether a goroutine is superfluous and may end.
func (c *child) spare() bool {
	n := c.working.Load()
	return n > c.wanted.Load() && c.working.CompareAndSwap(n, n-1)
}

// resize changes the number of sessions, and returns the resulting number.
func (c *child) resize(n int) (int, error) {
	ctx, cancel := context.WithTimeout(context.Background(), resizeLimit)
	defer cancel()
	got, err := c.signer.Resize(ctx, n)
	c.staff(got)
	return got, err
}

// resizeLimit bounds the wait for a session that is inside a call.
const resizeLimit = 5 * time.Second

// work receives signature requests and serves them, one after the other, in one goroutine. Handing a request to another
// goroutine would take longer than a signature of some modules.
func (c *child) work() {
	buffer := make([]byte, headerSize+mostPayload)
	for !c.spare() {
		f, err := c.wire.receive(buffer)
		if err != nil {
			return // dispatch gets the error, too, and ends the process
		}
		if f.kind != kindSign {
			f.payload = bytes.Clone(f.payload)
			go c.serve(f)
			continue
		}
		c.serve(f)
		c.tuner.update()
	}
}

// serve carries out a request and answers it.
func (c *child) serve(f frame) {
	began := time.Now()
	answer, err := c.do(f)
	switch {
	case err == nil:
		c.answer(f.id, answer)
	case errors.Is(err, hsm.ErrLost):
		// without an answer: the daemon gives the request to another worker
		c.send(frame{kind: kindLost, payload: encodeError(err)})
	default:
		c.send(frame{kind: kindFailed, id: f.id, payload: encodeError(causeOf(err))})
	}
	if f.kind == kindClose {
		os.Exit(0)
	}
	c.done.number.Add(1)
	c.done.busy.Add(int64(time.Since(began)))
}

// causeOf returns the cause for the operator. The daemon chooses the error for the client.
func causeOf(err error) error {
	if e, ok := errors.AsType[*appliance.Error](err); ok && e.Cause != nil {
		return e.Cause
	}
	return err
}

func (c *child) do(f frame) ([]byte, error) {
	ctx := context.Background() // the daemon ends a call that takes too long by killing this process
	switch f.kind {
	case kindSign:
		if len(f.payload) != len(appliance.Digest{}) {
			return nil, errGarbage
		}
		rs, err := c.signer.SignUnchecked(ctx, appliance.Digest(f.payload))
		return rs[:], err
	case kindMessage:
		signature, err := c.signer.SignMessage(ctx, f.payload)
		return signature[:], err
	case kindProbe:
		return nil, c.signer.Probe(ctx)
	case kindFind:
		return nil, c.signer.FindAgain(ctx)
	case kindStatus:
		status, err := c.signer.Status(ctx)
		if err != nil {
			return nil, err
		}
		return json.Marshal(status)
	case kindClose:
		return nil, c.signer.Close()
	}
	return nil, fmt.Errorf("%w: unknown request kind %d", errGarbage, f.kind)
}

func (c *child) answer(id uint32, payload []byte) {
	c.send(frame{kind: kindAnswered, id: id, payload: payload})
}

// send adds the counts that the daemon needs in every frame. If the socket fails, reading it fails, too.
func (c *child) send(f frame) {
	usage := c.signer.Usage()
	f.sessions, f.repairs = uint16(usage.Sessions), uint32(usage.Repairs)
	_ = c.wire.send(f)
}
