package dataset

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/attestd/attestd/appliance/index"
)

// Target is the destination of an import: an index, or an index that another process has open.
type Target interface {
	// Position returns the value that a batch last set under that name; false if there is no value.
	Position(ctx context.Context, name string) (string, bool, error)
	// ID returns the index.Status.ID of the index.
	ID(ctx context.Context) (string, error)
	// Write is index.Index.Write.
	Write(ctx context.Context, b index.Batch) (index.Written, error)
}

// Into makes an index the target of an import.
func Into(idx index.Index) Target { return indexTarget{idx} }

type indexTarget struct{ index.Index }

func (t indexTarget) Position(ctx context.Context, name string) (position string, found bool, err error) {
	err = t.View(ctx, func(s index.Snapshot) error {
		position, found, err = s.Position(ctx, name)
		return err
	})
	return position, found, err
}

func (t indexTarget) ID(ctx context.Context) (string, error) {
	status, err := index.StatusOf(ctx, t)
	return status.ID, err
}

// ImportOptions configure an import.
type ImportOptions struct {
	// Name is the name of the import's position in the index, from which an interrupted import resumes. Empty means
	// that it always starts at the beginning. ImportFile sets it from the path.
	Name string
	// Restart ignores the stored position.
	Restart bool
	// KeepGoing skips bad lines instead of stopping at the first.
	KeepGoing bool
	// OnBad is called with each bad line that is skipped; nil means never.
	OnBad func(BadLine)
	// OnProgress is called after each batch; nil means never.
	OnProgress func(Progress)
	// BatchRows is how many rows are written at once; zero means 20,000. Larger batches are faster and take about 8 KB
	// per row.
	BatchRows int
}

const defaultBatchRows = 20_000

// Imported is the result of an import.
type Imported struct {
	index.Written
	Progress
	Bad     int64 `json:"bad"`     // lines that were skipped
	Resumed int64 `json:"resumed"` // lines that an earlier, interrupted import has read
}

// BadLine is a line that is not a row.
type BadLine struct {
	Line int64 // from 1
	Err  error
}

// Error names the line and the reason.
func (b BadLine) Error() string { return fmt.Sprintf("line %d: %v", b.Line, b.Err) }

// Unwrap returns the reason.
func (b BadLine) Unwrap() error { return b.Err }

// ErrChanged is returned by Import if the input no longer begins as it did when the import was interrupted.
// ImportFile then starts from the beginning.
var ErrChanged = errors.New("the input has changed since the interrupted import")

// ImportFile imports the file at path, or standard input for "-". Files named .zst are decompressed.
func ImportFile(ctx context.Context, to Target, path string, o ImportOptions) (Imported, error) {
	if path == Stdio {
		return Import(ctx, to, os.Stdin, o)
	}
	if o.Name == "" {
		absolute, err := filepath.Abs(path)
		if err != nil {
			return Imported{}, err
		}
		o.Name = absolute
	}
	result, err := importFile(ctx, to, path, o)
	if errors.Is(err, ErrChanged) {
		o.Restart = true
		result, err = importFile(ctx, to, path, o)
	}
	if err != nil {
		return result, fmt.Errorf("import %s: %w", path, err)
	}
	return result, nil
}

func importFile(ctx context.Context, to Target, path string, o ImportOptions) (Imported, error) {
	f, size, err := openInput(path)
	if err != nil {
		return Imported{}, err
	}
	defer f.Close()
	count := &counter{Reader: f}
	var in io.Reader = count
	if compressed(path) {
		d, err := decompress(count)
		if err != nil {
			return Imported{}, err
		}
		defer d.Close()
		in = d
	}
	return newImporter(to, o, count, size).run(ctx, in)
}

// Import upserts the rows of in, NDJSON, until its end. Importing the same rows again does not change them. After an
// error, the rows written so far stay. The next import of the same name resumes after them, if the input still begins
// the same.
//
// Errors: a BadLine, unless KeepGoing; ErrChanged; the errors of reading and of Index.Write.
func Import(ctx context.Context, to Target, in io.Reader, o ImportOptions) (Imported, error) {
	count := &counter{Reader: in}
	return newImporter(to, o, count, 0).run(ctx, count)
}

// position is the progress of an import. The index stores it together with the rows up to it.
type position struct {
	Bytes  int64  `json:"bytes"`
	Lines  int64  `json:"lines"`
	SHA256 string `json:"sha256"` // of the first Bytes bytes
}

// importer runs four stages concurrently. One goroutine reads blocks of whole lines, several parse them, one gathers
// them in order, and one writes a batch while the next is gathered.
type importer struct {
	to    Target
	o     ImportOptions
	start time.Time
	done  *counter // bytes of the file; owned by the reading goroutine until it has ended
	total int64

	index   string    // for index.Batch.Index: a replica recreated during the import must not get only the rest
	from    position  // start of the import
	digest  hash.Hash // of the input so far; owned by the reading goroutine
	buffers sync.Pool // of *[]byte: blocks that were parsed
	result  Imported  // owned by the writing goroutine
}

// batch is the unit of writing.
type batch struct {
	rows []index.Row
	bad  []BadLine // skipped lines
	at   position  // after the last line of rows
	read int64     // bytes of the file read by then
	end  error     // the error that ends the import once the rows are written
}

func newImporter(to Target, o ImportOptions, done *counter, total int64) *importer {
	if o.BatchRows == 0 {
		o.BatchRows = defaultBatchRows
	}
	return &importer{to: to, o: o, start: time.Now(), done: done, total: total, digest: sha256.New()}
}

// block is some whole lines, and later their rows.
type block struct {
	lines  []byte
	first  int64    // number of the first line
	after  position // after the last line
	read   int64    // bytes of the file read by then
	parsed chan struct{}
	rows   []index.Row
	bad    []BadLine
	starts []int64 // offset of each bad line in the block
	digest []byte  // state of the digest before the block
}

const (
	blockSize = 512 << 10
	maxLine   = 16 << 20
	parsers   = 2
)

func (m *importer) run(ctx context.Context, in io.Reader) (Imported, error) {
	var err error
	if m.index, err = m.to.ID(ctx); err != nil {
		return m.result, err
	}
	if err := m.resume(ctx, in); err != nil {
		return m.result, err
	}
	group, working := errgroup.WithContext(ctx)
	blocks, work, batches := make(chan *block, 2*parsers), make(chan *block), make(chan *batch)
	group.Go(func() error {
		defer close(blocks)
		defer close(work)
		return m.read(working, in, blocks, work)
	})
	for range parsers {
		group.Go(func() error {
			for b := range work {
				b.parse(m.o.KeepGoing)
				if len(b.bad) == 0 {
					m.buffers.Put(&b.lines) // rows are copies
				}
				close(b.parsed)
			}
			return nil
		})
	}
	group.Go(func() error {
		defer close(batches)
		return m.gather(working, blocks, batches)
	})
	group.Go(func() error { return m.write(working, batches) })
	err = group.Wait()
	if err == nil {
		err = m.finish(ctx)
	}
	m.result.Elapsed = time.Since(m.start)
	return m.result, err
}

func (m *importer) positionName() string { return "import " + m.o.Name }

// resume skips the input that an interrupted import has written.
func (m *importer) resume(ctx context.Context, in io.Reader) error {
	if m.o.Name == "" || m.o.Restart {
		return nil
	}
	var saved position
	text, ok, err := m.to.Position(ctx, m.positionName())
	if err == nil && ok {
		err = json.Unmarshal([]byte(text), &saved)
	}
	if err != nil || saved.Bytes == 0 {
		return err
	}
	n, err := io.CopyN(m.digest, in, saved.Bytes)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if n < saved.Bytes || hex.EncodeToString(m.digest.Sum(nil)) != saved.SHA256 {
		return ErrChanged
	}
	m.from, m.result.Resumed = saved, saved.Lines
	return nil
}

// read splits the input into blocks of whole lines.
func (m *importer) read(ctx context.Context, in io.Reader, blocks, work chan<- *block) error {
	at := m.from
	var rest []byte // the beginning of an incomplete line, in the previous block's buffer
	for {
		buf := m.buffer(len(rest) + blockSize)
		copy(buf, rest)
		n, err := io.ReadFull(in, buf[len(rest):])
		buf = buf[:len(rest)+n]
		ended := errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
		if err != nil && !ended {
			return fmt.Errorf("read after line %d: %w", at.Lines, err)
		}
		cut := bytes.LastIndexByte(buf, '\n') + 1
		if ended {
			cut = len(buf)
		}
		rest = buf[cut:]
		if len(rest) > maxLine {
			return BadLine{Line: at.Lines + 1, Err: fmt.Errorf("longer than %d bytes", maxLine)}
		}
		if cut > 0 {
			b := m.newBlock(buf[:cut], &at)
			select {
			case blocks <- b:
			case <-ctx.Done():
				return ctx.Err()
			}
			select {
			case work <- b:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		if ended {
			return nil
		}
	}
}

// buffer reuses a buffer if possible. It does not clear it, because rest in read may still refer to it.
func (m *importer) buffer(size int) []byte {
	if used, ok := m.buffers.Get().(*[]byte); ok && cap(*used) >= size {
		return (*used)[:size]
	}
	return make([]byte, size, size+blockSize/8) // room for the beginning of a line
}

// newBlock makes a block of lines and moves at past them.
func (m *importer) newBlock(lines []byte, at *position) *block {
	b := &block{lines: lines, first: at.Lines + 1, parsed: make(chan struct{}), read: m.done.n}
	if state, ok := m.digest.(interface{ AppendBinary([]byte) ([]byte, error) }); ok {
		b.digest, _ = state.AppendBinary(nil) // SHA-256 always can
	}
	m.digest.Write(lines)
	at.Bytes += int64(len(lines))
	at.Lines += int64(bytes.Count(lines, []byte{'\n'}))
	if lines[len(lines)-1] != '\n' {
		at.Lines++
	}
	at.SHA256 = hex.EncodeToString(m.digest.Sum(nil))
	b.after = *at
	return b
}

// parse parses the block's rows, up to the first bad line unless keepGoing is set. Empty lines are skipped.
func (b *block) parse(keepGoing bool) {
	number, offset := b.first, 0
	for rest := b.lines; len(rest) > 0; number++ {
		line, behind, _ := bytes.Cut(rest, []byte{'\n'})
		if len(bytes.TrimSpace(line)) > 0 {
			row, err := index.ParseLine(line)
			if err == nil {
				b.rows = append(b.rows, row)
			} else {
				b.bad = append(b.bad, BadLine{Line: number, Err: err})
				b.starts = append(b.starts, int64(offset))
				if !keepGoing {
					return
				}
			}
		}
		offset += len(rest) - len(behind)
		rest = behind
	}
}

// gather combines blocks into batches, in order.
func (m *importer) gather(ctx context.Context, blocks <-chan *block, batches chan<- *batch) error {
	gathered := &batch{}
	hand := func() error {
		select {
		case batches <- gathered:
			gathered = &batch{}
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	for b := range blocks {
		select {
		case <-b.parsed:
		case <-ctx.Done():
			return ctx.Err()
		}
		gathered.rows = append(gathered.rows, b.rows...)
		gathered.at, gathered.read = b.after, b.read
		if len(b.bad) > 0 && !m.o.KeepGoing {
			if gathered.at, gathered.end = b.beforeBad(); gathered.end != nil {
				return hand()
			}
		}
		gathered.bad = append(gathered.bad, b.bad...)
		if len(gathered.rows)+len(gathered.bad) >= m.o.BatchRows {
			if err := hand(); err != nil {
				return err
			}
		}
	}
	return hand()
}

// beforeBad returns the position before the block's first bad line, and that line as an error.
func (b *block) beforeBad() (position, error) {
	digest := sha256.New()
	if state, ok := digest.(interface{ UnmarshalBinary([]byte) error }); ok && b.digest != nil {
		if err := state.UnmarshalBinary(b.digest); err != nil {
			return position{}, err
		}
	}
	digest.Write(b.lines[:b.starts[0]])
	return position{
		Bytes: b.after.Bytes - int64(len(b.lines)) + b.starts[0], Lines: b.bad[0].Line - 1,
		SHA256: hex.EncodeToString(digest.Sum(nil)),
	}, b.bad[0]
}

// write writes batches until one ends the import.
func (m *importer) write(ctx context.Context, batches <-chan *batch) error {
	for b := range batches {
		for _, bad := range b.bad {
			m.result.Bad++
			if m.o.OnBad != nil {
				m.o.OnBad(bad)
			}
		}
		m.result.Done = b.read
		if err := m.flush(ctx, b); err != nil {
			return err
		}
		if b.end != nil {
			return b.end
		}
	}
	return nil
}

// flush writes the rows and the import's position. A batch of bad lines only has a position, too, so that an
// interrupted import does not report the lines again.
func (m *importer) flush(ctx context.Context, b *batch) error {
	if len(b.rows) == 0 && (len(b.bad) == 0 || m.o.Name == "") {
		return nil
	}
	write := index.Batch{Rows: b.rows, Index: m.index}
	if m.o.Name != "" {
		text, err := json.Marshal(b.at)
		if err != nil {
			return err
		}
		write.Positions = map[string]string{m.positionName(): string(text)}
	}
	written, err := m.to.Write(ctx, write)
	if err != nil {
		return fmt.Errorf("write the rows up to line %d: %w", b.at.Lines, err)
	}
	m.result.Add(written)
	m.result.Rows += int64(len(b.rows))
	m.report(b.at)
	return nil
}

func (m *importer) report(at position) {
	p := &m.result.Progress
	p.Bytes, p.Total, p.Elapsed = at.Bytes, m.total, time.Since(m.start)
	p.Rate = float64(p.Rows) / p.Elapsed.Seconds()
	if m.o.OnProgress != nil {
		m.o.OnProgress(*p)
	}
}

// finish removes the position, so that the next import of this name starts from the beginning.
func (m *importer) finish(ctx context.Context) error {
	if m.o.Name == "" {
		return nil
	}
	_, err := m.to.Write(ctx, index.Batch{Index: m.index, Positions: map[string]string{m.positionName(): ""}})
	return err
}
