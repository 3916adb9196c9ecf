// Package dataset carries whole indexes as files: it reads and writes them as NDJSON, and makes up realistic ones.
//
// A file has one row per line, a JSON object whose member "kind" is chain, token, client, connection, channel, packet or
// transfer, and whose other members are those of the Go type of that name in package index, named as in GraphQL. Members that
// may be null may be left out. Amounts, heights and counts are text; times are RFC 3339 in UTC. Rows may come in any order; an
// export has what others refer to in front, and each kind by its sort_order. With the same rows an export is the same
// bytes.
package dataset

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/klauspost/compress/zstd"
)

// Progress tells how far an import or export has come.
type Progress struct {
	Rows  int64 `json:"rows"`  // rows done, of an import also those that were skipped by resuming
	Bytes int64 `json:"bytes"` // of NDJSON, uncompressed
	// Done and Total measure the whole: of an import bytes of the file as it is on disk, of an export rows. Total is
	// zero where it is not known, as of standard input.
	Done    int64         `json:"done"`
	Total   int64         `json:"total"`
	Elapsed time.Duration `json:"-"`
	Rate    float64       `json:"perSecond"` // rows a second, of this run
}

// Stdio is the file name that stands for standard input or output.
const Stdio = "-"

// compressed tells whether a file of that name is zstd (RFC 8878).
func compressed(name string) bool { return strings.HasSuffix(name, ".zst") }

// counter counts what is read through it.
type counter struct {
	io.Reader
	n int64
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.n += int64(n)
	return n, err
}

// maxWindow bounds the memory that a compressed file can make a reader take.
const maxWindow = 128 << 20

func decompress(in io.Reader) (io.ReadCloser, error) {
	d, err := zstd.NewReader(in, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindow))
	if err != nil {
		return nil, err
	}
	return d.IOReadCloser(), nil
}

func openInput(path string) (*os.File, int64, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, 0, err
	}
	stat, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, 0, fmt.Errorf("%s: %w", path, err)
	}
	if !stat.Mode().IsRegular() {
		return f, 0, nil
	}
	return f, stat.Size(), nil
}
