package api

import (
	"bytes"

	"github.com/attestd/attestd/appliance"
)

// framing follows the requests of one connection as far as is needed to know where each ends (RFC 9112), and refuses a request
// that two servers could read in two ways: a client behind a proxy can smuggle a second request in one (section 11.2). fasthttp
// reads only what has passed here, since by itself it accepts much that the RFC forbids.
//
// Where the RFC leaves a choice between refusing and repairing, framing refuses: bare LF, folded fields, lists of lengths.
type framing struct {
	part  part
	left  int64 // bytes that are still to come of the body, or of the chunk
	blank bool  // an empty line came before the request, of which one is allowed
	extra int   // bytes of the chunk extensions and trailers so far, which nobody reads

	// Of the request whose headers passed last:
	heads   int  // how many have passed, this one included
	chunked bool // its body comes in chunks
	close   bool // it asks for the connection to be closed
}

// part is what comes next.
type part int

const (
	atHead part = iota
	inBody
	atChunk
	inChunk
	atChunkEnd
)

const (
	// maxExtra bounds chunk extensions and trailers together, which a limit of the body does not count.
	maxExtra = 16 << 10
	// maxLength is far above any limit of a body, and far below what overflows.
	maxLength = 1 << 48
)

var crlf = []byte("\r\n")

func malformed(what string) error {
	return appliance.Errorf(CodeInvalidRequest, "the request is not well-formed HTTP/1.1 (RFC 9112): %s", what)
}

// pass checks what came, as far as the end of the request. It returns what is left of the first used bytes without trailers and
// chunk extensions of the last chunk, moved together within them. The rest belongs to the next request, or is the beginning of
// something that is not there whole.
func (f *framing) pass(in []byte) (passed []byte, used int, err error) {
	kept := 0
	for used < len(in) {
		n, keep, err := f.step(in[used:])
		if err != nil {
			return in[:kept], used, err
		}
		if n == 0 {
			break
		}
		kept += copy(in[kept:], in[used:used+keep])
		used += n
		if f.part == atHead && keep > 0 {
			break
		}
	}
	return in[:kept], used, nil
}

// step takes the next n bytes, 0 if there are too few of them, the first of which are kept.
func (f *framing) step(in []byte) (n, keep int, err error) {
	switch f.part {
	case inBody, inChunk:
		n = f.data(len(in))
		return n, n, nil
	case atChunk:
		return f.chunk(in)
	case atChunkEnd:
		n, err = f.chunkEnd(in)
		return n, n, err
	default:
		if bytes.HasPrefix(in, crlf) && !f.blank {
			f.blank = true
			return len(crlf), 0, nil
		}
		n, err = f.head(in)
		return n, n, err
	}
}

// data takes up to n bytes of the body or the chunk.
func (f *framing) data(n int) int {
	n = int(min(f.left, int64(n)))
	f.left -= int64(n)
	switch {
	case f.left > 0:
	case f.part == inChunk:
		f.part = atChunkEnd
	default:
		f.part = atHead
	}
	return n
}

// head takes a request line and its fields.
func (f *framing) head(in []byte) (int, error) {
	h := head{}
	for n := 0; ; {
		line, size, whole, err := cutLine(in[n:])
		switch {
		case err != nil:
			return 0, err
		case n+size > maxHeaderBytes && n == 0:
			return 0, appliance.Errorf(CodeURITooLong, "the request line must have at most %d bytes", maxHeaderBytes)
		case n+size > maxHeaderBytes:
			return 0, headersTooLarge()
		case !whole:
			return 0, nil
		case n == 0:
			err = h.requestLine(line)
		case len(line) > 0:
			err = h.field(line)
		default:
			return n + size, f.begin(h)
		}
		if err != nil {
			return 0, err
		}
		n += size
	}
}

func headersTooLarge() error {
	return appliance.Errorf(CodeHeadersTooLarge, "the request line and headers must have at most %d bytes", maxHeaderBytes)
}

// begin is the end of a head: what comes next is the body, or the next request.
func (f *framing) begin(h head) error {
	if h.http11 && h.hosts == 0 {
		return malformed("there is no Host") // section 3.2
	}
	if h.codings+h.lengths > 1 || h.codings > 0 && !h.http11 { // sections 6.1 and 6.3
		return malformed("there must be one Content-Length or, in HTTP/1.1, one Transfer-Encoding")
	}
	f.heads++
	f.blank, f.extra, f.left = false, 0, h.length
	f.chunked, f.close = h.codings > 0, h.close
	switch {
	case f.chunked:
		f.part = atChunk
	case f.left > 0:
		f.part = inBody
	}
	return nil
}

// chunk takes the line with a chunk's size, and with the last one what follows it (section 7.1).
func (f *framing) chunk(in []byte) (n, keep int, err error) {
	line, n, whole, err := cutLine(in)
	digits := hexLength(in)
	switch {
	case err != nil:
		return 0, 0, err
	case digits == 0 || whole && !isExtensions(line[digits:]):
		return 0, 0, malformed("a chunk's size is not a hexadecimal number")
	case f.extra+n-digits > maxExtra:
		return 0, 0, malformed("the chunk extensions are too long")
	case !whole:
		return 0, 0, nil
	}
	size, err := parseLength(line[:digits], 16)
	if err != nil {
		return 0, 0, err
	}
	if size == 0 {
		return f.lastChunk(in, n)
	}
	f.extra += len(line) - digits
	f.left, f.part = size, inChunk
	return n, n, nil
}

// lastChunk takes the last chunk, whose line has n bytes, with the trailers behind it. They are dropped (section 7.1.2), and it
// passes when all is there: fasthttp reads trailers laxly, and any error of theirs as the end of the body.
func (f *framing) lastChunk(in []byte, n int) (_, keep int, err error) {
	for {
		line, size, whole, err := cutLine(in[n:])
		switch {
		case err != nil:
			return 0, 0, err
		case f.extra+n+size > maxExtra:
			return 0, 0, headersTooLarge()
		case !whole:
			return 0, 0, nil
		case len(line) == 0:
			f.part = atHead
			return n + size, copy(in, "0\r\n\r\n"), nil
		}
		if _, _, err := cutField(line); err != nil {
			return 0, 0, err
		}
		n += size
	}
}

func (f *framing) chunkEnd(in []byte) (int, error) {
	if !bytes.HasPrefix(crlf, in[:min(len(in), len(crlf))]) {
		return 0, malformed("a chunk has not the size that it says")
	}
	if len(in) < len(crlf) {
		return 0, nil
	}
	f.part = atChunk
	return len(crlf), nil
}

// head is what of a request line and its fields decides where the request ends.
type head struct {
	http11                  bool
	hosts, lengths, codings int
	length                  int64
	close                   bool
}

// requestLine reads a method, a target and a version (section 3).
func (h *head) requestLine(line []byte) error {
	method, rest, _ := bytes.Cut(line, []byte(" "))
	target, version, found := bytes.Cut(rest, []byte(" "))
	if !found || !isToken(method) || !isTarget(string(method), target) {
		return malformed("its first line is not a method, a target and a version")
	}
	h.http11 = string(version) == "HTTP/1.1"
	if !h.http11 && string(version) != "HTTP/1.0" {
		return appliance.Errorf(CodeInvalidRequest, "only HTTP/1.1 and HTTP/1.0 are spoken here")
	}
	return nil
}

// field reads a field (section 5).
func (h *head) field(line []byte) error {
	name, value, err := cutField(line)
	if err != nil {
		return err
	}
	switch len(name) { // almost all names are told apart by this
	case len("Host"):
		if isName(name, "Host") {
			return h.host(value)
		}
	case len("Connection"):
		if isName(name, "Connection") {
			for option := range bytes.SplitSeq(value, []byte(",")) {
				h.close = h.close || isName(trimBlanks(option), "close")
			}
		}
	case len("Content-Length"):
		if isName(name, "Content-Length") {
			h.lengths++
			h.length, err = parseLength(value, 10)
		}
	case len("Transfer-Encoding"):
		if isName(name, "Transfer-Encoding") {
			if h.codings++; !isName(value, "chunked") {
				return malformed("the only Transfer-Encoding is chunked")
			}
		}
	}
	return err
}

func (h *head) host(value []byte) error {
	if h.hosts++; h.hosts > 1 || !isHost(value) {
		return malformed("there must be one Host")
	}
	return nil
}

// cutLine returns the first line without its CRLF, and its size with it. If the line has not ended, it is not whole, and its
// size is that of what is there.
func cutLine(in []byte) (line []byte, size int, whole bool, err error) {
	end := bytes.IndexByte(in, '\n')
	if end < 0 {
		return nil, len(in), false, nil
	}
	if end == 0 || in[end-1] != '\r' {
		return nil, 0, false, malformed("a line does not end with CRLF")
	}
	return in[:end-1], end + 1, true, nil
}

// cutField returns the name of a field, and its value without the whitespace around.
func cutField(line []byte) (name, value []byte, err error) {
	name, value, found := bytes.Cut(line, []byte(":"))
	if !found || !isToken(name) {
		return nil, nil, malformed("a field does not begin with a name and a colon")
	}
	for _, b := range value {
		if b < ' ' && b != '\t' || b == 0x7f {
			return nil, nil, malformed("a field has a control character")
		}
	}
	trimmed := trimBlanks(value)
	if len(trimmed) < len(value) {
		untab(value)
	}
	return name, trimmed, nil
}

// untab makes the tabs around a value spaces, which mean the same: fasthttp leaves tabs in the value.
func untab(value []byte) {
	for i := 0; i < len(value) && isBlank(value[i]); i++ {
		value[i] = ' '
	}
	for i := len(value) - 1; i >= 0 && isBlank(value[i]); i-- {
		value[i] = ' '
	}
}

// parseLength reads a number that is digits alone.
func parseLength(digits []byte, base int64) (n int64, err error) {
	for _, b := range digits {
		if !isHex(b) || base == 10 && b > '9' {
			return 0, malformed("a length is not a number")
		}
		if n = n*base + hexValue(b); n > maxLength {
			return 0, appliance.Errorf(CodeBodyTooLarge, "the body is too large")
		}
	}
	if len(digits) == 0 {
		return 0, malformed("a length is not a number")
	}
	return n, nil
}
