package console

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
)

// patience bounds waits; a passing test stays far below it.
const patience = time.Minute

// street is a listener, with clients at several local addresses.
type street struct {
	*testing.T
	l *listener
}

func newStreet(t *testing.T) *street {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return &street{t, newListener(l)}
}

// connect returns both ends of a new connection.
func (s *street) connect(from string) (client net.Conn, accepted *connection) {
	s.Helper()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	client, err := dialer.DialContext(s.Context(), "tcp", s.l.Addr().String())
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { _ = client.Close() })
	c, err := s.l.Accept()
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { _ = c.Close() })
	return client, c.(*connection)
}

// closed waits for the end of a connection.
func (s *street) closed(client net.Conn) {
	s.Helper()
	if err := client.SetReadDeadline(time.Now().Add(patience)); err != nil {
		s.Fatal(err)
	}
	if _, err := client.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		s.Errorf("the connection is open: %v", err)
	}
}

func TestSilentConnectionsKeepNobodyOut(t *testing.T) {
	t.Parallel()
	s := newStreet(t)
	var silent []net.Conn
	for i := range maxConnections {
		c, _ := s.connect(fmt.Sprintf("127.0.0.%d", 2+i%4))
		silent = append(silent, c)
	}
	_, operator := s.connect("127.0.0.9")
	s.closed(silent[0])
	operator.begin(true)
	operator.end()
	for i := range 2 * maxConnections {
		s.connect(fmt.Sprintf("127.0.0.%d", 2+i%4))
	}
	if operator.place == nil {
		t.Error("the connection of an operator was closed")
	}
}

func TestOneAddressMakesPlaceForItselfOnly(t *testing.T) {
	t.Parallel()
	s := newStreet(t)
	_, other := s.connect("127.0.0.2")
	busy, asked := s.connect("127.0.0.3")
	asked.begin(false)
	first, _ := s.connect("127.0.0.3")
	for range maxConnectionsPerAddress {
		s.connect("127.0.0.3")
	}
	s.closed(first)
	if other.place == nil || asked.place == nil {
		t.Error("a connection was closed for one of another address, or with a request in progress")
	}
	_ = busy
}

// offline is a provider that is already discovered and never contacted.
func offline(t *testing.T) *provider {
	t.Helper()
	p := newProvider(&OIDC{ClientID: "attestd", Secret: func() (string, error) {
		return "", nil
	}}, "http://127.0.0.1:9465/oidc/callback", time.Now)
	known := oidc.ProviderConfig{IssuerURL: "https://login.example.com", AuthURL: "https://login.example.com/auth"}
	p.discovered = known.NewProvider(t.Context())
	return p
}

func TestSignInsThatHaveBegunAreNotEvicted(t *testing.T) {
	t.Parallel()
	p := offline(t)
	from := func(n int) context.Context {
		network := netip.AddrFrom4([4]byte{10, 0, byte(n >> 8), byte(n)})
		return context.WithValue(t.Context(), connectionKey{}, &connection{network: network})
	}
	to, cookie, err := p.begin(from(0), "/settings", false)
	if err != nil {
		t.Fatal(err)
	}
	refused := 0
	for n := range 10_000 {
		if _, _, err := p.begin(from(1+n%5), "/", false); err != nil {
			refused++
		}
	}
	if len(p.pending) > 1+5*(startBurst+5) || refused == 0 {
		t.Errorf("%d sign-ins of five addresses have begun, %d were refused", len(p.pending), refused)
	}
	for n := range 2 * mostPending { // of many addresses, which fill all places
		_, _, _ = p.begin(from(100+n%500), "/", false)
	}
	if len(p.pending) != mostPending {
		t.Errorf("%d sign-ins of many addresses have begun, want %d", len(p.pending), mostPending)
	}
	state := regexp.MustCompile(`[?&]state=([^&]+)`).FindStringSubmatch(to)[1]
	if begun, ok := p.takePending(state, cookie); !ok || begun.next != "/settings" {
		t.Error("a sign-in that had begun was evicted")
	}
}

func TestNoNameHidesTheSubject(t *testing.T) {
	t.Parallel()
	for _, email := range []string{strings.Repeat("a", 500), "admin (0)\u2028", strings.Repeat(" ", 300),
		"bob@example.com"} {
		name := claims{Subject: "7f3a", Email: email}.name()
		if rest, first := strings.CutPrefix(name, "7f3a"); !first || len(name) > 100 || rest != "" &&
			!strings.HasPrefix(rest, " (") {
			t.Errorf("%q is named %q", email, name)
		}
	}
	if name := (claims{Subject: strings.Repeat("s", maxSubject), Username: "x"}).name(); !strings.HasPrefix(name,
		strings.Repeat("s", maxSubject)+" (") {
		t.Errorf("the subject is cut: %q", name)
	}
}
