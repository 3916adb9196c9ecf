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

	"github.com/attestd/attestd/appliance"
)

// Request is a request to forward.
type Request struct {
	Method      string // GET or POST
	Query       string // of a GET: the URL's query, as it came
	Body        []byte // of a POST: as it came; not to be changed any more, not even after Forward
	ContentType string // of Body
	Accept      string // the client's; empty sends none
	MaxResponse int64  // as Options.MaxResponse, for this request; zero, or more than that, means that
}

// Response is the upstream's answer.
type Response struct {
	Status      int
	ContentType string
	RetryAfter  time.Duration // zero where it said nothing; at most MaxRetryAfter
	Body        []byte        // whole, decompressed
}

// MaxRetryAfter bounds Response.RetryAfter, so that a nonsensical one does not stop us for good.
const MaxRetryAfter = 24 * time.Hour

// ErrTooLarge is returned for an answer beyond Options.MaxResponse.
var ErrTooLarge = errors.New("the upstream's answer is too large")

// Forward sends a request with no header of the client's but Accept and Content-Type, and returns what the upstream answers,
// whatever its status; only a redirect is an error, which names where to.
//
// Errors: appliance.CodeUpstreamUnavailable where it could not be reached, was too slow, or did not answer with a whole HTTP
// response; ErrTooLarge; ctx's own error where that has ended; appliance.CodeInvalidField where the request cannot be sent,
// for it has a control character in Query, Accept or ContentType.
func (c *Client) Forward(ctx context.Context, r Request) (Response, error) {
	for _, part := range []struct{ name, text string }{{"query", r.Query}, {"Accept", r.Accept}, {"Content-Type", r.ContentType}} {
		if hasControl(part.text) {
			return Response{}, appliance.Errorf(appliance.CodeInvalidField, "has a control character").In(part.name)
		}
	}
	began := time.Now()
	resp, err := c.send(ctx, r)
	c.metrics.observe(useForward, resp.Status, err, time.Since(began))
	return resp, err
}

// JSON tells whether the answer says that it is of a media type of GraphQL over HTTP, and is a JSON object.
func (r Response) JSON() bool {
	return r.isGraphQL() && bytes.HasPrefix(bytes.TrimLeft(r.Body, " \t\r\n"), []byte("{")) && json.Valid(r.Body)
}

func (r Response) isGraphQL() bool {
	media, _, err := mime.ParseMediaType(r.ContentType)
	return err == nil && (media == "application/json" || media == "application/graphql-response+json")
}

// Unavailable is the error that an answer of no use comes to. Its detail has the status, its cause for the operator what
// was answered, shortened.
func (r Response) Unavailable() *appliance.Error {
	e := appliance.Errorf(appliance.CodeUpstreamUnavailable, "the upstream answered %d", r.Status)
	if r.Status/100 == 2 {
		e.Detail = "the upstream's answer is not GraphQL"
	}
	e.RetryAfter = r.RetryAfter
	return e.Because(fmt.Errorf("HTTP %d, %s: %s", r.Status, excerpt(r.ContentType), excerpt(string(r.Body))))
}

// maxCause is how much is shown of a text from outside, in bytes.
const maxCause = 200

// excerpt quotes the beginning of a text from outside.
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
	case err == nil || errors.Is(err, ErrTooLarge):
		return resp, err
	case ctx.Err() != nil:
		return Response{}, ctx.Err()
	case within.Err() != nil:
		return Response{}, appliance.Errorf(appliance.CodeUpstreamUnavailable, "the upstream took too long").
			Because(fmt.Errorf("no whole answer within %s", c.timeout))
	case appliance.CodeOf(err) == appliance.CodeUpstreamUnavailable:
		return Response{}, err
	}
	if requestError, ok := errors.AsType[*url.Error](err); ok {
		err = requestError.Err // without the address, which may hold a secret
	}
	if len(err.Error()) > maxCause { // it quotes what was answered
		err = errors.New(excerpt(err.Error()))
	}
	return Response{}, appliance.Errorf(appliance.CodeUpstreamUnavailable, "the upstream cannot be reached").Because(err)
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
		Status: resp.StatusCode, ContentType: resp.Header.Get("Content-Type"), RetryAfter: retryAfter(resp.Header.Get("Retry-After"), time.Now()),
	}
	if resp.StatusCode/100 == 3 {
		return answer, appliance.Errorf(appliance.CodeUpstreamUnavailable, "the upstream answered %d", resp.StatusCode).
			Because(fmt.Errorf("HTTP %d to %s, which is not followed: configure that address if it is right", resp.StatusCode, excerpt(resp.Header.Get("Location"))))
	}
	limit := c.max
	if r.MaxResponse > 0 {
		limit = min(limit, r.MaxResponse)
	}
	answer.Body, err = readBody(resp, limit)
	return answer, err
}

func (c *Client) request(ctx context.Context, r Request) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, r.Method, c.url.String(), bytes.NewReader(r.Body))
	if err != nil {
		return nil, err
	}
	if r.Method == http.MethodGet {
		// A space would end the request line. Everything else goes as it came.
		req.URL.RawQuery = strings.ReplaceAll(r.Query, " ", "%20")
		if c.url.RawQuery != "" {
			req.URL.RawQuery = c.url.RawQuery + "&" + req.URL.RawQuery
		}
	}
	req.Header = c.header.Clone()
	if r.Accept != "" {
		req.Header.Set("Accept", r.Accept)
	}
	if r.ContentType != "" {
		req.Header.Set("Content-Type", r.ContentType)
	}
	return req, nil
}

// readBody reads a body, which net/http has decompressed, up to a limit.
func readBody(resp *http.Response, limit int64) ([]byte, error) {
	if resp.ContentLength > limit {
		return nil, ErrTooLarge
	}
	var body bytes.Buffer
	body.Grow(int(max(resp.ContentLength, 0)) + bytes.MinRead)
	_, err := body.ReadFrom(io.LimitReader(resp.Body, limit+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("read the answer: %w", err)
	case int64(body.Len()) > limit:
		return nil, ErrTooLarge
	}
	return body.Bytes(), nil
}

// retryAfter reads a Retry-After (RFC 9110, section 10.2.3): seconds or a date. What it cannot read says nothing.
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
