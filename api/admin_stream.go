package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"sync"

	"github.com/gofiber/fiber/v2"

	"github.com/attestd/attestd/api/wire"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/events"
)

// streamReport streams lines of wire.Progress while find runs, then the report. When the client disconnects, the
// context of find ends.
func streamReport[Report any](a *Admin, c *fiber.Ctx,
	find func(ctx context.Context, progress func(done, total int64)) (Report, error)) error {
	return a.stream(c, func(ctx context.Context, w io.Writer) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		out := json.NewEncoder(w)
		report, err := find(ctx, func(done, total int64) {
			if out.Encode(wire.Progress[Report]{Done: done, Total: total}) != nil {
				cancel()
			}
		})
		if err != nil {
			e := asError(err)
			return out.Encode(wire.Progress[Report]{Problem: &wire.Problem{Type: "about:blank",
				Status: statuses[e.Code], Code: e.Code, Detail: err.Error()}})
		}
		return out.Encode(wire.Progress[Report]{Report: &report})
	})
}

// streamFile is a stream that waits for the first byte. An error before that byte is answered as a problem.
func (a *Admin) streamFile(c *fiber.Ctx, produce func(ctx context.Context, w io.Writer) error) error {
	began := make(chan error, 1)
	err := a.stream(c, func(ctx context.Context, w io.Writer) error {
		first := &firstByte{w: w, began: began}
		err := produce(ctx, first)
		first.report(err)
		return err
	})
	if err != nil {
		return err
	}
	if err := <-began; err != nil {
		c.Context().Response.ResetBody() // closes the stream
		return appliance.Errorf(appliance.CodeOf(err), "%s", err)
	}
	return nil
}

// events streams the events of all kinds, in the form of GET /v1/events.
func (a *Admin) events(c *fiber.Ctx) error {
	if a.opts.Streams == nil {
		return appliance.Errorf(appliance.CodeNotFound, "this daemon has no streams of events")
	}
	filter, from, err := parseStream(c)
	if err != nil {
		return err
	}
	ctx, cancel := a.deadline()
	defer cancel()
	s, err := a.opts.Streams.Open(ctx, events.Viewer{Operator: true}, filter, from)
	if err != nil {
		return err
	}
	err = a.stream(c, func(ctx context.Context, w io.Writer) error {
		defer s.Close()
		buf := s.Begin(nil)
		for more := true; more; {
			if _, err := w.Write(buf); err != nil {
				return err
			}
			buf, _, more = s.Next(ctx)
		}
		return nil
	})
	c.Context().Response.Header.SetContentType("text/event-stream")
	return err
}

// firstByte sends nil to began at the first write, or the error that came before any write. It sends once.
type firstByte struct {
	w     io.Writer
	began chan<- error
	once  sync.Once
}

func (f *firstByte) report(err error) { f.once.Do(func() { f.began <- err }) }

func (f *firstByte) Write(p []byte) (int, error) {
	f.report(nil)
	return f.w.Write(p)
}

// stream answers with the output of produce while produce writes it. The context of produce ends when the client
// disconnects or the server shuts down. If produce fails, the answer is cut off.
func (a *Admin) stream(c *fiber.Ctx, produce func(ctx context.Context, w io.Writer) error) error {
	ctx, cancel := context.WithCancel(a.streams)
	r, w := io.Pipe()
	id := exchangeOf(c.Context()).id
	go func() {
		defer cancel()
		err := a.produce(ctx, w, produce)
		if err != nil && !errors.Is(err, io.ErrClosedPipe) {
			a.logger.Error("stream", "request_id", id, "error", err)
		}
		_ = w.CloseWithError(err) // never fails
	}()
	c.Context().Response.Header.SetContentType("application/x-ndjson")
	c.Context().Response.SetBodyStream(streamReader{r, cancel}, -1)
	return nil
}

func (a *Admin) produce(ctx context.Context, w io.Writer,
	produce func(ctx context.Context, w io.Writer) error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			a.logger.Error("panic", "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			err = errors.New("internal error")
		}
	}()
	return produce(ctx, w)
}

// streamReader is the answer's body. fasthttp closes it after the last byte, or when the client has disconnected.
type streamReader struct {
	*io.PipeReader
	cancel context.CancelFunc
}

func (r streamReader) Close() error {
	r.cancel()
	return r.PipeReader.Close()
}
