package api

import (
	"bufio"
	"bytes"
	"sync"
	"time"

	"github.com/valyala/fasthttp"
)

// setDate sets the Date header (RFC 9110, section 6.6.1). fasthttp's own Date comes from a goroutine that wakes every
// second from the first answer to the end of the process, so an idle process would never sleep. fasthttp's setters
// ignore Date, so setDate parses the header in like a trailer of a chunked body.
func setDate(h *fasthttp.ResponseHeader, now time.Time) {
	r := dateReaders.Get().(*dateReader)
	defer dateReaders.Put(r)
	line := append(fasthttp.AppendHTTPDate(append(r.line[:0], "Date: "...), now), "\r\n\r\n"...)
	r.bytes.Reset(line)
	r.buffer.Reset(&r.bytes)
	_ = h.ReadTrailer(&r.buffer) // cannot fail: the line is well formed
}

type dateReader struct {
	line   [64]byte
	bytes  bytes.Reader
	buffer bufio.Reader
}

var dateReaders = sync.Pool{New: func() any {
	r := &dateReader{}
	r.buffer = *bufio.NewReaderSize(&r.bytes, len(r.line))
	return r
}}

// wipe empties an answer. Response.Reset would also re-enable fasthttp's own Date.
func wipe(r *fasthttp.Response) {
	r.ResetBody()
	for _, key := range r.Header.PeekKeys() {
		r.Header.DelBytes(key)
	}
	r.SetStatusCode(fasthttp.StatusOK)
}
