package api

import (
	"bytes"
	"errors"
	"io"
	"net"

	"github.com/valyala/fasthttp"

	"github.com/attestd/attestd/appliance"
)

// checkFraming refuses a request whose end two servers could see at different places, because a client can smuggle a
// second request past a proxy in it (RFC 9112, section 11.2). fasthttp takes the last of several Content-Lengths, and
// reads any Transfer-Encoding as chunked.
func checkFraming(h *fasthttp.RequestHeader) error {
	if protocol := string(h.Protocol()); protocol != "HTTP/1.1" && protocol != "HTTP/1.0" {
		return appliance.Errorf(CodeInvalidRequest, "only HTTP/1.1 and HTTP/1.0 are spoken here")
	}
	lengths, encodings := 0, 0
	for line := range bytes.Lines(h.RawHeaders()) {
		name, value, _ := bytes.Cut(line, []byte(":"))
		switch {
		case len(name) == len("Content-Length") && bytes.EqualFold(name, []byte("Content-Length")):
			lengths++
			if len(bytes.TrimSpace(value)) > 15 { // the check for overflow in fasthttp misses some
				return appliance.Errorf(CodeBodyTooLarge, "the body is too large")
			}
		case len(name) == len("Transfer-Encoding") && bytes.EqualFold(name, []byte("Transfer-Encoding")):
			encodings++
			if !bytes.EqualFold(bytes.TrimSpace(value), []byte("chunked")) {
				return appliance.Errorf(CodeInvalidRequest, "the only Transfer-Encoding is chunked")
			}
		}
	}
	if lengths+encodings > 1 {
		return appliance.Errorf(CodeInvalidRequest, "there must be one Content-Length or one Transfer-Encoding")
	}
	return nil
}

// readBody returns the whole body, which may have limit bytes.
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
	body := make([]byte, 0, max(length, 512)+1)
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

// bodyEnd returns an error if the client ended the connection before the body was complete: fasthttp returns io.EOF then,
// too.
func bodyEnd(rctx *fasthttp.RequestCtx, x *exchange, want, got int64) error {
	c := unwrap(rctx.Conn())
	if want >= 0 && got != want || want < 0 && c != nil && c.ended.Load() {
		return appliance.Errorf(CodeInvalidRequest, "the body ended early")
	}
	x.read = true
	return nil
}

func tooLarge(limit int64) error {
	return appliance.Errorf(CodeBodyTooLarge, "the body must have at most %d bytes", limit)
}

// unread reports whether a part of the body may not have been read from the connection, after a handler that did not read
// it to its end.
func unread(h *fasthttp.RequestHeader) bool {
	length := h.ContentLength()
	return length == -1 || length > prefetched
}

// readError maps an error of fasthttp while it reads a request.
func readError(err error) *appliance.Error {
	if e, ok := errors.AsType[*appliance.Error](err); ok {
		return e
	}
	if _, ok := errors.AsType[*fasthttp.ErrSmallBuffer](err); ok {
		return appliance.Errorf(CodeHeadersTooLarge, "the request line and headers must have at most %d bytes", maxHeaderBytes)
	}
	if e, ok := errors.AsType[net.Error](err); ok && e.Timeout() {
		return appliance.Errorf(CodeRequestTimeout, "the request did not arrive in time")
	}
	return appliance.Errorf(CodeInvalidRequest, "the request is not well-formed HTTP, or ended early")
}
