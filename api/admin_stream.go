package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime/debug"

	"github.com/gofiber/fiber/v2"
)

// reportLine is a line of an answer that shows progress. The last has a report or a problem.
type reportLine[Report any] struct {
	Done    int64    `json:"done,omitempty"`
	Total   int64    `json:"total,omitempty"`
	Report  *Report  `json:"report,omitempty"`
	Problem *problem `json:"problem,omitempty"`
}

// streamReport answers with how far find is, and at last with what it found. find ends when nobody listens any more.
func streamReport[Report any](a *Admin, c *fiber.Ctx, find func(ctx context.Context, progress func(done, total int64)) (Report, error)) error {
	return a.stream(c, func(ctx context.Context, w io.Writer) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		out := json.NewEncoder(w)
		report, err := find(ctx, func(done, total int64) {
			if out.Encode(reportLine[Report]{Done: done, Total: total}) != nil {
				cancel()
			}
		})
		if err != nil {
			e := asError(err)
			return out.Encode(reportLine[Report]{Problem: &problem{Type: "about:blank", Status: statuses[e.Code], Code: e.Code, Detail: err.Error()}})
		}
		return out.Encode(reportLine[Report]{Report: &report})
	})
}

// stream answers with what produce writes, as it writes it. Its context ends when the client leaves or the server shuts
// down. When it fails, the answer is cut off.
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

func (a *Admin) produce(ctx context.Context, w io.Writer, produce func(ctx context.Context, w io.Writer) error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			a.logger.Error("panic", "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			err = errors.New("internal error")
		}
	}()
	return produce(ctx, w)
}

// streamReader is closed by fasthttp when the answer is written, or when the client has left.
type streamReader struct {
	*io.PipeReader
	cancel context.CancelFunc
}

func (r streamReader) Close() error {
	r.cancel()
	return r.PipeReader.Close()
}
