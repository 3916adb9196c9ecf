package api

import (
	"bytes"

	"github.com/attestd/attestd/appliance"
)

// framing parses the requests of one connection just far enough to know where each ends (RFC 9112). It refuses a
// request that two servers could read in two ways, because a client behind a proxy can smuggle a second request in it
// (section 11.2). fasthttp alone accepts much that the RFC forbids, so it reads only bytes that framing has passed.
//
// If the RFC allows both refusing and repairing, framing refuses: bare LF, folded fields, lists of lengths.
type framing struct {
	part  part
	left  int64 // bytes of the body, or of the chunk, still to come
	blank bool  // one empty line came before the request; only one is allowed
	extra int   // bytes of chunk extensions and trailers so far

	// The input of pass begins with bytes that earlier calls have not used. These two offsets into it ensure that each
	// byte is searched and each line is checked only once, however small the pieces are.
	checked  int           // lines before this offset are checked
	searched int           // no line ends between checked and this offset
	fields   framingFields // parsed from the checked lines
	steps    int           // bytes examined so far; tests bound them per received byte

	// These describe the request whose headers passed last:
	requests int  // requests whose headers passed, including this one
	chunked  bool // its body is chunked
	close    bool // it asks to close the connection
}

// part is the kind of input that is expected next.
type part int

const (
	atHead part = iota
	inBody
	atChunk
	inChunk
	atChunkEnd
	atTrailers
)

const (
	// maxExtra bounds chunk extensions and trailers together, in bytes. Body limits do not count them.
	maxExtra = 16 << 10
	// maxDigits bounds the digits of a chunk's size, including leading zeros.
	maxDigits = 16
	// maxPath bounds the part of a target before its query, in bytes. fasthttp removes each // and /../ from a path by
	// moving the rest of the path.
	maxPath = 1 << 10
	// maxLength is far above any body limit, and low enough that parseLength cannot overflow.
	maxLength = 1 << 48
)

var crlf = []byte("\r\n")

func malformed(what string) error {
	return appliance.Errorf(CodeInvalidRequest, "the request is not well-formed HTTP/1.1 (RFC 9112): %s", what)
}

// pass checks the input up to the end of the request. It returns the first used bytes of the input, without the
// trailers and the extensions of the last chunk; they are compacted in place. The rest belongs to the next request, or
// is an incomplete piece. The input of the next call must begin with it.
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
		f.checked, f.searched = 0, 0
		kept += copy(in[kept:], in[used:used+keep])
		used += n
		if f.part == atHead && keep > 0 {
			break
		}
	}
	return in[:kept], used, nil
}

// step consumes the next n bytes and keeps the first keep of them. n is 0 if the input is too short.
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
	case atTrailers:
		return f.trailers(in)
	default:
		if bytes.HasPrefix(in, crlf) && !f.blank {
			f.blank = true
			return len(crlf), 0, nil
		}
		n, err = f.headers(in)
		return n, n, err
	}
}

// data consumes up to n bytes of the body or the chunk.
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

// headers consumes a request line and its fields.
func (f *framing) headers(in []byte) (int, error) {
	for {
		first := f.checked == 0
		line, whole, err := f.nextLine(in)
		switch {
		case err != nil:
			return 0, err
		case f.searched > maxHeaderBytes && first:
			return 0, appliance.Errorf(CodeURITooLong, "the request line must have at most %d bytes", maxHeaderBytes)
		case f.searched > maxHeaderBytes:
			return 0, headersTooLarge()
		case !whole:
			return 0, nil
		case first:
			err = f.fields.requestLine(line)
		case len(line) > 0:
			err = f.fields.field(line)
		default:
			return f.checked, f.begin()
		}
		if err != nil {
			return 0, err
		}
	}
}

func headersTooLarge() error {
	return appliance.Errorf(CodeHeadersTooLarge, "the request line and headers must have at most %d bytes",
		maxHeaderBytes)
}

// begin ends a head. The body or the next request comes next.
func (f *framing) begin() error {
	h := f.fields
	f.fields = framingFields{}
	if h.http11 && h.hosts == 0 {
		return malformed("the Host header is missing") // section 3.2
	}
	if h.codings+h.lengths > 1 || h.codings > 0 && !h.http11 { // sections 6.1 and 6.3
		return malformed("exactly one Content-Length or, in HTTP/1.1, one Transfer-Encoding is required")
	}
	f.requests++
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

// chunk consumes the line with a chunk's size. After the last chunk it also consumes the trailers (section 7.1).
func (f *framing) chunk(in []byte) (n, keep int, err error) {
	digits := hexLength(in[:min(len(in), maxDigits+1)])
	f.steps += digits
	size, err := parseLength(in[:digits], 16)
	switch {
	case err != nil:
		return 0, 0, err
	case digits > maxDigits:
		return 0, 0, malformed("a chunk's size has too many digits")
	}
	line, whole, err := f.nextLine(in)
	switch {
	case err != nil:
		return 0, 0, err
	case f.extra+f.searched-digits > maxExtra:
		return 0, 0, malformed("the chunk extensions are too long")
	case !whole:
		return 0, 0, nil
	case !isExtensions(line[digits:]):
		return 0, 0, malformed("a chunk's size is not a hexadecimal number")
	case size == 0:
		f.part = atTrailers
		return f.trailers(in)
	}
	f.extra += len(line) - digits
	f.left, f.part = size, inChunk
	return f.checked, f.checked, nil
}

// trailers consumes the rest of a body after the line of the last chunk. It drops the trailers (section 7.1.2), and
// passes the last chunk only once all trailers have arrived. fasthttp parses trailers laxly, and takes an error in them
// for the end of the body.
func (f *framing) trailers(in []byte) (n, keep int, err error) {
	for {
		line, whole, err := f.nextLine(in)
		switch {
		case err != nil:
			return 0, 0, err
		case f.extra+f.searched > maxExtra:
			return 0, 0, headersTooLarge()
		case !whole:
			return 0, 0, nil
		case len(line) == 0:
			f.part = atHead
			return f.checked, copy(in, "0\r\n\r\n"), nil
		}
		if _, _, err := cutField(line); err != nil {
			return 0, 0, err
		}
	}
}

func (f *framing) chunkEnd(in []byte) (int, error) {
	if !bytes.HasPrefix(crlf, in[:min(len(in), len(crlf))]) {
		return 0, malformed("a chunk differs from its declared size")
	}
	if len(in) < len(crlf) {
		return 0, nil
	}
	f.part = atChunk
	return len(crlf), nil
}

// framingFields is the part of a request line and its fields that decides where the request ends.
type framingFields struct {
	http11                  bool
	hosts, lengths, codings int
	length                  int64
	close                   bool
}

// requestLine reads a method, a target and a version (section 3).
func (h *framingFields) requestLine(line []byte) error {
	method, rest, _ := bytes.Cut(line, []byte(" "))
	target, version, found := bytes.Cut(rest, []byte(" "))
	if !found || !isToken(method) || !isTarget(string(method), target) {
		return malformed("its first line is not a method, a target and a version")
	}
	if path, _, _ := bytes.Cut(target, []byte("?")); len(path) > maxPath {
		return appliance.Errorf(CodeURITooLong, "the path must have at most %d bytes", maxPath)
	}
	h.http11 = string(version) == "HTTP/1.1"
	if !h.http11 && string(version) != "HTTP/1.0" {
		return appliance.Errorf(CodeInvalidRequest, "only HTTP/1.1 and HTTP/1.0 are supported")
	}
	return nil
}

// field reads a field (section 5).
func (h *framingFields) field(line []byte) error {
	name, value, err := cutField(line)
	if err != nil {
		return err
	}
	switch len(name) { // the length distinguishes almost all names
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

func (h *framingFields) host(value []byte) error {
	if h.hosts++; h.hosts > 1 || !isHost(value) {
		return malformed("exactly one Host header is required")
	}
	return nil
}

// nextLine returns the next line without its CRLF. whole is false if the end of the line has not arrived yet.
func (f *framing) nextLine(in []byte) (line []byte, whole bool, err error) {
	from, end := f.checked, bytes.IndexByte(in[f.searched:], '\n')
	if end < 0 {
		f.steps += len(in) - f.searched
		f.searched = len(in)
		return nil, false, nil
	}
	f.steps += end + 1
	end += f.searched
	if end == from || in[end-1] != '\r' {
		return nil, false, malformed("a line does not end with CRLF")
	}
	f.checked, f.searched = end+1, end+1
	f.steps += end - from // the caller reads the line
	return in[from : end-1], true, nil
}

// cutField returns the name of a field, and its value without surrounding whitespace.
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

// untab replaces the tabs around a value by spaces, which mean the same. fasthttp would leave the tabs in the value.
func untab(value []byte) {
	for i := 0; i < len(value) && isBlank(value[i]); i++ {
		value[i] = ' '
	}
	for i := len(value) - 1; i >= 0 && isBlank(value[i]); i-- {
		value[i] = ' '
	}
}

// parseLength reads a number that consists of digits only, at most maxLength.
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
