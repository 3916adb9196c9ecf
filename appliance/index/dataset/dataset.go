// Package dataset reads and writes whole indexes as NDJSON files, and generates realistic ones.
//
// A file has one row per line. A row is a JSON object with a member "kind": chain, token, client, connection, channel,
// packet or transfer. Its other members are the fields of the Go type of that name in package index, named as in
// GraphQL. Nullable members may be omitted. Amounts, heights and counts are text; times are RFC 3339 in UTC. An import
// accepts rows in any order. An export writes rows that others refer to first, and each kind by its sort_order. Equal
// rows export to equal bytes.
package dataset

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/klauspost/compress/zstd"
)

// Progress is the progress of an import or export.
type Progress struct {
	Rows  int64 `json:"rows"`  // rows done; of an import, without the rows skipped by resuming
	Bytes int64 `json:"bytes"` // of NDJSON, uncompressed
	// Done and Total measure the whole: for an import, bytes of the file on disk; for an export, rows. Total is zero if
	// it is not known, as for standard input.
	Done    int64         `json:"done"`
	Total   int64         `json:"total"`
	Elapsed time.Duration `json:"-"`
	Rate    float64       `json:"perSecond"` // rows per second in this run
}

// Stdio is the file name that means standard input or output.
const Stdio = "-"

// compressed reports whether a file with this name is zstd (RFC 8878).
func compressed(name string) bool { return strings.HasSuffix(name, ".zst") }

// counter counts the bytes read through it.
type counter struct {
	io.Reader
	n int64
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.n += int64(n)
	return n, err
}

// maxWindow bounds the memory for decompressing a file, in bytes.
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
