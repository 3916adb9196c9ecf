package upstream

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/attestd/attestd/api/coding"
	"github.com/attestd/attestd/appliance"
)

// Request is a request to forward.
type Request struct {
	Method      string // GET or POST
	Query       string // of a GET: the query of the URL, as received
	Body        []byte // of a POST: as received; must not be modified, even after Forward
	ContentType string // of Body
	Accept      string // the client's header; empty sends none
	IfNoneMatch string // an ETag, which allows the answer 304; empty sends none
	// MaxResponse is Options.MaxResponse for this request. Zero, or a larger value, means Options.MaxResponse.
	MaxResponse int64
	// Room is called repeatedly with the size of the answer in memory as it grows. If Room returns false, Forward gives
	// the answer up. Nil means that all answers fit.
	Room func(size int) bool
}

// Response is the upstream's answer.
type Response struct {
	Status      int
	ContentType string
	ETag        string        // weak or strong; empty if the answer has none
	RetryAfter  time.Duration // zero if the answer has none; at most MaxRetryAfter
	Body        []byte        // complete and decompressed
}

// MaxRetryAfter is the largest Response.RetryAfter, so that an absurd header does not stop requests for good.
const MaxRetryAfter = 24 * time.Hour

// ErrTooLarge means that an answer exceeds Options.MaxResponse or Request.MaxResponse.
var ErrTooLarge = errors.New("the upstream's answer is too large")

// ErrNoRoom means that Request.Room gave up an answer.
var ErrNoRoom = errors.New("not enough memory for the upstream's answer")

// Forward sends a request with the client's Accept and Content-Type, but with no other header of the client. It returns
// the upstream's answer with any status except redirects.
//
// Errors: appliance.CodeUpstreamUnavailable if the upstream cannot be reached, is too slow, redirects, or does not send
// a complete response; ErrTooLarge; ErrNoRoom; ctx.Err() once ctx is done; appliance.CodeInvalidField if Query, Accept
// or ContentType contains a control character.
func (c *Client) Forward(ctx context.Context, r Request) (Response, error) {
	for _, part := range []struct{ name, text string }{{"query", r.Query}, {"Accept", r.Accept},
		{"Content-Type", r.ContentType}} {
		if hasControl(part.text) {
			return Response{}, appliance.Errorf(appliance.CodeInvalidField, "has a control character").In(part.name)
		}
	}
	began := time.Now()
	resp, err := c.send(ctx, r)
	c.metrics.observe(useForward, resp.Status, err, time.Since(began))
	return resp, err
}

// JSON reports whether the answer has a media type of GraphQL over HTTP and is a JSON object.
func (r Response) JSON() bool {
	return r.isGraphQL() && bytes.HasPrefix(bytes.TrimLeft(r.Body, " \t\r\n"), []byte("{")) && json.Valid(r.Body)
}

func (r Response) isGraphQL() bool {
	media, _, err := mime.ParseMediaType(r.ContentType)
	return err == nil && (media == "application/json" || media == "application/graphql-response+json")
}

// Unavailable returns the error for an answer that cannot be used. Its detail names the status. Its cause, for the
// operator, quotes the start of the answer.
func (r Response) Unavailable() *appliance.Error {
	e := appliance.Errorf(appliance.CodeUpstreamUnavailable, "the upstream answered %d", r.Status)
	if r.Status/100 == 2 {
		e.Detail = "the upstream's answer is not GraphQL"
	}
	e.RetryAfter = r.RetryAfter
	return e.Because(fmt.Errorf("HTTP %d, %s: %s", r.Status, excerpt(r.ContentType), excerpt(string(r.Body))))
}

// maxCause bounds the quoted part of an untrusted text, in bytes.
const maxCause = 200

// excerpt quotes the start of an untrusted text.
func excerpt(text string) string {
	short := strings.ToValidUTF8(text[:min(len(text), maxCause)], "")
	if len(text) > maxCause {
		short += "…"
	}
	return strconv.Quote(short)
}

// send sends a request and reads the whole answer.
func (c *Client) send(ctx context.Context, r Request) (Response, error) {
	within, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	resp, err := c.exchange(within, r)
	switch {
	case err == nil || errors.Is(err, ErrTooLarge) || errors.Is(err, ErrNoRoom):
		return resp, err
	case ctx.Err() != nil:
		return Response{}, ctx.Err()
	case within.Err() != nil:
		return Response{}, appliance.Errorf(appliance.CodeUpstreamUnavailable, "the upstream took too long").
			Because(fmt.Errorf("no complete answer within %s", c.timeout))
	case appliance.CodeOf(err) == appliance.CodeUpstreamUnavailable:
		return Response{}, err
	}
	if requestError, ok := errors.AsType[*url.Error](err); ok {
		err = requestError.Err // without the URL, which may hold a secret
	}
	if len(err.Error()) > maxCause { // err quotes the answer
		err = errors.New(excerpt(err.Error()))
	}
	return Response{},
		appliance.Errorf(appliance.CodeUpstreamUnavailable, "the upstream cannot be reached").Because(err)
}

func (c *Client) exchange(ctx context.Context, r Request) (Response, error) {
	req, err := c.request(ctx, r)
	if err != nil {
		return Response{}, err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return Response{}, err
	}
	defer resp.Body.Close()
	answer := Response{
		Status: resp.StatusCode, ContentType: resp.Header.Get("Content-Type"), ETag: resp.Header.Get("ETag"),
		RetryAfter: retryAfter(resp.Header.Get("Retry-After"), time.Now()),
	}
	if resp.StatusCode == http.StatusNotModified && r.IfNoneMatch != "" {
		return answer, nil
	}
	if resp.StatusCode/100 == 3 {
		return answer, appliance.Errorf(appliance.CodeUpstreamUnavailable, "the upstream answered %d", resp.StatusCode).
			Because(fmt.Errorf("HTTP %d redirect to %s, which is not followed: if that address is right, configure it",
				resp.StatusCode, excerpt(resp.Header.Get("Location"))))
	}
	limit := c.max
	if r.MaxResponse > 0 {
		limit = min(limit, r.MaxResponse)
	}
	answer.Body, err = readBody(resp, limit, r.Room)
	return answer, err
}

func (c *Client) request(ctx context.Context, r Request) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, r.Method, c.url.String(), bytes.NewReader(r.Body))
	if err != nil {
		return nil, err
	}
	if r.Method == http.MethodGet {
		// A space would end the request line. All other characters are sent unchanged.
		req.URL.RawQuery = strings.ReplaceAll(r.Query, " ", "%20")
		if c.url.RawQuery != "" {
			req.URL.RawQuery = c.url.RawQuery + "&" + req.URL.RawQuery
		}
	}
	req.Header = c.header.Clone()
	if r.Accept != "" {
		req.Header.Set("Accept", r.Accept)
	}
	req.Header.Set("Accept-Encoding", coding.Accepted)
	if r.IfNoneMatch != "" {
		req.Header.Set("If-None-Match", r.IfNoneMatch)
	}
	if r.ContentType != "" {
		req.Header.Set("Content-Type", r.ContentType)
	}
	return req, nil
}

// readBody reads and decompresses a body. limit bounds its size both before and after decompression, and room may stop
// it earlier.
func readBody(resp *http.Response, limit int64, room func(size int) bool) ([]byte, error) {
	if resp.ContentLength > limit {
		return nil, ErrTooLarge
	}
	if room == nil {
		room = func(int) bool { return true }
	}
	decoded, err := coding.NewReader(resp.Header.Get("Content-Encoding"), io.LimitReader(resp.Body, limit+1))
	if err != nil {
		return nil, fmt.Errorf("read the answer: %w", err)
	}
	defer decoded.Close()
	var body bytes.Buffer
	if !room(int(max(resp.ContentLength, 0)) + bytes.MinRead) {
		return nil, ErrNoRoom
	}
	body.Grow(int(max(resp.ContentLength, 0)) + bytes.MinRead)
	_, err = body.ReadFrom(&roomyReader{Reader: io.LimitReader(decoded, limit+1), room: room})
	switch {
	case errors.Is(err, ErrNoRoom):
		return nil, ErrNoRoom
	case err != nil:
		return nil, fmt.Errorf("read the answer: %w", err)
	case int64(body.Len()) > limit:
		return nil, ErrTooLarge
	}
	return body.Bytes(), nil
}

// roomyReader reads while room accepts the number of bytes read.
type roomyReader struct {
	io.Reader
	room func(size int) bool
	read int
}

func (r *roomyReader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if r.read += n; !r.room(r.read) {
		return n, ErrNoRoom
	}
	return n, err
}

// retryAfter parses Retry-After (RFC 9110, section 10.2.3): seconds or a date. It returns 0 for any other value.
func retryAfter(header string, now time.Time) time.Duration {
	if header == "" {
		return 0
	}
	seconds, err := strconv.ParseUint(header, 10, 32)
	if err == nil || errors.Is(err, strconv.ErrRange) {
		return min(time.Duration(seconds)*time.Second, MaxRetryAfter)
	}
	at, err := http.ParseTime(header)
	if err != nil {
		return 0
	}
	return min(max(at.Sub(now), 0), MaxRetryAfter)
}
