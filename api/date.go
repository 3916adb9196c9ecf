package api

import (
	"bufio"
	"bytes"
	"time"

	"github.com/valyala/fasthttp"
)

// setDate gives an answer its Date (RFC 9110, section 6.6.1). fasthttp's own comes from a goroutine that renews it each second,
// from the first answer to the end of the process, which would then never sleep. Its setters leave Date out, so this is
// read in, as what follows a chunked body is.
func setDate(h *fasthttp.ResponseHeader, now time.Time) {
	const room = 64
	line := fasthttp.AppendHTTPDate(append(make([]byte, 0, room), "Date: "...), now)
	line = append(line, "\r\n\r\n"...)
	_ = h.ReadTrailer(bufio.NewReaderSize(bytes.NewReader(line), room)) // of a line that is well formed
}

// wipe empties an answer. Response.Reset would do, but for bringing fasthttp's own Date back.
func wipe(r *fasthttp.Response) {
	r.ResetBody()
	for _, key := range r.Header.PeekKeys() {
		r.Header.DelBytes(key)
	}
	r.SetStatusCode(fasthttp.StatusOK)
}
