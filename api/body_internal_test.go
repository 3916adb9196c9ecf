package api

import (
	"bytes"
	"io"
	"testing"

	"github.com/valyala/fasthttp"
)

// body notes the largest buffer that it was read into before its last byte.
type body struct {
	rest    io.Reader
	largest int
}

func (b *body) Read(p []byte) (int, error) {
	b.largest = max(b.largest, len(p))
	return b.rest.Read(p)
}

func TestTheBufferOfABodyGrowsWithTheReceivedBytes(t *testing.T) {
	t.Parallel()
	const limit = 256 << 20
	for _, test := range []struct{ announced, sent, largest int }{
		{limit, 10, firstBuffer},
		{limit, 1 << 20, 1 << 20},
		{100, 100, 513},
	} {
		rctx := new(fasthttp.RequestCtx)
		rctx.Init(new(fasthttp.Request), nil, nil)
		rctx.Request.Header.SetContentLength(test.announced)
		b := &body{rest: bytes.NewReader(make([]byte, test.sent))}
		rctx.Request.SetBodyStream(b, test.announced)
		got, err := readBody(rctx, new(exchange), limit)
		if whole := test.announced == test.sent; whole != (err == nil) || whole && len(got) != test.sent {
			t.Errorf("%+v: %d bytes, %v", test, len(got), err)
		}
		if b.largest > test.largest {
			t.Errorf("%+v: a buffer of %d bytes", test, b.largest)
		}
	}
}
