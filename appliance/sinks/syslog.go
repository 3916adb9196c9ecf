package sinks

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// Syslog sends messages to a syslog daemon: RFC 5424, with the octet counting of RFC 5425, section 4.3.
//
// Syslog has no acknowledgements, and messages can be lost with their connection. So each batch uses its own
// connection, which is closed as in RFC 5425, section 4.4. The sender sends close_notify; the receiver closes its side
// after reading all messages. Only then is the batch accepted.
type Syslog struct {
	Address  string // host:port
	Plain    bool   // TCP without TLS
	Security Security
	Facility Facility
	Host     string // HOSTNAME of the messages
}

// Facility is a syslog facility (RFC 5424, section 6.2.1).
type Facility int

// facilities are the supported facilities, by their names in syslog daemons.
var facilities = []struct {
	name string
	code Facility
}{
	{"user", 1}, {"daemon", 3}, {"auth", 4}, {"authpriv", 10}, {"audit", 13},
	{"local0", 16}, {"local1", 17}, {"local2", 18}, {"local3", 19}, {"local4", 20}, {"local5", 21}, {"local6", 22},
	{"local7", 23},
}

// ParseFacility reads a facility's name.
func ParseFacility(name string) (Facility, error) {
	names := make([]string, len(facilities))
	for i, f := range facilities {
		if names[i] = f.name; f.name == name {
			return f.code, nil
		}
	}
	return 0, fmt.Errorf("%q is not one of %s", name, strings.Join(names, ", "))
}

// Send implements Destination.
func (s *Syslog) Send(ctx context.Context, batch []Message) error {
	conn, err := s.dial(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // the batch is confirmed or sent again
	if deadline, ok := ctx.Deadline(); ok {
		_ = conn.SetDeadline(deadline) // fails only on a closed connection
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	w := bufio.NewWriterSize(conn, 64<<10)
	for _, m := range batch {
		frame := s.message(m)
		fmt.Fprintf(w, "%d ", len(frame))
		_, _ = w.Write(frame) // Flush returns the error
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("send to %s: %w", s, err)
	}
	return s.confirm(ctx, conn)
}

func (s *Syslog) dial(ctx context.Context) (ending, error) {
	raw, err := new(net.Dialer).DialContext(ctx, "tcp", s.Address)
	if err != nil {
		return nil, err
	}
	tcp := raw.(*net.TCPConn)
	if s.Plain {
		return plainConn{tcp}, nil
	}
	host, _, _ := net.SplitHostPort(s.Address)
	config, err := s.Security.config(host)
	if err != nil {
		return nil, errors.Join(err, tcp.Close())
	}
	// no session resumption: with client certificates, rsyslog's OpenSSL driver refuses it
	conn := tls.Client(tcp, config)
	if err := conn.HandshakeContext(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("TLS with %s: %w", s, err), tcp.Close())
	}
	return conn, nil
}

// ending is a connection that can be closed in one direction.
type ending interface {
	net.Conn
	CloseWrite() error
	NetConn() net.Conn
}

type plainConn struct{ *net.TCPConn }

func (c plainConn) NetConn() net.Conn { return c.TCPConn }

// confirm closes the sending direction and waits until the receiver closes, too. The receiver has read everything if
// TCP has no unacknowledged bytes then, because closing with unread bytes resets the connection. A receiver that closes
// first, because it rejects a message or is stopping, has not read everything.
func (s *Syslog) confirm(ctx context.Context, conn ending) error {
	err := staysOpen(ctx, conn)
	if err == nil {
		err = ctx.Err() // ctx may have ended before a deadline of conn was set again
	}
	if err == nil {
		err = conn.CloseWrite()
	}
	if err == nil {
		_, err = io.Copy(io.Discard, conn)
	}
	if err == nil {
		var left int
		if left, err = unacknowledged(conn.NetConn()); left > 0 {
			err = fmt.Errorf("%d bytes were not acknowledged", left)
		}
	}
	if err != nil {
		return fmt.Errorf("%s did not close the connection after all messages (RFC 5425, section 4.4), so they are "+
			"sent again: %w", s, err)
	}
	return nil
}

// A receiver that closes on its own does so within endsEarly of acknowledging the last byte. staysOpen polls every
// lookAgain.
const (
	endsEarly = 50 * time.Millisecond
	lookAgain = 5 * time.Millisecond
)

// staysOpen returns an error if the receiver closes the connection before the sender does.
func staysOpen(ctx context.Context, conn ending) error {
	deadline, _ := ctx.Deadline()
	defer func() { _ = conn.SetReadDeadline(deadline) }()
	var settled time.Time // time when all bytes were acknowledged
	for settled.IsZero() || time.Since(settled) < endsEarly {
		_ = conn.SetReadDeadline(time.Now().Add(lookAgain))
		_, err := conn.Read(make([]byte, 1))
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err == nil || errors.Is(err, io.EOF):
			return errors.New("the connection ended before all was sent")
		case !errors.Is(err, os.ErrDeadlineExceeded):
			return err
		}
		left, err := unacknowledged(conn.NetConn())
		if err != nil {
			return err
		}
		if left == 0 && settled.IsZero() {
			settled = time.Now()
		}
	}
	return nil
}

// unacknowledged returns the number of bytes that the receiver's TCP has not acknowledged.
func unacknowledged(conn net.Conn) (left int, err error) {
	raw, err := conn.(syscall.Conn).SyscallConn()
	if err != nil {
		return 0, err
	}
	failed := raw.Control(func(fd uintptr) { left, err = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) })
	return left, errors.Join(err, failed)
}

// Close implements Destination.
func (s *Syslog) Close() error { return nil }

func (s *Syslog) String() string {
	if s.Plain {
		return "tcp://" + s.Address
	}
	return "tls://" + s.Address
}

// Limits of RFC 5424, section 6, and the frame size that receivers should accept (RFC 5425, section 4.3.1).
const (
	maxHostname = 255
	maxMsgID    = 32
	maxFrame    = 8192
)

const (
	nilValue      = "-"
	appName       = "attestd"
	byteOrderMark = "\ufeff"
)

// message returns a SYSLOG-MSG. All content is in MSG. It has no structured data, because that would need a private
// enterprise number.
func (s *Syslog) message(m Message) []byte {
	b := fmt.Appendf(make([]byte, 0, 128+len(m.Text)), "<%d>1 %s %s %s %s %s %s ", int(s.Facility)*8+int(m.severity),
		m.Time.UTC().Format("2006-01-02T15:04:05.000000Z"), printable(s.Host, maxHostname), appName, nilValue,
		printable(m.Kind, maxMsgID), nilValue)
	text := m.Text
	if len(b)+len(byteOrderMark)+len(text) > maxFrame && m.brief != nil {
		text = m.brief
	}
	if !ascii(text) { // JSON is always ASCII
		b = append(b, byteOrderMark...)
	}
	return append(b, text...)
}

func ascii(text []byte) bool {
	return !slices.ContainsFunc(text, func(c byte) bool { return c >= utf8.RuneSelf })
}

// printable returns text for a header field: PRINTUSASCII, at most most bytes, "-" if empty.
func printable(text string, most int) string {
	text = strings.Map(func(r rune) rune {
		if r <= ' ' || r >= 0x7f {
			return -1
		}
		return r
	}, text)
	if text == "" {
		return nilValue
	}
	return text[:min(len(text), most)]
}
