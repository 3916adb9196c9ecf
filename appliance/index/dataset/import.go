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

// Target is what an import writes to: an index, or one that another process has open.
type Target interface {
	// Position returns what a batch has set under that name; false for nothing.
	Position(ctx context.Context, name string) (string, bool, error)
	// ID is the index.Status.ID of the index.
	ID(ctx context.Context) (string, error)
	// Write is that of index.Index.
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

// ImportOptions say how to import.
type ImportOptions struct {
	// Name is what the import's position is kept under in the index, so that it goes on where it was interrupted; empty
	// means that it always starts at the beginning. ImportFile sets it from the path.
	Name string
	// Restart forgets the position.
	Restart bool
	// KeepGoing skips bad lines instead of stopping at the first.
	KeepGoing bool
	// OnBad is called with each bad line that is skipped; nil means not at all.
	OnBad func(BadLine)
	// OnProgress is called after each batch; nil means not at all.
	OnProgress func(Progress)
	// BatchRows is how many rows are written at once; zero means 20,000. More is faster and takes more memory, about
	// 8 KB each.
	BatchRows int
}

const defaultBatchRows = 20_000

// Imported tells what an import did.
type Imported struct {
	index.Written
	Progress
	Bad     int64 `json:"bad"`     // lines that were skipped
	Resumed int64 `json:"resumed"` // lines that an earlier, interrupted import had done
}

// BadLine is a line that is no row.
type BadLine struct {
	Line int64 // from 1
	Err  error
}

// Error names the line and the reason.
func (b BadLine) Error() string { return fmt.Sprintf("line %d: %v", b.Line, b.Err) }

// Unwrap returns the reason.
func (b BadLine) Unwrap() error { return b.Err }

// ErrChanged is returned by Import when the beginning of the input is not what an interrupted import of that name has read.
// ImportFile starts from the beginning instead.
var ErrChanged = errors.New("the input has changed since the import was interrupted")

// ImportFile imports the file at path, standard input for "-". Files named .zst are decompressed.
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

// Import upserts the rows of in, NDJSON, until its end. It is safe to import the same again: what is there as it
// is does not change. After an error, what was written stays, and the next import of the same name goes on behind it, if the input
// still begins the same.
//
// Errors: a BadLine, unless KeepGoing; ErrChanged; what reading and Index.Write return.
func Import(ctx context.Context, to Target, in io.Reader, o ImportOptions) (Imported, error) {
	count := &counter{Reader: in}
	return newImporter(to, o, count, 0).run(ctx, count)
}

// position is where an import has come, kept in the index with the rows up to there.
type position struct {
	Bytes  int64  `json:"bytes"`
	Lines  int64  `json:"lines"`
	SHA256 string `json:"sha256"` // of those bytes
}

// importer runs four stages concurrently: one goroutine reads and cuts blocks of whole lines, several parse them, one gathers
// them in their order, and one writes a batch while the next is gathered.
type importer struct {
	to    Target
	o     ImportOptions
	start time.Time
	done  *counter // bytes of the file; the reading goroutine's until it has ended
	total int64

	index   string    // index.Batch.Index: a replica that is made anew meanwhile must not get the rest alone
	from    position  // where the import began
	digest  hash.Hash // of what was read; the reading goroutine's
	buffers sync.Pool // of *[]byte: blocks that were parsed
	result  Imported  // the writing goroutine's
}

// batch is what is written at once.
type batch struct {
	rows []index.Row
	bad  []BadLine // that were skipped
	at   position  // behind the last line of rows
	read int64     // bytes of the file that were read then
	end  error     // what ends the import once the rows are written
}

func newImporter(to Target, o ImportOptions, done *counter, total int64) *importer {
	if o.BatchRows == 0 {
		o.BatchRows = defaultBatchRows
	}
	return &importer{to: to, o: o, start: time.Now(), done: done, total: total, digest: sha256.New()}
}

// block is some whole lines, then parsed.
type block struct {
	lines  []byte
	first  int64    // number of the first line
	after  position // behind the last line
	read   int64    // bytes of the file that were read then
	parsed chan struct{}
	rows   []index.Row
	bad    []BadLine
	starts []int64 // bytes of the block in front of each bad line
	digest []byte  // state of the digest in front of the block
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

// resume reads over what an interrupted import has written.
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

// read cuts the input into blocks of whole lines.
func (m *importer) read(ctx context.Context, in io.Reader, blocks, work chan<- *block) error {
	at := m.from
	var rest []byte // the beginning of a line whose end was not read yet, in the buffer of the block before
	for {
		buf := m.buffer(len(rest) + blockSize)
		copy(buf, rest)
		n, err := io.ReadFull(in, buf[len(rest):])
		buf = buf[:len(rest)+n]
		ended := errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
		if err != nil && !ended {
			return fmt.Errorf("read behind line %d: %w", at.Lines, err)
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

// buffer returns one that was used before, if it can. What is in it is left as it is: see rest in read.
func (m *importer) buffer(size int) []byte {
	if used, ok := m.buffers.Get().(*[]byte); ok && cap(*used) >= size {
		return (*used)[:size]
	}
	return make([]byte, size, size+blockSize/8) // room for the beginning of a line
}

// newBlock takes lines and moves at behind them.
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

// parse reads the block's rows, up to the first bad line unless to keep going. Empty lines are passed over.
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

// gather puts blocks in their order together to batches.
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

// beforeBad returns the position before the block's first bad line, and that line.
func (b *block) beforeBad() (position, error) {
	digest := sha256.New()
	if state, ok := digest.(interface{ UnmarshalBinary([]byte) error }); ok && b.digest != nil {
		if err := state.UnmarshalBinary(b.digest); err != nil {
			return position{}, err
		}
	}
	digest.Write(b.lines[:b.starts[0]])
	return position{
		Bytes: b.after.Bytes - int64(len(b.lines)) + b.starts[0], Lines: b.bad[0].Line - 1, SHA256: hex.EncodeToString(digest.Sum(nil)),
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

// flush writes the rows and where the import has come.
func (m *importer) flush(ctx context.Context, b *batch) error {
	if len(b.rows) == 0 {
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

// finish forgets the position: the next import of the name is a new one.
func (m *importer) finish(ctx context.Context) error {
	if m.o.Name == "" {
		return nil
	}
	_, err := m.to.Write(ctx, index.Batch{Positions: map[string]string{m.positionName(): ""}})
	return err
}
