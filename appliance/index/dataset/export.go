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

// ExportOptions say how to export.
type ExportOptions struct {
	// OnProgress is called every some thousand rows; nil means not at all.
	OnProgress func(Progress)
}

// WriteFile writes a file of rows by write, compressed where it is named .zst, or writes to stdout for "-". The file is
// complete or is not there: it is written under another name, synced, and renamed at the end.
func WriteFile(path string, stdout io.Writer, write func(io.Writer) error) error {
	if path == Stdio {
		return write(stdout)
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".rows-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(f.Name()) }() // gone by then, unless something failed
	err = writeTo(f, compressed(path), write)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return os.Rename(f.Name(), path)
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

// Export writes all rows of the index as it is at one moment, NDJSON. Writers go on meanwhile.
func Export(ctx context.Context, idx index.Index, out io.Writer, o ExportOptions) (Progress, error) {
	var p Progress
	start := time.Now()
	w := bufio.NewWriterSize(out, 1<<20)
	report := func() {
		p.Elapsed = time.Since(start)
		p.Rate, p.Done = float64(p.Rows)/p.Elapsed.Seconds(), p.Rows
		if o.OnProgress != nil {
			o.OnProgress(p)
		}
	}
	err := idx.View(ctx, func(s index.Snapshot) error {
		status, err := s.Status(ctx)
		if err != nil {
			return err
		}
		for _, n := range status.Rows {
			p.Total += int64(n)
		}
		var line []byte
		for _, t := range index.RowTypes {
			err := s.Each(ctx, t, func(row index.Row) error {
				line = append(row.AppendLine(line[:0]), '\n')
				p.Rows++
				p.Bytes += int64(len(line))
				if p.Rows%20_000 == 0 {
					report()
				}
				_, err := w.Write(line)
				return err
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err == nil {
		err = w.Flush()
	}
	report()
	return p, err
}
