package sinks_test

import (
	"bufio"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/attestd/attestd/appliance/sinks"
)

// receiver is a syslog daemon with faults that a real one cannot produce on demand.
type receiver struct {
	address   string
	authority *authority

	mu      sync.Mutex
	got     []string // each message of a connection that was read to its end
	faults  []fault  // for the next connections
	waiting sync.WaitGroup
}

// fault handles a connection in a faulty way.
type fault func(raw *net.TCPConn, conn net.Conn)

func newReceiver(t testing.TB, plain bool, faults ...fault) *receiver {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	r := &receiver{address: l.Addr().String(), authority: newAuthority(t), faults: faults}
	config := r.authority.server(t, "siem.example.com")
	end := make(chan struct{})
	t.Cleanup(func() { close(end); _ = l.Close(); r.waiting.Wait() })
	r.waiting.Go(func() {
		for {
			raw, err := l.Accept()
			if err != nil {
				return
			}
			conn := raw
			if !plain {
				conn = tls.Server(raw, config)
			}
			stop := make(chan struct{})
			r.waiting.Go(func() {
				select {
				case <-end:
				case <-stop:
				}
				_ = raw.Close()
			})
			r.waiting.Go(func() { defer close(stop); r.serve(raw.(*net.TCPConn), conn) })
		}
	})
	return r
}

func (r *receiver) serve(raw *net.TCPConn, conn net.Conn) {
	r.mu.Lock()
	var bad fault
	if len(r.faults) > 0 {
		bad, r.faults = r.faults[0], r.faults[1:]
	}
	r.mu.Unlock()
	if bad != nil {
		bad(raw, conn)
		return
	}
	defer conn.Close()
	if got, err := frames(conn); err == nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.got = append(r.got, got...)
	}
}

// frames reads all messages of a connection (RFC 5425, section 4.3).
func frames(conn io.Reader) (all []string, err error) {
	in := bufio.NewReader(conn)
	for {
		length, err := in.ReadString(' ')
		if errors.Is(err, io.EOF) && length == "" {
			return all, nil
		}
		if err != nil {
			return all, err
		}
		n, err := strconv.Atoi(strings.TrimSuffix(length, " "))
		if err != nil {
			return all, err
		}
		message := make([]byte, n)
		if _, err := io.ReadFull(in, message); err != nil {
			return all, err
		}
		all = append(all, string(message))
	}
}

func (r *receiver) messages() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.got)
}

func (r *receiver) to() *sinks.Syslog {
	return &sinks.Syslog{Address: r.address, Facility: 13, Host: "signer1.example.com",
		Security: sinks.Security{CA: r.authority.ca, ServerName: "siem.example.com"}}
}

// rfc5424 matches the header of a message, with the MSG as its group.
var rfc5424 = regexp.MustCompile(
	`^<110>1 \d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z signer1\.example\.com attestd - attestation - (\{.*\})$`)

// bodies returns the JSON MSGs of messages.
func bodies(t testing.TB, all []string) (texts []string) {
	t.Helper()
	for _, m := range all {
		parts := rfc5424.FindStringSubmatch(m)
		if parts == nil {
			t.Fatalf("not as RFC 5424 has it: %q", m)
		}
		texts = append(texts, parts[1])
	}
	return texts
}

func TestSyslogSendsEachEntry(t *testing.T) {
	t.Parallel()
	for _, plain := range []bool{false, true} {
		r, j := newReceiver(t, plain), newJournal(t)
		j.attest(t, 25)
		to := r.to()
		to.Plain = plain
		s := j.ship(t, t.TempDir(), sink("siem", to))
		until(t, s, "at the head", func(s sinks.Status) bool { return s.Next == 25 })
		if got := indexesOf(t, bodies(t, r.messages())); !slices.Equal(got, from(0, 25)) {
			t.Errorf("plain %v: %v", plain, got)
		}
	}
}

// After any failure of a receiver, all messages that it may not have read are sent again, and none is skipped.
func TestSyslogReceiversThatFail(t *testing.T) {
	t.Parallel()
	handshake := func(conn net.Conn) {
		if secure, ok := conn.(*tls.Conn); ok {
			_ = secure.Handshake()
		}
	}
	for name, bad := range map[string]fault{
		"refuses": func(raw *net.TCPConn, _ net.Conn) { _ = raw.Close() },
		"is killed when it has read all": func(raw *net.TCPConn, conn net.Conn) {
			_, _ = frames(conn)
			_ = raw.SetLinger(0)
			_ = raw.Close()
		},
		"is killed with all of it unread": func(raw *net.TCPConn, conn net.Conn) {
			handshake(conn)
			_ = raw.SetReadDeadline(time.Now().Add(patience))
			_ = raw.Close()
		},
		"is no TLS": func(raw *net.TCPConn, _ net.Conn) {
			_, _ = raw.Write([]byte("220 mail.example.com ESMTP\r\n"))
			_ = raw.Close()
		},
		"ends its side at once": func(raw *net.TCPConn, conn net.Conn) {
			handshake(conn)
			_ = raw.CloseWrite()
			_ = raw.SetLinger(0)
			_ = raw.Close()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, j := newReceiver(t, false, bad, bad), newJournal(t)
			j.attest(t, 25)
			s := j.ship(t, t.TempDir(), sink("siem", r.to()))
			status := until(t, s, "at the head", func(s sinks.Status) bool { return s.Next == 25 })
			if got := indexesOf(t, bodies(t, r.messages())); !slices.Equal(got, from(0, 25)) {
				t.Errorf("%v", got)
			}
			if status.Failures < 2 {
				t.Errorf("%d failures, want that of each connection", status.Failures)
			}
		})
	}
}

// The batch is larger than all buffers, so the receiver closes before the sender has sent everything.
func TestASyslogReceiverThatCutsWithinAMessage(t *testing.T) {
	t.Parallel()
	r := newReceiver(t, false, func(_ *net.TCPConn, conn net.Conn) {
		_, _ = io.ReadFull(conn, make([]byte, 700))
		_ = conn.Close()
	})
	batch := messages(0, 4000)
	for i := range batch {
		batch[i].Text = make([]byte, 8000)
	}
	ctx, cancel := withTimeout(t, patience)
	defer cancel()
	if err := r.to().Send(ctx, batch); err == nil {
		t.Error("it is said to have taken all")
	}
}

// If a receiver reads nothing or never closes, Take fails when its context ends, which it does once the receiver hangs.
func TestSyslogReceiversThatHang(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		reads fault
		want  string
	}{
		"never answers": {func(raw *net.TCPConn, _ net.Conn) {
			_, _ = io.Copy(io.Discard, io.LimitReader(raw, 1))
		}, "TLS with"},
		"never ends": {func(_ *net.TCPConn, conn net.Conn) { _, _ = frames(conn) }, "RFC 5425, section 4.4"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, end := withTimeout(t, patience)
			defer end()
			r := newReceiver(t, false, func(raw *net.TCPConn, conn net.Conn) {
				test.reads(raw, conn)
				end()
				block(raw)
			})
			if err := r.to().Send(ctx, messages(0, 3)); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}

// block holds a connection open until the other side closes it.
func block(raw *net.TCPConn) { _, _ = io.Copy(io.Discard, raw) }

func TestSyslogAsksForTheRightCertificate(t *testing.T) {
	t.Parallel()
	r := newReceiver(t, false)
	to := r.to()
	to.Security.ServerName = "other.example.com"
	if err := to.Send(t.Context(), messages(0, 1)); err == nil ||
		!strings.Contains(err.Error(), "not other.example.com") {
		t.Errorf("got %v", err)
	}
	to.Security.CA, to.Security.ServerName = newAuthority(t).ca, "siem.example.com"
	if err := to.Send(t.Context(), messages(0, 1)); err == nil || !strings.Contains(err.Error(), "unknown authority") {
		t.Errorf("got %v", err)
	}
}

// Header fields are limited as in RFC 5424, and a byte order mark precedes text that is not ASCII.
func TestSyslogMessages(t *testing.T) {
	t.Parallel()
	r := newReceiver(t, true)
	to := r.to()
	to.Plain, to.Host, to.Facility = true, "a host\x00é"+strings.Repeat("h", 300), 16
	at := time.Date(2026, 11, 22, 3, 4, 5, 678_901_234, time.FixedZone("", 3600))
	check(t, to.Send(t.Context(), []sinks.Message{
		{Kind: "a_kind_of_more_than_thirty_two_bytes", Time: at, Text: []byte("CEF:0|é")},
		{Kind: "", Time: at, Text: []byte("ascii")},
	}))
	host := "ahost" + strings.Repeat("h", 250)
	want := []string{
		"<128>1 2026-11-22T02:04:05.678901Z " + host + " attestd - a_kind_of_more_than_thirty_two_b - \ufeffCEF:0|é",
		"<128>1 2026-11-22T02:04:05.678901Z " + host + " attestd - - - ascii",
	}
	if got := r.messages(); !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

// An event that exceeds the frame size is sent without its details.
func TestSyslogShortensWhatIsTooLong(t *testing.T) {
	t.Parallel()
	r, j := newReceiver(t, false), newJournal(t)
	continued := j.continuedFor(t, strings.Repeat("why ", 249))
	for range 9 {
		continued = continued.continuedFor(t, strings.Repeat("why ", 249))
	}
	s := continued.ship(t, t.TempDir(), sink("siem", r.to()))
	until(t, s, "at the head", func(s sinks.Status) bool { return s.Next == 10 })
	for _, m := range r.messages() {
		if len(m) > 8192 {
			t.Errorf("a message of %d bytes", len(m))
		}
	}
}
