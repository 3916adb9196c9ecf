package archive

import (
	"context"
	"io"
)

// reading is a reader that ends with ctx: a backup may be large, and who interrupts a command does not wait for it.
type reading struct {
	ctx context.Context
	io.Reader
}

func (r reading) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.Reader.Read(p)
}

// writing is a writer that ends with ctx.
type writing struct {
	ctx context.Context
	io.Writer
}

func (w writing) Write(p []byte) (int, error) {
	if err := w.ctx.Err(); err != nil {
		return 0, err
	}
	return w.Writer.Write(p)
}
