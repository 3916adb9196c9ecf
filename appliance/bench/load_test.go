package bench

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/daemontest"
)

// attesters are clients that each request one attestation after another on a connection of their own. One thread serves
// them all by epoll(7), writes prepared requests, and reads only the end of each answer. The server loses the cores
// that the clients take.
type attesters struct {
	epoll     int
	clients   []*loadClient
	random    *rand.Rand
	base      time.Time // start of the clock
	latencies []time.Duration
	samples   []sample
	counts    bool // answers are counted
	asks      bool // a client that has its answer sends the next request
}

// loadClient is one connection.
type loadClient struct {
	fd      int
	request []byte // the whole request; only its addresses vary
	varies  [2]int // offsets of the digits that vary
	asked   time.Duration
	waits   bool   // for an answer
	answer  []byte // the part that was read
}

// sample is an answer that is checked after the measurement.
type sample struct{ request, answer []byte }

// loaded is the result of a load between its two marks.
type loaded struct {
	perSecond, cpuMicros float64 // cpuMicros is CPU of this process per answer
	answers              int
	p50, p99             time.Duration
	elapsed              time.Duration
	busy                 float64 // CPU of the whole machine, in microseconds
}

const (
	varyingDigits = 16 // of the 40 of an address
	mostSamples   = 32
	sampleEvery   = 97 // answers
	loadAddresses = 8  // 127.0.0.1 and the next ones
	fewestAnswers = 20 // a measurement lasts until there are as many
)

// runLoad runs clients for warm and then for each. It calls mark with 0 when the second part begins and with 1 when it
// ends, so that the caller can read its clocks. It returns when all answers have arrived.
func runLoad(tb testing.TB, address, key string, connections int, warm, each time.Duration,
	mark func(edge int)) loaded {
	tb.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	l := &attesters{random: rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64())), base: time.Now(), asks: true}
	defer l.close()
	if err := l.connect(address, key, connections); err != nil {
		tb.Fatalf("load: %v", err)
	}
	steps := []func() error{
		func() error { return l.serveUntil(l.now() + warm) },
		func() error { mark(0); l.counts = true; return nil },
	}
	var r loaded
	steps = append(steps, func() error {
		return l.measure(&r, each)
	}, func() error { mark(1); l.counts, l.asks = false, false; return nil },
		func() error { return l.serveUntil(l.now() + daemontest.Patience) })
	for _, step := range steps {
		if err := step(); err != nil {
			tb.Fatalf("load: %d connections: %v", connections, err)
		}
	}
	l.check(tb)
	return r
}

func (l *attesters) now() time.Duration { return time.Since(l.base) }

func (l *attesters) measure(r *loaded, each time.Duration) error {
	busy, cpu, began := machineCPU(), ownCPU(), l.now()
	for l.now() < began+each || len(l.latencies) < fewestAnswers && l.now() < began+daemontest.Patience {
		if err := l.serveUntil(l.now() + each); err != nil {
			return err
		}
	}
	r.elapsed = l.now() - began
	spent := ownCPU() - cpu
	r.busy = machineCPU() - busy
	r.answers = len(l.latencies)
	if r.answers == 0 {
		return errors.New("no request was answered")
	}
	slices.Sort(l.latencies)
	r.perSecond = float64(r.answers) / r.elapsed.Seconds()
	r.cpuMicros = micros(spent) / float64(r.answers)
	r.p50, r.p99 = l.latencies[r.answers/2], l.latencies[r.answers*99/100]
	return nil
}

// ownCPU is the CPU time of this process.
func ownCPU() time.Duration {
	var usage syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &usage) // fails only for a bad address
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// machineCPU is the time, in microseconds, for which all cores were busy or taken away by the host (proc(5), stat).
func machineCPU() (busy float64) {
	const idle, wait, last, tick = 3, 4, 7, 10_000
	text, _ := os.ReadFile("/proc/stat") // without it, the CPU of other processes counts as 0
	line, _, _ := strings.Cut(string(text), "\n")
	for i, field := range strings.Fields(strings.TrimPrefix(line, "cpu")) {
		ticks, _ := strconv.ParseFloat(field, 64)
		if i <= last && i != idle && i != wait {
			busy += ticks * tick
		}
	}
	return busy
}

// connect opens the connections, from several addresses of this machine in turn, and sends a request on each.
func (l *attesters) connect(address, key string, connections int) (err error) {
	to, err := netip.ParseAddrPort(address)
	if err != nil {
		return err
	}
	if l.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return fmt.Errorf("epoll_create1: %w", err)
	}
	for i := range connections {
		c := &loadClient{answer: make([]byte, 0, 4096)}
		c.makeRequest(daemontest.RandomRequest(), address, key)
		if c.fd, err = connectFrom(to, byte(1+i%loadAddresses)); err != nil {
			return fmt.Errorf("connect to %s: %w", to, err)
		}
		l.clients = append(l.clients, c)
		if err := unix.EpollCtl(l.epoll, unix.EPOLL_CTL_ADD, c.fd,
			&unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(i)}); err != nil {
			return fmt.Errorf("epoll_ctl: %w", err)
		}
	}
	for _, c := range l.clients {
		if err := l.ask(c); err != nil {
			return err
		}
	}
	return nil
}

// connectFrom connects from 127.0.0.HOST.
func connectFrom(to netip.AddrPort, host byte) (int, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	err = errors.Join(
		unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1), // one search for a port, not two
		unix.SetsockoptInt(fd, unix.SOL_TCP, unix.TCP_NODELAY, 1),
		unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, host}}),
		unix.Connect(fd, &unix.SockaddrInet4{Addr: to.Addr().As4(), Port: int(to.Port())}),
		unix.SetNonblock(fd, true),
	)
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// makeRequest builds the whole request.
func (c *loadClient) makeRequest(r appliance.Request, host, key string) {
	body := fmt.Sprintf(`{"unspendableAddress":"0x%x","beneficiary":"0x%x"}`, r.UnspendableAddress[:], r.Beneficiary[:])
	c.request = fmt.Appendf(nil,
		"POST /functions/v1/attest HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nX-Api-Key: %s\r\nContent-Length: %d\r\n\r\n%s",
		host, key, len(body), body)
	start := len(c.request) - len(body)
	for i, name := range []string{`Address":"0x`, `beneficiary":"0x`} {
		c.varies[i] = start + bytes.Index(c.request[start:], []byte(name)) + len(name)
	}
}

// ask sends the next request of a client.
func (l *attesters) ask(c *loadClient) error {
	for _, at := range c.varies {
		for i, digits := 0, l.random.Uint64(); i < varyingDigits; i, digits = i+1, digits>>4 {
			c.request[at+i] = "0123456789abcdef"[digits&15]
		}
	}
	c.answer, c.asked, c.waits = c.answer[:0], l.now(), true
	n, err := unix.Write(c.fd, c.request)
	if err == nil && n < len(c.request) {
		err = fmt.Errorf("%d of %d bytes", n, len(c.request))
	}
	if err != nil {
		return fmt.Errorf("write a request: %w", err)
	}
	return nil
}

// serveUntil serves all clients until end. Once they send no new requests, it returns when each has its answer.
func (l *attesters) serveUntil(end time.Duration) error {
	events := make([]unix.EpollEvent, 256)
	for {
		left := end - l.now()
		if !l.asks && !slices.ContainsFunc(l.clients, func(c *loadClient) bool { return c.waits }) {
			return nil
		}
		if left <= 0 && !l.asks {
			return fmt.Errorf("requests had no answer within %s", daemontest.Patience)
		}
		if left <= 0 {
			return nil
		}
		n, err := unix.EpollWait(l.epoll, events, int((left+time.Millisecond-1)/time.Millisecond))
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("epoll_wait: %w", err)
		}
		for _, e := range events[:max(0, n)] {
			if err := l.serve(l.clients[e.Fd]); err != nil {
				return err
			}
		}
	}
}

// serve reads the available bytes of a client.
func (l *attesters) serve(c *loadClient) error {
	n, err := unix.Read(c.fd, c.answer[len(c.answer):cap(c.answer)])
	if err != nil || n == 0 {
		return fmt.Errorf("read an answer: %d bytes, %w; so far %q", n, err, c.answer)
	}
	c.answer = c.answer[:len(c.answer)+n]
	whole, err := isWhole(c.answer)
	if err != nil || !whole {
		return err
	}
	c.waits = false
	if l.counts {
		l.latencies = append(l.latencies, l.now()-c.asked)
		if len(l.samples) < mostSamples && len(l.latencies)%sampleEvery == 1 {
			l.samples = append(l.samples, sample{bytes.Clone(c.request), bytes.Clone(c.answer)})
		}
	}
	if l.asks {
		return l.ask(c)
	}
	return nil
}

// isWhole reports whether the answer is complete. Any status except 200 is an error.
func isWhole(answer []byte) (bool, error) {
	const ok, length = "HTTP/1.1 200 ", "\r\nContent-Length: "
	head := bytes.Index(answer, []byte("\r\n\r\n"))
	if head < 0 {
		return false, nil
	}
	if !bytes.HasPrefix(answer, []byte(ok)) {
		return false, fmt.Errorf("answered %q", answer)
	}
	at := bytes.Index(answer[:head], []byte(length)) + len(length)
	if at < len(length) {
		return false, fmt.Errorf("an answer without a length: %q", answer)
	}
	digits, _, _ := bytes.Cut(answer[at:head+2], []byte("\r"))
	size, err := strconv.Atoi(string(digits))
	return len(answer) >= head+4+size, err
}

// check checks that the sampled answers attest the addresses of their requests.
func (l *attesters) check(tb testing.TB) {
	tb.Helper()
	for _, s := range l.samples {
		if err := s.check(); err != nil {
			tb.Errorf("%v: %q to %q", err, s.answer, s.request)
		}
	}
}

func (s sample) check() error {
	scheme, err := appliance.NewScheme(appliance.SchemeKeccak256BN254, nil)
	if err != nil {
		return err
	}
	_, asked, _ := bytes.Cut(s.request, []byte("\r\n\r\n"))
	_, answered, _ := bytes.Cut(s.answer, []byte("\r\n\r\n"))
	var r appliance.Request
	var a appliance.Attestation
	if err := errors.Join(json.Unmarshal(asked, &r), json.Unmarshal(answered, &a)); err != nil {
		return err
	}
	if want := scheme.Digest(r); a.Hash != want {
		return fmt.Errorf("the hash is not that of the addresses, %s", hex.EncodeToString(want[:]))
	}
	return a.Verify()
}

func (l *attesters) close() {
	for _, c := range l.clients {
		unix.Close(c.fd)
	}
	unix.Close(l.epoll)
}
