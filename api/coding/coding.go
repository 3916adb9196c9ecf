// Package coding speaks the content codings of HTTP (RFC 9110, section 8.4; RFC 7932 for br, RFC 8878 and 9659 for zstd): which one
// a client wants, and writing and reading them.
package coding

import (
	"compress/gzip"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"

	"github.com/andybalholm/brotli"
	fastgzip "github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// Coding is the name of a content coding.
type Coding string

// The codings that are spoken. Identity is none.
const (
	Identity Coding = ""
	Zstd     Coding = "zstd"
	Brotli   Coding = "br"
	Gzip     Coding = "gzip"
)

// preferred are the codings in the order in which they are chosen among equal weights: the cheapest first.
var preferred = [...]Coding{Zstd, Gzip, Brotli}

// Choose returns the coding for a client with that Accept-Encoding (RFC 9110, section 12.5.3), and whether it takes an answer that
// is not coded. Identity and false mean that no answer would do.
func Choose(accept string) (chosen Coding, identity bool) {
	if accept == "" {
		return Identity, true
	}
	weights := make(map[string]float64)
	for part := range strings.SplitSeq(accept, ",") {
		name, parameter, weighted := strings.Cut(strings.ToLower(strings.TrimSpace(part)), ";")
		q := 1.0
		if weighted {
			text, _ := strings.CutPrefix(strings.TrimSpace(parameter), "q=")
			var err error
			if q, err = strconv.ParseFloat(strings.TrimSpace(text), 64); err != nil || !(q >= 0 && q <= 1) { // NaN is neither
				continue
			}
		}
		weights[strings.TrimPrefix(strings.TrimSpace(name), "x-")] = q
	}
	weight := func(name string, otherwise float64) float64 {
		if q, named := weights[name]; named {
			return q
		}
		return otherwise
	}
	others := weight("*", 0)
	best := 0.0
	for _, c := range preferred {
		if q := weight(string(c), others); q > best {
			chosen, best = c, q
		}
	}
	plain, named := weights["identity"]
	if !named {
		_, all := weights["*"]
		return chosen, !all || others > 0
	}
	if plain > best {
		chosen = Identity
	}
	return chosen, plain > 0
}

// Encoders write codings, at levels that take little time. They are safe for concurrent use; each that is in use takes up to 4 MiB.
type Encoders struct{ zstd, brotli, gzip sync.Pool }

type encoder interface {
	io.WriteCloser
	Reset(io.Writer)
}

// The levels: what they cost and save is told in docs/performance.md.
const (
	gzipLevel   = 1
	brotliLevel = 1
	// zstdWindow bounds what a decoder needs, and holds a whole page.
	zstdWindow = 512 << 10
)

func (e *Encoders) pool(c Coding) *sync.Pool {
	switch c {
	case Zstd:
		return &e.zstd
	case Brotli:
		return &e.brotli
	default:
		return &e.gzip
	}
}

func newEncoder(c Coding) (encoder, error) {
	switch c {
	case Zstd:
		return zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1),
			zstd.WithLowerEncoderMem(true), zstd.WithWindowSize(zstdWindow))
	case Brotli:
		return brotli.NewWriterLevel(nil, brotliLevel), nil
	case Gzip:
		return fastgzip.NewWriterLevel(nil, gzipLevel)
	}
	return nil, fmt.Errorf("no content coding %q", c)
}

// Encode writes the body, which is in pieces, in a coding other than Identity. Its errors are those of to.
func (e *Encoders) Encode(to io.Writer, c Coding, body [][]byte) error {
	pool := e.pool(c)
	w, pooled := pool.Get().(encoder)
	if !pooled {
		var err error
		if w, err = newEncoder(c); err != nil {
			return err
		}
	}
	w.Reset(to)
	for _, piece := range body {
		if _, err := w.Write(piece); err != nil {
			return err
		}
	}
	if err := w.Close(); err != nil {
		return err
	}
	w.Reset(io.Discard) // so that the pool does not hold to
	pool.Put(w)
	return nil
}

// Accepted are the codings that NewReader reads, as Accept-Encoding names them.
const Accepted = "zstd, gzip"

// maxWindow is what a decoder of zstd must have and no more (RFC 9659).
const maxWindow = 8 << 20

// NewReader reads a body in the coding of a Content-Encoding. It holds a window of 8 MiB at most. The caller
// bounds how much it reads, since a small body can become a large one.
func NewReader(contentEncoding string, body io.Reader) (io.ReadCloser, error) {
	switch Coding(strings.ToLower(strings.TrimSpace(contentEncoding))) {
	case Identity, "identity":
		return io.NopCloser(body), nil
	case Gzip, "x-gzip":
		return gzip.NewReader(body)
	case Zstd:
		d, err := zstd.NewReader(body, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(maxWindow))
		if err != nil {
			return nil, err
		}
		return d.IOReadCloser(), nil
	}
	return nil, fmt.Errorf("the Content-Encoding %.40q is none of %s", contentEncoding, Accepted)
}
