package worker

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// process is one worker as the daemon sees it. Signer.mu guards the fields of the last group.
type process struct {
	signer *Signer
	cmd    *exec.Cmd
	wire   wire
	pin    *os.File      // the pipe for the PIN
	exited chan struct{} // closed once the process has ended
	heard  chan struct{} // closed once all its output is logged
	began  time.Time
	words  atomic.Pointer[string] // the first line of crash output, for errors
	logins atomic.Bool            // it has logged in
	useful atomic.Bool            // the token has served a request since then
	killed sync.Once
	lost   sync.Once // the first goroutine to notice reports the loss

	pending  map[uint32]*request // sent to it and not answered
	behind   []*request          // the pending requests that no session has begun, oldest first
	lastID   uint32
	sessions int
	pace     pace          // of its answers
	repairs  uint64        // the worker's own
	dead     error         // why it is unusable; nil while it is usable
	watched  bool          // a timer will check for calls that hang
	idle     chan struct{} // if not nil, closed once no request is pending
}

// start starts a worker, which has not loaded the module yet. The calling thread must live as long as the worker,
// because the kernel ends the worker with the thread (PR_SET_PDEATHSIG).
func (s *Signer) start() (p *process, err error) {
	var ours, theirs []*os.File
	defer func() {
		closeAll(theirs)
		if err != nil {
			closeAll(ours)
			err = fmt.Errorf("start the HSM worker: %w", err)
		}
	}()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("socketpair: %w", err)
	}
	nonblocking := unix.SetNonblock(pair[0], true) // before NewFile, which checks it
	socket := os.NewFile(uintptr(pair[0]), "socket")
	ours, theirs = append(ours, socket), append(theirs, os.NewFile(uintptr(pair[1]), "socket"))
	if nonblocking != nil {
		return nil, nonblocking
	}
	pinRead, pinWrite, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	// theirs is in the order of the descriptor constants, from socketDescriptor on
	ours, theirs = append(ours, pinWrite), append(theirs, pinRead)
	said, says, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer says.Close()
	ours = append(ours, said)
	p = &process{
		signer: s, wire: wire{socket}, pin: pinWrite, exited: make(chan struct{}),
		heard: make(chan struct{}), began: time.Now(),
		pending: make(map[uint32]*request),
	}
	p.cmd = s.options.command()
	p.cmd.Env = environment(p.cmd.Environ())
	p.cmd.Stdout, p.cmd.Stderr = says, says
	p.cmd.ExtraFiles = theirs
	// A separate process group: Ctrl-C at the terminal is for the daemon, which ends the worker when it is done.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL, Credential: s.options.User}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go p.listen(said)
	go p.reap()
	go p.read()
	return p, nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

// itself starts this program again, even if an upgrade has replaced the file.
func itself() *exec.Cmd {
	return &exec.Cmd{Path: "/proc/self/exe", Args: []string{os.Args[0], argument}}
}

// environment removes the variables between the service manager and the daemon, and the configuration, which may hold
// secrets.
func environment(of []string) []string {
	return append(slices.DeleteFunc(of, func(variable string) bool {
		name, _, _ := strings.Cut(variable, "=")
		switch name {
		case "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES",
			"GOMAXPROCS", "GOTRACEBACK":
			return true
		}
		return strings.HasPrefix(name, "ATTESTD_")
	}), "GOTRACEBACK=none") // reduces a crash in the module to one line of output
}

// reap waits for the end of the process.
func (p *process) reap() {
	_ = p.cmd.Wait() // ProcessState has the result
	p.pin.Close()
	close(p.exited)
}

// kill ends the process. Unanswered requests stay in pending.
func (p *process) kill() {
	p.killed.Do(func() {
		_ = p.cmd.Process.Kill() // fails only if the process has ended
		p.wire.socket.Close()    // ends read
		p.signer.unkilled.Add(1)
		go func() {
			<-p.exited
			p.signer.unkilled.Add(-1)
		}()
	})
}

// ending waits up to a second for the process to end and describes how it ended, for errors.
func (p *process) ending() string {
	select {
	case <-p.exited:
	case <-time.After(time.Second):
		return "still running"
	}
	select {
	case <-p.heard:
	case <-time.After(100 * time.Millisecond): // a child process of the worker may still hold the pipe
	}
	how := p.cmd.ProcessState.String()
	if words := p.words.Load(); words != nil {
		how += ": " + *words
	}
	return how
}

// mostLines bounds the log lines from one worker's module.
const mostLines = 1000

// listen logs the module's standard output and error, line by line.
func (p *process) listen(said *os.File) {
	defer close(p.heard)
	defer said.Close()
	lines := bufio.NewReaderSize(said, 4<<10)
	for n := 1; ; n++ {
		line, _, err := lines.ReadLine()
		if err != nil {
			return
		}
		text := strings.TrimSpace(strings.ToValidUTF8(string(line), "?"))
		for _, crash := range []string{"SIG", "fatal error: ", "panic: ", argument + ": "} {
			if strings.HasPrefix(text, crash) && p.words.Load() == nil {
				p.words.Store(&text)
			}
		}
		switch {
		case n < mostLines && text != "":
			p.signer.options.Logger.Warn("HSM module output", "line", text, "pid", p.cmd.Process.Pid)
		case n == mostLines:
			p.signer.options.Logger.Warn("HSM module output: further lines are not logged", "lines", n,
				"pid", p.cmd.Process.Pid)
		}
	}
}

// read handles the worker's frames until the worker ends or sends an invalid frame.
func (p *process) read() {
	buffer := make([]byte, headerSize+mostPayload)
	for {
		f, err := p.wire.receive(buffer)
		if err == nil {
			f.payload = bytes.Clone(f.payload)
			err = p.handle(f)
		}
		if err != nil {
			p.lost.Do(func() { p.signer.lost(p, err) })
			return
		}
	}
}

// handle handles a frame of the worker. An error means that the worker is unusable.
func (p *process) handle(f frame) error {
	switch f.kind {
	case kindAnswered:
		return p.signer.answered(p, f, answer{payload: f.payload})
	case kindFailed:
		return p.signer.answered(p, f, answer{err: decodeError(f.payload)})
	case kindLost:
		return decodeError(f.payload)
	case kindWantPIN:
		go p.signer.gate.giveTo(p)
		return nil
	case kindLoggedIn:
		var err error
		if len(f.payload) > 0 {
			err = decodeError(f.payload)
		}
		p.signer.gate.loginEnded(p, err)
		return nil
	case kindLog:
		return p.log(f.payload)
	}
	return fmt.Errorf("%w: unknown message kind %d of a worker", errGarbage, f.kind)
}

// log copies a line of the worker's log to the daemon's.
func (p *process) log(line []byte) error {
	var level slog.Level
	var message string
	var attributes []any
	read := json.NewDecoder(bytes.NewReader(line))
	if _, err := read.Token(); err != nil {
		return errGarbage
	}
	for read.More() {
		name, err := read.Token()
		var value any
		if err != nil || read.Decode(&value) != nil {
			return errGarbage
		}
		switch text, _ := value.(string); name {
		case slog.TimeKey:
		case slog.LevelKey:
			_ = level.UnmarshalText([]byte(text)) // the level stays INFO if it is invalid
		case slog.MessageKey:
			message = text
		default:
			attributes = append(attributes, fmt.Sprint(name), value)
		}
	}
	p.signer.options.Logger.Log(context.Background(), level, message, attributes...)
	return nil
}

// oldest returns how long the oldest request has been inside a call. The caller holds Signer.mu.
func (p *process) oldest(now time.Time) (longest time.Duration) {
	for _, r := range p.pending {
		if !r.inside.IsZero() {
			longest = max(longest, now.Sub(r.inside))
		}
	}
	return longest
}
