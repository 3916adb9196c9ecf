package api

import (
	"bufio"
	"bytes"
	"sync"
	"time"

	"github.com/valyala/fasthttp"
)

// setDate gives an answer its Date (RFC 9110, section 6.6.1). fasthttp's own comes from a goroutine that renews it each second,
// from the first answer to the end of the process, which would then never sleep. Its setters leave Date out, so this is
// read in, as what follows a chunked body is.
func setDate(h *fasthttp.ResponseHeader, now time.Time) {
	r := dateReaders.Get().(*dateReader)
	defer dateReaders.Put(r)
	line := append(fasthttp.AppendHTTPDate(append(r.line[:0], "Date: "...), now), "\r\n\r\n"...)
	r.bytes.Reset(line)
	r.buffer.Reset(&r.bytes)
	_ = h.ReadTrailer(&r.buffer) // of a line that is well formed
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

// wipe empties an answer. Response.Reset would do, but for bringing fasthttp's own Date back.
func wipe(r *fasthttp.Response) {
	r.ResetBody()
	for _, key := range r.Header.PeekKeys() {
		r.Header.DelBytes(key)
	}
	r.SetStatusCode(fasthttp.StatusOK)
}
