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

	"github.com/attestd/attestd/appliance"
)

// ExportOptions say how to export.
type ExportOptions struct {
	// OnProgress is called every some thousand records; nil means not at all.
	OnProgress func(Progress)
}

// ExportFile exports to the file at path, standard output for "-". Files named .zst are compressed. The file is complete or
// is not there: it is written under another name and renamed at the end.
func ExportFile(ctx context.Context, index appliance.Index, path string, o ExportOptions) (Progress, error) {
	if path == Stdio {
		return Export(ctx, index, os.Stdout, o)
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".export-*")
	if err != nil {
		return Progress{}, err
	}
	defer os.Remove(f.Name()) // gone by then, unless something failed
	defer f.Close()
	p, err := exportTo(ctx, index, f, compressed(path), o)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return p, fmt.Errorf("export %s: %w", path, err)
	}
	return p, os.Rename(f.Name(), path)
}

func exportTo(ctx context.Context, index appliance.Index, out io.Writer, compress bool, o ExportOptions) (Progress, error) {
	if !compress {
		return Export(ctx, index, out, o)
	}
	z, err := zstd.NewWriter(out, zstd.WithEncoderConcurrency(2))
	if err != nil {
		return Progress{}, err
	}
	p, err := Export(ctx, index, z, o)
	return p, errors.Join(err, z.Close())
}

// Export writes all records of the index as it is at one moment, NDJSON. Writers go on meanwhile.
func Export(ctx context.Context, index appliance.Index, out io.Writer, o ExportOptions) (Progress, error) {
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
	err := index.View(ctx, func(s appliance.Snapshot) error {
		status, err := s.Status(ctx)
		if err != nil {
			return err
		}
		for _, n := range status.Rows {
			p.Total += int64(n)
		}
		var line []byte
		for _, t := range appliance.RecordTypes {
			err := s.Each(ctx, t, func(row appliance.Row) error {
				line = append(row.AppendRecord(line[:0]), '\n')
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
