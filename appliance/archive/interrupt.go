package archive

import (
	"context"
	"io"
)

// reading is a reader that fails once ctx ends, so that a large backup can be interrupted.
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

// writing is a writer that fails once ctx ends.
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
