package dataset

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/attestd/attestd/appliance/index"
)

// ExportOptions configure an export.
type ExportOptions struct {
	// OnProgress is called every 20,000 rows and at the end; nil means never.
	OnProgress func(Progress)
}

// WriteFile writes a file of rows by calling write, or writes to stdout for "-". If the path ends in .zst, the file is
// compressed. The file appears complete or not at all: it is written under a temporary name, synced, and renamed. A
// device or a pipe is written directly.
func WriteFile(path string, stdout io.Writer, write func(io.Writer) error) error {
	if path == Stdio {
		return write(stdout)
	}
	switch stat, err := os.Stat(path); {
	case err != nil:
	case stat.IsDir():
		return fmt.Errorf("write %s: the path is a folder", path)
	case !stat.Mode().IsRegular(): // a rename would replace the device or the pipe
		return writeInto(path, write)
	}
	if _, err := os.Stat(filepath.Dir(path)); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".rows-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(f.Name()) }() // after the rename it no longer exists
	err = writeTo(f, compressed(path), write)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return os.Rename(f.Name(), path)
}

// writeInto writes to a device or a pipe.
func writeInto(path string, write func(io.Writer) error) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	return errors.Join(writeTo(f, compressed(path), write), f.Close())
}

func writeTo(out io.Writer, compress bool, write func(io.Writer) error) error {
	if !compress {
		return write(out)
	}
	z, err := zstd.NewWriter(out, zstd.WithEncoderConcurrency(2))
	if err != nil {
		return err
	}
	return errors.Join(write(z), z.Close())
}

// exported is the part of index.Snapshot that an export uses.
type exported interface {
	Status(ctx context.Context) (index.Status, error)
	Each(ctx context.Context, t *index.Type, yield func(index.Row) error) error
}

// exporter writes rows as lines and counts them.
type exporter struct {
	Progress
	out        *bufio.Writer
	line       []byte
	start      time.Time
	onProgress func(Progress)
}

// Export writes all rows of one snapshot of the index as NDJSON. Writers are not blocked.
func Export(ctx context.Context, idx index.Index, out io.Writer, o ExportOptions) (Progress, error) {
	e := &exporter{out: bufio.NewWriterSize(out, 1<<20), start: time.Now(), onProgress: o.OnProgress}
	err := idx.View(ctx, func(s index.Snapshot) error { return e.all(ctx, s) })
	if err == nil {
		err = e.out.Flush()
	}
	e.report()
	return e.Progress, err
}

func (e *exporter) all(ctx context.Context, s exported) error {
	status, err := s.Status(ctx)
	if err != nil {
		return err
	}
	for _, n := range status.Rows {
		e.Total += int64(n)
	}
	for _, t := range index.RowTypes {
		if err := s.Each(ctx, t, e.row); err != nil {
			return err
		}
	}
	return nil
}

func (e *exporter) row(row index.Row) error {
	e.line = append(row.AppendLine(e.line[:0]), '\n')
	e.Rows++
	e.Bytes += int64(len(e.line))
	if e.Rows%20_000 == 0 {
		e.report()
	}
	_, err := e.out.Write(e.line)
	return err
}

func (e *exporter) report() {
	e.Elapsed = time.Since(e.start)
	e.Rate, e.Done = float64(e.Rows)/e.Elapsed.Seconds(), e.Rows
	if e.onProgress != nil {
		e.onProgress(e.Progress)
	}
}
