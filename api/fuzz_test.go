package api_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gofiber/fiber/v2"

	"github.com/attestd/attestd/api"
)

// received is a request as a handler of the server sees it, or as strict parses it.
type received struct {
	Method, Target string
	Body           []byte
	headOnly       bool // the body does not match the head
}

// FuzzConnection writes arbitrary bytes on a connection and closes its sending side. Each request that the server sees
// must be one according to RFC 9112, with the same method, target and body, and the next one must begin at its end. A
// request may be answered before its body was read, but then it is the last.
func FuzzConnection(f *testing.F) {
	const post = "POST /fuzz HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
	for _, seed := range []string{
		"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n",
		"HEAD /fuzz?a=b HTTP/1.1\r\nHost: x\r\n\r\nGET /healthz HTTP/1.0\r\nConnection: keep-alive\r\n\r\nGET / HTTP/1.1\r\nHost:\r\n\r\n",
		post + "Content-Length: 2\r\n\r\n{}" + post + "Content-Length: 0\r\n\r\n" + post + "\r\n",
		post +
			"Transfer-Encoding: chunked\r\n\r\n2;a=\"b\"\r\n{}\r\n0\r\nX-T: 1\r\n\r\nGET /healthz HTTP/1.1\r\nHost: x\r\n\r\n",
		post + "Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n01\r\n}\r\n000\r\n\r\n",
		post + "Expect: 100-continue\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}x",
		"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n\r\nGET http://x/fuzz HTTP/1.1\r\nHost: x\r\nX: \ta\t\r\n\r\n",
		post +
			"Content-Length: 30\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /healthz HTTP/1.1\r\nHost: x\r\n\r\n",
	} {
		f.Add([]byte(seed))
	}
	r := newRig(f, func(o *api.Options) {
		o.Routes = append(o.Routes,
			api.Route{Method: "POST", Path: "/fuzz", Probe: true, BodyLimit: 1 << 16, Handler: tell})
	})
	f.Fuzz(func(t *testing.T, sent []byte) {
		want, wrong := strictAll(sent)
		got := exchangeAll(t, r.address, sent, want)
		for i, a := range got {
			if refuses(a.status) {
				return // the server reads no further
			}
			if i >= len(want) {
				t.Fatalf("%q: request %d was answered with %s, but %v", sent, i+1, a, wrong)
			}
			var told received
			if want[i].headOnly && (!a.last || a.header.Get("X-Told") != "") {
				t.Fatalf("%q: request %d was answered with %s, though %v", sent, i+1, a, wrong)
			}
			if a.header.Get("X-Told") == "" {
				continue
			}
			if err := json.Unmarshal(a.body, &told); err != nil {
				t.Fatal(err)
			}
			if told.Method != want[i].Method || told.Target != want[i].Target || !bytes.Equal(told.Body, want[i].Body) {
				t.Fatalf("%q: request %d is %+v, and was taken for %+v", sent, i+1, want[i], told)
			}
		}
	})
}

// tell answers with the request.
func tell(c *fiber.Ctx) error {
	body, err := json.Marshal(
		received{Method: c.Method(), Target: string(c.Context().Request.Header.RequestURI()), Body: api.Body(c)})
	if err != nil {
		return err
	}
	c.Set("X-Told", "1")
	return c.Send(body)
}

// refuses reports whether status may answer bytes that are not a request.
func refuses(status int) bool {
	return strings.Contains(" 400 408 413 417 431 501 505 ", " "+strconv.Itoa(status)+" ")
}

// exchangeAll sends the bytes, closes its sending side, and reads all answers. Answers to HEAD have no body.
func exchangeAll(t *testing.T, address string, sent []byte, requests []received) (answers []answer) {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	go func() {
		_, _ = conn.Write(sent) // may fail if the server has closed the connection
		_ = conn.(*net.TCPConn).CloseWrite()
	}()
	in := bufio.NewReader(conn)
	for {
		asked := &http.Request{Method: http.MethodGet}
		if len(answers) < len(requests) {
			asked.Method = requests[len(answers)].Method
		}
		resp, err := http.ReadResponse(in, asked)
		if e, timeout := errors.AsType[net.Error](err); timeout && e.Timeout() {
			t.Fatalf("%q: no answer and no end within %s", sent, patience)
		}
		if err != nil {
			return answers
		}
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			return answers
		}
		if resp.StatusCode != http.StatusContinue {
			answers = append(answers, answer{resp.StatusCode, resp.Header, body, resp.Close})
		}
	}
}

// strictAll parses as many requests as possible, and returns the error of the next.
func strictAll(sent []byte) (all []received, wrong error) {
	s := &strict{rest: sent}
	for {
		// A server should ignore empty lines before a request (section 2.2).
		for bytes.HasPrefix(s.rest, []byte("\r\n")) {
			s.rest = s.rest[2:]
		}
		r, err := s.request()
		if err == nil || r.headOnly {
			all = append(all, r)
		}
		if err != nil {
			return all, err
		}
	}
}

// strict parses requests as RFC 9112 defines them. It never uses the leniency that the RFC allows a recipient.
type strict struct{ rest []byte }

// line reads a line that ends in CRLF and contains no other CR, LF or NUL.
func (s *strict) line() (string, error) {
	line, rest, found := bytes.Cut(s.rest, []byte("\r\n"))
	if !found || bytes.ContainsAny(line, "\r\n\x00") {
		return "", errors.New("a line without its CRLF")
	}
	s.rest = rest
	return string(line), nil
}

func (s *strict) request() (r received, err error) {
	first, err := s.line()
	if err != nil {
		return r, err
	}
	parts := strings.Split(first, " ")
	if len(parts) != 3 || !isToken(parts[0]) || parts[1] == "" || !visible(parts[1]) || parts[2] != "HTTP/1.1" &&
		parts[2] != "HTTP/1.0" {
		return r, errors.New("the request line is " + first)
	}
	fields, err := s.fields()
	if err != nil {
		return r, err
	}
	if n := len(fields["host"]); n > 1 || n == 0 && parts[2] == "HTTP/1.1" {
		return r, errors.New("not one Host")
	}
	lengths, encodings := fields["content-length"], fields["transfer-encoding"]
	switch {
	case len(lengths)+len(encodings) > 1 || len(encodings) == 1 &&
		(!strings.EqualFold(encodings[0], "chunked") || parts[2] == "HTTP/1.0"):
		return r, errors.New("the body's end is in doubt")
	case len(encodings) == 1:
		r.Body, err = s.chunks()
	case len(lengths) == 1:
		var n int
		if n, err = lengthOf(lengths[0]); err != nil {
			return r, err
		}
		r.Body, err = s.sized(n)
	}
	r.Method, r.Target, r.headOnly = parts[0], parts[1], err != nil
	return r, err
}

// fields reads header or trailer fields and the empty line after them.
func (s *strict) fields() (map[string][]string, error) {
	fields := make(map[string][]string)
	for {
		line, err := s.line()
		if err != nil || line == "" {
			return fields, err
		}
		name, value, found := strings.Cut(line, ":")
		value = strings.Trim(value, " \t")
		if !found || !isToken(name) || strings.ContainsFunc(value, func(c rune) bool {
			return c < ' ' && c != '\t' || c == 0x7f
		}) {
			return nil, errors.New("a field is " + line)
		}
		fields[strings.ToLower(name)] = append(fields[strings.ToLower(name)], value)
	}
}

func lengthOf(text string) (int, error) {
	n, err := strconv.ParseUint(text, 10, 31)
	if err != nil || strings.HasPrefix(text, "+") {
		return 0, errors.New("the length is " + text)
	}
	return int(n), nil
}

func (s *strict) sized(n int) ([]byte, error) {
	if n > len(s.rest) {
		return nil, errors.New("the body is shorter than its length")
	}
	body := s.rest[:n]
	s.rest = s.rest[n:]
	return body, nil
}

func (s *strict) chunks() (body []byte, err error) {
	for {
		line, err := s.line()
		if err != nil {
			return nil, err
		}
		digits, extension, _ := strings.Cut(line, ";")
		size, err := strconv.ParseUint(strings.TrimRight(digits, " \t"), 16, 31)
		if err != nil || strings.ContainsAny(digits, "+_") ||
			!visible(strings.NewReplacer(" ", "", "\t", "").Replace(extension)) {
			return nil, errors.New("a chunk begins with " + line)
		}
		if size == 0 {
			_, err := s.fields()
			return body, err
		}
		if uint64(len(s.rest)) < size+2 || string(s.rest[size:size+2]) != "\r\n" {
			return nil, errors.New("a chunk does not end where it says")
		}
		body = append(body, s.rest[:size]...)
		s.rest = s.rest[size+2:]
	}
}

func isToken(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(c rune) bool {
		return c <= ' ' || c >= 0x7f || strings.ContainsRune(`"(),/:;<=>?@[\]{}`, c)
	})
}

func visible(s string) bool {
	return !strings.ContainsFunc(s, func(c rune) bool { return c <= ' ' || c == 0x7f })
}
