package api_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/attestd/attestd/api"
)

// framingCase is a request, and the reaction that RFC 9112 requires of a server. In the request, {key} stands for a
// valid API key, {good} for a good body and {n} for its length.
type framingCase struct {
	section, rule string
	request       string
	status        int
	goes          bool // the connection stays open; otherwise the server closes it after the answer
}

const (
	post  = "POST " + attestPath + " HTTP/1.1\r\n"
	about = "Host: x\r\nX-Api-Key: {key}\r\nContent-Type: application/json\r\n"
	sized = post + about + "Content-Length: {n}\r\n\r\n{good}"
	probe = "GET /healthz HTTP/1.1\r\nHost: x\r\n"
)

// chunks returns an attestation request in chunks. body is everything after the headers.
func chunks(body string) string { return post + about + "Transfer-Encoding: chunked\r\n\r\n" + body }

// coded returns an attestation request with the given framing headers and a chunked body.
func coded(headers string) string {
	return post + about + headers + "\r\n\r\n{hex}\r\n{good}\r\n0\r\n\r\n"
}

var framingCases = []framingCase{
	{"2.2", "a message is read", sized, 200, true},
	{"2.2", "one empty line before the request line is ignored", "\r\n" + sized, 200, true},
	{"2.2", "many are not", "\r\n\r\n\r\n" + sized, 400, false},
	{"2.2", "whitespace before the first field", post + " " + about + "Content-Length: {n}\r\n\r\n{good}", 400, false},
	{"2.2", "a line of whitespace before the first field",
		post + " \t\r\n" + about + "Content-Length: {n}\r\n\r\n{good}", 400, false},
	{"2.2", "a bare CR in the request line", "GET /healthz\r HTTP/1.1\r\nHost: x\r\n\r\n", 400, false},
	{"2.2", "a bare CR in a field", probe + "X-A: a\rb\r\n\r\n", 400, false},
	{"2.2", "a bare CR before CRLF", probe + "X-A: a\r\r\n\r\n", 400, false},
	{"2.2", "the request line ends with a bare LF", "GET /healthz HTTP/1.1\nHost: x\r\n\r\n", 400, false},
	{"2.2", "a field ends with a bare LF", "GET /healthz HTTP/1.1\r\nHost: x\nX-A: a\r\n\r\n", 400, false},
	{"2.2", "the headers end with a bare LF", probe + "\n", 400, false},
	{"2.2", "what is no HTTP", "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\n\n\n", 400, false},
	{"2.3", "HTTP/1.0 is spoken", "GET /healthz HTTP/1.0\r\n\r\n", 200, false},
	{"2.3", "HTTP/0.9", "GET /healthz\r\n", 400, false},
	{"2.3", "the version in small letters", "GET /healthz http/1.1\r\nHost: x\r\n\r\n", 400, false},
	{"2.3", "a version of two digits", "GET /healthz HTTP/1.10\r\nHost: x\r\n\r\n", 400, false},
	{"2.3", "a version without its minor", "GET /healthz HTTP/1\r\nHost: x\r\n\r\n", 400, false},
	{"2.3", "HTTP/2.0", "GET /healthz HTTP/2.0\r\nHost: x\r\n\r\n", 400, false},

	{"3", "two spaces in the request line", "GET  /healthz HTTP/1.1\r\nHost: x\r\n\r\n", 400, false},
	{"3", "a tab in the request line", "GET\t/healthz HTTP/1.1\r\nHost: x\r\n\r\n", 400, false},
	{"3", "a space in the target", "GET /health z HTTP/1.1\r\nHost: x\r\n\r\n", 400, false},
	{"3", "a space after the version", "GET /healthz HTTP/1.1 \r\nHost: x\r\n\r\n", 400, false},
	{"3", "a NUL in the target", "GET /health\x00z HTTP/1.1\r\nHost: x\r\n\r\n", 400, false},
	{"3", "a target that is longer than is read is 414",
		"GET /" + strings.Repeat("a", 20<<10) + " HTTP/1.1\r\nHost: x\r\n\r\n", 414, false},
	{"3", "a path that is longer than any is 414",
		"GET /" + strings.Repeat("/", 2<<10) + " HTTP/1.1\r\nHost: x\r\n\r\n", 414, false},
	{"3", "a query that is longer is read",
		"GET /healthz?" + strings.Repeat("/", 2<<10) + " HTTP/1.1\r\nHost: x\r\n\r\n", 200, true},
	{"3.1", "an empty method", " /healthz HTTP/1.1\r\nHost: x\r\n\r\n", 400, false},
	{"3.1", "a method that is no token", "G(T /healthz HTTP/1.1\r\nHost: x\r\n\r\n", 400, false},
	{"3.1", "methods are case-sensitive", "get /healthz HTTP/1.1\r\nHost: x\r\n\r\n", 405, true},
	{"3.2", "no Host", "GET /healthz HTTP/1.1\r\n\r\n", 400, false},
	{"3.2", "two Hosts", probe + "Host: y\r\n\r\n", 400, false},
	{"3.2", "the same Host twice", probe + "Host: x\r\n\r\n", 400, false},
	{"3.2", "two Hosts in HTTP/1.0", "GET /healthz HTTP/1.0\r\nHost: x\r\nHost: y\r\n\r\n", 400, false},
	{"3.2", "an invalid Host: a path", "GET /healthz HTTP/1.1\r\nHost: x/y\r\n\r\n", 400, false},
	{"3.2", "an invalid Host: user information", "GET /healthz HTTP/1.1\r\nHost: u@x\r\n\r\n", 400, false},
	{"3.2", "an invalid Host: a list", "GET /healthz HTTP/1.1\r\nHost: x, y\r\n\r\n", 400, false},
	{"3.2", "an invalid Host: a port that is no number", "GET /healthz HTTP/1.1\r\nHost: x:y\r\n\r\n", 400, false},
	{"3.2", "an invalid Host: IPv6 without its bracket", "GET /healthz HTTP/1.1\r\nHost: [::1\r\n\r\n", 400, false},
	{"3.2", "an empty Host", "GET /healthz HTTP/1.1\r\nHost:\r\n\r\n", 200, true},
	{"3.2", "a Host with IPv6 and a port", "GET /healthz HTTP/1.1\r\nHost: [::1]:8080\r\n\r\n", 200, true},
	{"3.2.1", "a target that is no path", "GET healthz HTTP/1.1\r\nHost: x\r\n\r\n", 400, false},
	{"3.2.1", "a fragment", "GET /healthz#a HTTP/1.1\r\nHost: x\r\n\r\n", 400, false},
	{"3.2.2", "the absolute form is accepted", "GET http://other.example/healthz HTTP/1.1\r\nHost: x\r\n\r\n", 200,
		true},
	{"3.2.2", "the absolute form of something else", "GET ftp://x/healthz HTTP/1.1\r\nHost: x\r\n\r\n", 400, false},
	{"3.2.2", "the absolute form with user information", "GET http://u:p@x/healthz HTTP/1.1\r\nHost: x\r\n\r\n", 400,
		false},
	{"3.2.3", "the authority form is CONNECT's alone", "GET x:80 HTTP/1.1\r\nHost: x:80\r\n\r\n", 400, false},
	{"3.2.3", "this is no proxy", "CONNECT x:80 HTTP/1.1\r\nHost: x:80\r\n\r\n", 404, true},
	{"3.2.4", "the asterisk form is OPTIONS's alone", "GET * HTTP/1.1\r\nHost: x\r\n\r\n", 400, false},

	{"5", "a field without a colon", probe + "X-A\r\n\r\n", 400, false},
	{"5", "an empty field name", probe + ": a\r\n\r\n", 400, false},
	{"5", "a field name that is no token", probe + "X(A: a\r\n\r\n", 400, false},
	{"5", "a NUL in a field name", probe + "X\x00A: a\r\n\r\n", 400, false},
	{"5", "a NUL in a field value", probe + "X-A: a\x00b\r\n\r\n", 400, false},
	{"5", "DEL in a field value", probe + "X-A: a\x7fb\r\n\r\n", 400, false},
	{"5", "other bytes in a field value are opaque", probe + "X-A: \xe9\xff\r\n\r\n", 200, true},
	{"5.1", "a space before the colon", post + about + "Content-Length : {n}\r\n\r\n{good}", 400, false},
	{"5.1", "a tab before the colon", post + about + "Transfer-Encoding\t: chunked\r\n\r\n0\r\n\r\n", 400, false},
	{"5.1", "whitespace around a value is not of it", post + about + "Content-Length: \t {n} \t\r\n\r\n{good}", 200,
		true},
	{"5.2", "a folded field", probe + "X-A: a\r\n b\r\n\r\n", 400, false},
	{"5.2", "a folded Content-Length", post + about + "Content-Length:\r\n {n}\r\n\r\n{good}", 400, false},
	{"5.2", "a folded Transfer-Encoding", coded("Transfer-Encoding:\r\n\tchunked"), 400, false},

	{"6.1", "chunked is understood, and the connection closed", coded("Transfer-Encoding: chunked"), 200, false},
	{"6.1", "codings are case-insensitive", coded("transfer-encoding: CHUNKED"), 200, false},
	{"6.1", "Transfer-Encoding in HTTP/1.0", strings.Replace(
		coded("Transfer-Encoding: chunked\r\nConnection: keep-alive"), "HTTP/1.1", "HTTP/1.0", 1), 400, false},
	{"6.1", "Transfer-Encoding and Content-Length", coded("Transfer-Encoding: chunked\r\nContent-Length: {n}"), 400,
		false},
	{"6.1", "Content-Length and Transfer-Encoding", coded("Content-Length: {n}\r\nTransfer-Encoding: chunked"), 400,
		false},
	{"6.1", "chunked twice", coded("Transfer-Encoding: chunked, chunked"), 400, false},
	{"6.1", "chunked twice, in two fields", coded("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked"), 400,
		false},
	{"6.1", "another coding", coded("Transfer-Encoding: gzip, chunked"), 400, false},
	{"6.1", "identity", coded("Transfer-Encoding: identity"), 400, false},
	{"6.1", "identity beside a length",
		post + about + "Transfer-Encoding: identity\r\nContent-Length: {n}\r\n\r\n{good}", 400, false},
	{"6.1", "no coding", coded("Transfer-Encoding:"), 400, false},
	{"6.1", "chunked with a parameter", coded("Transfer-Encoding: chunked;a=b"), 400, false},
	{"6.1", "chunked in quotes", coded(`Transfer-Encoding: "chunked"`), 400, false},
	{"6.1", "VT before chunked", coded("Transfer-Encoding: \x0bchunked"), 400, false},
	{"6.1", "FF after chunked", coded("Transfer-Encoding: chunked\x0c"), 400, false},
	{"6.1", "NEL after chunked", coded("Transfer-Encoding: chunked\u0085"), 400, false},
	{"6.1", "NBSP before chunked", coded("Transfer-Encoding: \u00a0chunked"), 400, false},
	{"6.1", "chunked with a Kelvin sign", coded("Transfer-Encoding: chun\u212aed"), 400, false},
	{"6.1", "a single byte of NEL", coded("Transfer-Encoding: chunked\x85"), 400, false},
	{"6.3", "chunked is not last", coded("Transfer-Encoding: chunked, gzip"), 400, false},
	{"6.2", "a length that overflows", post + about + "Content-Length: 25000000000000000000\r\n\r\n{good}", 413, false},
	{"6.2", "a length that overflows to what is sent",
		post + about + "Content-Length: 184467440737095517{n}\r\n\r\n{good}", 413, false},
	{"6.3", "two lengths", post + about + "Content-Length: {n}\r\nContent-Length: 3\r\n\r\n{good}", 400, false},
	{"6.3", "the same length twice", post + about + "Content-Length: {n}\r\nContent-Length: {n}\r\n\r\n{good}", 400,
		false},
	{"6.3", "a list of lengths", post + about + "Content-Length: {n}, {n}\r\n\r\n{good}", 400, false},
	{"6.3", "a length with a sign", post + about + "Content-Length: +{n}\r\n\r\n{good}", 400, false},
	{"6.3", "a negative length", post + about + "Content-Length: -1\r\n\r\n{good}", 400, false},
	{"6.3", "a length in hexadecimal", post + about + "Content-Length: 0x7a\r\n\r\n{good}", 400, false},
	{"6.3", "a length with a space inside", post + about + "Content-Length: 1 2\r\n\r\n{good}", 400, false},
	{"6.3", "an empty length", post + about + "Content-Length:\r\n\r\n{good}", 400, false},
	{"6.3", "a length with FF", post + about + "Content-Length: {n}\x0c\r\n\r\n{good}", 400, false},
	{"6.3", "neither length nor coding is no body",
		strings.Replace(sized, "Content-Length: {n}\r\n\r\n{good}", "\r\n", 1), 400, true},
	{"6.3", "a body of a GET is no request", probe + "Content-Length: 5\r\n\r\nhello", 200, true},

	{"7.1", "chunks of any size", chunks("1\r\n{\r\n{hex-1}\r\n{good-1}\r\n000\r\n\r\n"), 200, false},
	{"7.1", "hexadecimal in capitals, with zeros", chunks("00{HEX}\r\n{good}\r\n0\r\n\r\n"), 200, false},
	{"7.1", "a chunk size that overflows", chunks("10000000000000000{hex}\r\n{good}\r\n0\r\n\r\n"), 413, false},
	{"7.1", "a last chunk's size of 16 digits", chunks("{hex}\r\n{good}\r\n" + strings.Repeat("0", 16) + "\r\n\r\n"),
		200, false},
	{"7.1", "a last chunk's size of 17 digits", chunks("{hex}\r\n{good}\r\n" + strings.Repeat("0", 17) + "\r\n\r\n"),
		400, false},
	{"7.1", "no chunk size", chunks("\r\n{good}\r\n0\r\n\r\n"), 400, false},
	{"7.1", "a chunk size with a sign", chunks("+{hex}\r\n{good}\r\n0\r\n\r\n"), 400, false},
	{"7.1", "a chunk size with 0x", chunks("0x{hex}\r\n{good}\r\n0\r\n\r\n"), 400, false},
	{"7.1", "a space before a chunk size", chunks(" {hex}\r\n{good}\r\n0\r\n\r\n"), 400, false},
	{"7.1", "a space after a chunk size", chunks("{hex} \r\n{good}\r\n0\r\n\r\n"), 400, false},
	{"7.1", "a bare LF after a chunk size", chunks("{hex}\n{good}\r\n0\r\n\r\n"), 400, false},
	{"7.1", "a bare CR after a chunk size", chunks("{hex}\r{good}\r\n0\r\n\r\n"), 400, false},
	{"7.1", "NUL after a chunk size", chunks("{hex}\x00\r\n{good}\r\n0\r\n\r\n"), 400, false},
	{"7.1", "_ after a chunk size", chunks("{hex}_\r\n{good}\r\n0\r\n\r\n"), 400, false},
	{"7.1", "chunk data without its CRLF", chunks("{hex}\r\n{good}0\r\n\r\n"), 400, false},
	{"7.1", "chunk data with a bare LF after it", chunks("{hex}\r\n{good}\n0\r\n\r\n"), 400, false},
	{"7.1", "chunk data that is longer than its size", chunks("3\r\n{good}\r\n0\r\n\r\n"), 400, false},
	{"7.1", "a last chunk with a bare LF", chunks("{hex}\r\n{good}\r\n0\n\r\n"), 400, false},
	{"7.1", "a bare LF at the end", chunks("{hex}\r\n{good}\r\n0\r\n\n"), 400, false},
	{"7.1.1", "unknown chunk extensions are ignored", chunks("{hex};a=b;c=\"d\\\"; e\";f\r\n{good}\r\n0;g\r\n\r\n"),
		200, false},
	{"7.1.1", "bad whitespace around them, too", chunks("{hex} ; a = b\r\n{good}\r\n0\r\n\r\n"), 200, false},
	{"7.1.1", "an extension with a bare LF", chunks("{hex};a\n{good}\r\n0\r\n\r\n"), 400, false},
	{"7.1.1", "an extension with a bare CR", chunks("{hex};a\rb\r\n{good}\r\n0\r\n\r\n"), 400, false},
	{"7.1.1", "an extension without a name", chunks("{hex};\r\n{good}\r\n0\r\n\r\n"), 400, false},
	{"7.1.1", "an extension without its quote", chunks("{hex};a=\"b\r\n{good}\r\n0\r\n\r\n"), 400, false},
	{"7.1.1", "an extension that is too long",
		chunks("{hex};" + strings.Repeat("a", 20<<10) + "\r\n{good}\r\n0\r\n\r\n"), 400, false},
	{"7.1.2", "trailers are discarded", chunks("{hex}\r\n{good}\r\n0\r\nX-T: 1\r\nX-U: 2\r\n\r\n"), 200, false},
	{"7.1.2", "a trailer that begins with 0", chunks("{hex}\r\n{good}\r\n0\r\n0a: 1\r\n\r\n"), 200, false},
	{"7.1.2", "a trailer is no header", strings.Replace(chunks("{hex}\r\n{good}\r\n0\r\nX-Api-Key: {key}\r\n\r\n"),
		"X-Api-Key", "X-Nothing", 1), 401, false},
	{"7.1.2", "a folded trailer", chunks("{hex}\r\n{good}\r\n0\r\nX-T: 1\r\n 2\r\n\r\n"), 400, false},
	{"7.1.2", "a trailer with a bare LF", chunks("{hex}\r\n{good}\r\n0\r\nX-T: 1\nX-U: 2\r\n\r\n"), 400, false},
	{"7.1.2", "a trailer without a colon", chunks("{hex}\r\n{good}\r\n0\r\nX-T\r\n\r\n"), 400, false},
	{"7.1.2", "a trailer without a name", chunks("{hex}\r\n{good}\r\n0\r\n: 1\r\n\r\n"), 400, false},
	{"7.1.2", "trailers that are too long",
		chunks("{hex}\r\n{good}\r\n0\r\nX-T: " + strings.Repeat("a", 20<<10) + "\r\n\r\n"), 431, false},

	{"9.3", "HTTP/1.0 closes", strings.Replace(sized, "HTTP/1.1", "HTTP/1.0", 1), 200, false},
	{"9.3", "HTTP/1.0 with keep-alive goes on",
		strings.Replace(sized, "Host: x", "Host: x\r\nConnection: keep-alive", 1), 200, true},
	{"9.6", "close is obeyed", strings.Replace(sized, "Host: x", "Host: x\r\nConnection: close", 1), 200, false},
	{"9.6", "close is case-insensitive", strings.Replace(sized, "Host: x", "Host: x\r\nConnection: Close", 1), 200,
		false},
	{"9.6", "close in a list is obeyed", strings.Replace(sized, "Host: x", "Host: x\r\nConnection: te ,\tclose", 1),
		200, false},
	{"9.6", "close in one of two fields is obeyed",
		strings.Replace(sized, "Host: x", "Host: x\r\nConnection: close\r\nConnection: keep-alive", 1), 200, false},
}

func (c framingCase) String() string { return "RFC 9112 section " + c.section + ": " + c.rule }

// wire returns the request as it is sent.
func (c framingCase) wire(token string) string {
	return strings.NewReplacer(
		"{key}", token, "{n}", fmt.Sprint(len(good)), "{hex}", fmt.Sprintf("%x", len(good)), "{HEX}",
		fmt.Sprintf("%X", len(good)), "{good}", good,
		"{hex-1}", fmt.Sprintf("%x", len(good)-1), "{good-1}", good[1:],
	).Replace(c.request)
}

// Bytes after a refused request, or after a request that closes the connection, are never answered. They may be a
// second request that a proxy took for a part of the first.
func TestRequestsAreFramedAsRFC9112Says(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(o *api.Options) { o.ReadTimeout = patience })
	smuggled := framingCase{request: sized}.wire(r.token)
	for _, c := range framingCases {
		for _, size := range []int{1 << 20, 7} {
			t.Run(fmt.Sprintf("%s, in pieces of %d", c, size), func(t *testing.T) {
				c.check(t, r, smuggled, size)
			})
		}
	}
}

// check sends the request in pieces, followed by another request.
func (c framingCase) check(t *testing.T, r *rig, smuggled string, size int) {
	w := (&rig{TB: t, address: r.address}).dial()
	before := r.size()
	request := c.wire(r.token)
	if !c.goes {
		request += smuggled
	}
	for piece := range slices.Chunk([]byte(request), size) {
		if _, err := w.Write(piece); err != nil {
			break // refused before its end
		}
	}
	a := w.receive()
	if a.status != c.status || a.last == c.goes {
		t.Errorf("%d, closes %v, want %d, %v: %s", a.status, a.last, c.status, !c.goes, a.body)
	}
	want := before
	if c.status == 200 && strings.Contains(c.request, attestPath) {
		want++
	}
	if !c.goes {
		w.receiveEnd()
	} else {
		want++
		if w.send(smuggled); w.receive().status != 200 {
			t.Error("the next request was not answered")
		}
	}
	if got := r.size(); got != want {
		t.Errorf("%d signed, want %d", got-before, want-before)
	}
}

// The result of framing does not depend on the pieces in which a request arrives.
func TestFramingDoesNotDependOnPieces(t *testing.T) {
	t.Parallel()
	for _, c := range framingCases {
		whole, want := frame(c.wire("k"), 1<<20)
		for _, size := range []int{1, 2, 3, 7, 64} {
			if got, err := frame(c.wire("k"), size); got != whole || (err == nil) != (want == nil) {
				t.Errorf("%s: in pieces of %d: %q, %v, want %q, %v", c, size, got, err, whole, want)
			}
		}
	}
}

// endless lists the parts of a request without a natural end. A test repeats each until it is refused.
var endless = []struct{ name, begins, goesOn string }{
	{"empty lines", "", "\r\n"},
	{"a request line", "GET /", "a"},
	{"slashes of a path", "GET ", "/"},
	{"a field", probe + "X: ", "a"},
	{"fields", probe, "a:\r\n"},
	{"digits of a chunk's size", chunks(""), "0"},
	{"digits of a chunk's size that follows another", chunks("1\r\n{\r\n"), "0"},
	{"blanks behind a chunk's size", chunks("1"), " "},
	{"a chunk's extensions", chunks("1"), ";a"},
	{"extensions of many chunks", chunks(""), "1;a\r\n{\r\n"},
	{"blanks behind the last chunk's size", chunks("0"), " "},
	{"a trailer", chunks("0\r\nX: "), "a"},
	{"trailers", chunks("0\r\n"), "a:\r\n"},
}

// The bounds are far above any real request, and far below an attacker's patience.
const (
	endlessBytes = 1 << 20
	mostRead     = 128 << 10 // bytes before an endless part is refused
	mostHeld     = 20 << 10  // bytes while a line is unfinished
	mostSteps    = 20        // per byte
)

func TestNoPartOfARequestIsEndless(t *testing.T) {
	t.Parallel()
	for _, c := range endless {
		t.Run(c.name, func(t *testing.T) {
			sent := framingCase{request: c.begins}.wire("k") + strings.Repeat(c.goesOn, endlessBytes/len(c.goesOn))
			for _, size := range []int{1, 1460} {
				r := api.Frame([]byte(sent), size)
				if r.Err == nil || r.Read > mostRead || r.Held > mostHeld || r.Steps > mostSteps*r.Read {
					t.Errorf("in pieces of %d: %d bytes were read, %d held, in %d steps: %v", size, r.Read, r.Held,
						r.Steps, r.Err)
				}
			}
		})
	}
}

// FuzzFramingSteps looks for a request that takes more than mostSteps steps per byte, or unbounded memory.
func FuzzFramingSteps(f *testing.F) {
	for _, c := range endless {
		f.Add(c.begins, c.goesOn, uint16(300), byte(0))
	}
	f.Fuzz(func(t *testing.T, begins, goesOn string, times uint16, size byte) {
		sent := framingCase{request: begins}.wire("k") +
			strings.Repeat(goesOn, min(int(times), endlessBytes/max(1, len(goesOn))))
		r := api.Frame([]byte(sent), int(size)+1)
		if r.Steps > mostSteps*r.Read || r.Held > mostHeld {
			t.Errorf("%d bytes took %d steps, and %d were held", r.Read, r.Steps, r.Held)
		}
	})
}

// FuzzFraming checks that framing passes at most the received bytes, gives the same result in pieces, and passes its
// own output unchanged.
func FuzzFraming(f *testing.F) {
	for _, c := range framingCases {
		f.Add(c.wire("k"), byte(7))
	}
	f.Fuzz(func(t *testing.T, request string, size byte) {
		whole, want := frame(request, len(request)+1)
		if len(whole) > len(request) {
			t.Errorf("%q became %q", request, whole)
		}
		if got, err := frame(request, int(size)+1); got != whole || (err == nil) != (want == nil) {
			t.Errorf("%q in pieces of %d: %q, %v, want %q, %v", request, int(size)+1, got, err, whole, want)
		}
		if again, err := frame(whole, len(whole)+1); again != whole || err != nil {
			t.Errorf("%q passed, and then %q, %v", whole, again, err)
		}
	})
}

func frame(request string, size int) (string, error) {
	framed := api.Frame([]byte(request), size)
	return string(framed.Passed), framed.Err
}
