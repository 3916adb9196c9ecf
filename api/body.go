package api

import (
	"errors"
	"io"
	"net"

	"github.com/valyala/fasthttp"

	"github.com/attestd/attestd/appliance"
)

// firstBuffer is the largest buffer that is allocated before the body's first byte is received.
const firstBuffer = 64 << 10

// readBody returns the whole body, of at most limit bytes.
//
// Errors: CodeBodyTooLarge, CodeRequestTimeout, CodeInvalidRequest if the body ends early.
func readBody(rctx *fasthttp.RequestCtx, x *exchange, limit int64) ([]byte, error) {
	length := int64(rctx.Request.Header.ContentLength())
	if length > limit {
		return nil, tooLarge(limit)
	}
	stream := rctx.RequestBodyStream()
	if stream == nil {
		x.read = true
		return nil, nil
	}
	// The buffer grows with the received bytes: the announced length costs the client nothing.
	body := make([]byte, 0, min(max(length, 512)+1, firstBuffer))
	for {
		n, err := stream.Read(body[len(body):cap(body)])
		body = body[:len(body)+n]
		if int64(len(body)) > limit {
			return nil, tooLarge(limit)
		}
		if err == io.EOF {
			return body, bodyEnd(rctx, x, length, int64(len(body)))
		}
		if err != nil {
			return nil, readError(err)
		}
		if len(body) == cap(body) {
			body = append(body, 0)[:len(body)]
		}
	}
}

// bodyEnd returns an error if the client closed the connection before the body was complete. fasthttp reports io.EOF in
// that case, too.
func bodyEnd(rctx *fasthttp.RequestCtx, x *exchange, want, got int64) error {
	c := unwrap(rctx.Conn())
	if want >= 0 && got != want || want < 0 && c != nil && c.ended.Load() {
		return appliance.Errorf(CodeInvalidRequest, "the body is incomplete")
	}
	x.read = true
	return nil
}

func tooLarge(limit int64) error {
	return appliance.Errorf(CodeBodyTooLarge, "the body must have at most %d bytes", limit)
}

// unread reports whether a part of the body may still be unread on the connection, after a handler that did not read it
// to its end.
func unread(h *fasthttp.RequestHeader) bool {
	length := h.ContentLength()
	return length == -1 || length > prefetched
}

// readError maps an error that fasthttp returns while reading a request.
func readError(err error) *appliance.Error {
	if e, ok := errors.AsType[*appliance.Error](err); ok {
		return e
	}
	if _, ok := errors.AsType[*fasthttp.ErrSmallBuffer](err); ok {
		return appliance.Errorf(CodeHeadersTooLarge, "the request line and headers must have at most %d bytes",
			maxHeaderBytes)
	}
	if e, ok := errors.AsType[net.Error](err); ok && e.Timeout() {
		return appliance.Errorf(CodeRequestTimeout, "the request did not arrive in time")
	}
	return appliance.Errorf(CodeInvalidRequest, "the request is malformed or incomplete HTTP")
}
