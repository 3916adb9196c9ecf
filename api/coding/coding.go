// Package coding implements the content codings of HTTP (RFC 9110, section 8.4; RFC 7932 for br, RFC 8878 and RFC 9659
// for zstd). It chooses a coding for a client, encodes, and decodes.
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

// The supported codings. Identity leaves the body unchanged.
const (
	Identity Coding = ""
	Zstd     Coding = "zstd"
	Brotli   Coding = "br"
	Gzip     Coding = "gzip"
)

// preferred lists the codings in order of preference among equal weights: the cheapest first.
var preferred = [...]Coding{Zstd, Gzip, Brotli}

// Choose returns the coding for a client with the given Accept-Encoding (RFC 9110, section 12.5.3). identity reports
// whether the client also accepts an unencoded answer. Identity and false mean that the client accepts no supported
// coding.
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
			// The second condition also excludes NaN.
			if q, err = strconv.ParseFloat(strings.TrimSpace(text), 64); err != nil || !(q >= 0 && q <= 1) {
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

// Encoders encode answers, at levels that take little time. They are safe for concurrent use. Each encoder in use takes
// up to 4 MiB.
type Encoders struct{ zstd, brotli, gzip sync.Pool }

type encoder interface {
	io.WriteCloser
	Reset(io.Writer)
}

// docs/performance.md measures the cost and the savings of these levels.
const (
	gzipLevel   = 1
	brotliLevel = 1
	// zstdWindow bounds the memory of a decoder, in bytes, and holds a whole page.
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
	return nil, fmt.Errorf("unknown content coding %q", c)
}

// Encode writes a body, given in pieces, in a coding other than Identity. Its errors are errors of writing to the
// destination.
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
	w.Reset(io.Discard) // so that the pool does not keep the destination alive
	pool.Put(w)
	return nil
}

// Accepted lists the codings that NewReader reads, for an Accept-Encoding header.
const Accepted = "zstd, gzip"

// maxWindow is the largest window that a zstd decoder must support (RFC 9659), in bytes.
const maxWindow = 8 << 20

// NewReader decodes a body with the given Content-Encoding. It holds a window of at most 8 MiB. The caller must bound
// how much it reads, because a small body can become a large one.
func NewReader(contentEncoding string, body io.Reader) (io.ReadCloser, error) {
	switch Coding(strings.ToLower(strings.TrimSpace(contentEncoding))) {
	case Identity, "identity":
		return io.NopCloser(body), nil
	case Gzip, "x-gzip":
		return gzip.NewReader(body)
	case Zstd:
		d, err := zstd.NewReader(body, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
			zstd.WithDecoderMaxWindow(maxWindow))
		if err != nil {
			return nil, err
		}
		return d.IOReadCloser(), nil
	}
	return nil, fmt.Errorf("the Content-Encoding %.40q is not one of %s", contentEncoding, Accepted)
}
