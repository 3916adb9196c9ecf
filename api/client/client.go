// Package client calls attestd. A Client calls the HTTP API, an Admin the admin socket of a running daemon.
//
// A program that needs attestations makes one Client with New. It calls Attest with a deadline and its own idempotency
// key:
//
//	c, err := client.New("https://attestd.example.com:8443", apiKey, client.Options{Timeout: time.Minute})
//	…
//	a, err := c.Attest(ctx, request, client.AttestOptions{IdempotencyKey: orderID})
//
// Attest retries while the appliance is unreachable or busy. An error answer is a *Problem; CodeOf returns its code.
// docs/integrating.md explains how a program should react to each code. Before you use an attestation, check its
// signature (Attestation.Verify), its signer, and that its hash covers your addresses (appliance.NewScheme), as the
// example does.
package client

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/google/uuid"

	"github.com/attestd/attestd/api/wire"
	"github.com/attestd/attestd/appliance"
)

// Problem is an error answer (RFC 9457). Code is empty if the server is not attestd.
type Problem struct {
	wire.Problem
	RetryAfter time.Duration `json:"-"` // from the header; zero without one
}

// Error returns the code, the detail and the request id, which operators can find in the server's log.
func (p *Problem) Error() string {
	s := p.Detail
	if s == "" {
		s = p.Title
	}
	if p.Code != "" {
		s = string(p.Code) + ": " + s
	}
	if p.RequestID != "" {
		s += " (request " + p.RequestID + ")"
	}
	return s
}

// CodeOf returns the code of the Problem in err, or "" if err contains no Problem.
func CodeOf(err error) appliance.Code {
	if p, ok := errors.AsType[*Problem](err); ok {
		return p.Code
	}
	return ""
}

const (
	answerLimit = 64 << 20         // of an answer that is not streamed, in bytes
	baseWait    = time.Second      // before the first retry without Retry-After
	longestWait = 30 * time.Second // between retries
)

// Options configure a Client.
type Options struct {
	HTTP      *http.Client // nil means http.DefaultClient
	UserAgent string       // empty means the default of net/http
	// Timeout bounds a call including its retries. Zero means that only the call's context bounds it.
	Timeout time.Duration
	// Wait waits between retries. Nil waits until d has passed or ctx ends.
	Wait func(ctx context.Context, d time.Duration) error
}

// Client is a client of the HTTP API. It is safe for concurrent use.
type Client struct {
	caller
	apiKey  string
	timeout time.Duration
	wait    func(ctx context.Context, d time.Duration) error
}

// New returns a client of the attestd at baseURL, such as https://attestd.example:8443. apiKey may be empty for routes
// that need none.
func New(baseURL, apiKey string, opts Options) (*Client, error) {
	base, err := url.Parse(strings.TrimSuffix(baseURL, "/"))
	if err != nil || base.Scheme != "http" && base.Scheme != "https" || base.Host == "" {
		return nil, fmt.Errorf("server address %q must be like http://127.0.0.1:8080", baseURL)
	}
	c := &Client{
		caller: caller{base: base.String(), http: opts.HTTP, userAgent: opts.UserAgent},
		apiKey: apiKey, timeout: opts.Timeout, wait: opts.Wait,
	}
	if c.http == nil {
		c.http = http.DefaultClient
	}
	if c.wait == nil {
		c.wait = wait
	}
	return c, nil
}

func (c *Client) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if c.timeout <= 0 {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, c.timeout)
}

func wait(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// AttestOptions configure one call of Attest.
type AttestOptions struct {
	// IdempotencyKey identifies the call: a second call with the same key and request gets the same attestation. Empty
	// means a random key.
	IdempotencyKey string
}

// Attest requests an attestation. While the server is unreachable, busy or unavailable, Attest retries until the
// deadline of ctx or Options.Timeout, always with the same idempotency key. Without a deadline it tries once.
func (c *Client) Attest(ctx context.Context, r appliance.Request, opts AttestOptions) (appliance.Attestation, error) {
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	var a appliance.Attestation
	key := opts.IdempotencyKey
	if key == "" {
		key = uuid.NewString()
	}
	call := call{
		method: http.MethodPost, path: "/functions/v1/attest", body: r, into: &a,
		header: http.Header{"X-Api-Key": {c.apiKey}, "Idempotency-Key": {key}},
	}
	for try := 0; ; try++ {
		err := c.do(ctx, call)
		pause, again := worthRetrying(ctx, err, try)
		if !again {
			return a, err
		}
		if c.wait(ctx, pause) != nil {
			return a, err // more informative than the error of ctx
		}
	}
}

// worthRetrying reports whether to retry, and after which pause.
func worthRetrying(ctx context.Context, err error, try int) (time.Duration, bool) {
	deadline, has := ctx.Deadline()
	if err == nil || !has || ctx.Err() != nil {
		return 0, false
	}
	pause := min(baseWait<<min(try, 10), longestWait)
	if p, ok := errors.AsType[*Problem](err); ok {
		if p.Status != http.StatusTooManyRequests && p.Status != http.StatusServiceUnavailable {
			return 0, false
		}
		if p.RetryAfter > 0 {
			pause = p.RetryAfter
		}
	}
	return pause, time.Until(deadline) > pause
}

// ReadBack returns an attestation that was issued to the client's API key. Check its Proof against Leaf and the log's
// key.
func (c *Client) ReadBack(ctx context.Context, id uuid.UUID) (wire.ReadBack, error) {
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	var r wire.ReadBack
	err := c.do(ctx, call{
		method: http.MethodGet, path: "/functions/v1/attest/" + id.String(), into: &r,
		header: http.Header{"X-Api-Key": {c.apiKey}},
	})
	return r, err
}

// Attestor returns the signer, and the key of its log.
func (c *Client) Attestor(ctx context.Context) (wire.Attestor, error) {
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	var a wire.Attestor
	err := c.do(ctx, call{method: http.MethodGet, path: "/functions/v1/attestor", into: &a})
	return a, err
}

// caller makes calls and reads their answers, for Client and Admin.
type caller struct {
	base      string
	http      *http.Client
	userAgent string
}

type call struct {
	method, path string
	header       http.Header
	body         any // encoded as JSON; nil sends no body
	into         any // JSON target, or *[]byte for the raw answer
}

func (c caller) do(ctx context.Context, call call) error {
	resp, err := c.open(ctx, call)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, answerLimit))
	if err != nil {
		return fmt.Errorf("read the answer of %s: %w", call.path, err)
	}
	if raw, ok := call.into.(*[]byte); ok {
		*raw = answer
		return nil
	}
	if err := json.Unmarshal(answer, call.into); err != nil {
		return fmt.Errorf("read the answer of %s: %w", call.path, err)
	}
	return nil
}

// open makes a call and returns the response. The caller must close its body. An error answer is a *Problem.
func (c caller) open(ctx context.Context, call call) (*http.Response, error) {
	var body io.Reader
	if call.body != nil {
		encoded, err := json.Marshal(call.body)
		if err != nil {
			return nil, err
		}
		body = bytes.NewReader(encoded)
	}
	req, err := http.NewRequestWithContext(ctx, call.method, c.base+call.path, body)
	if err != nil {
		return nil, err
	}
	for name, values := range call.header {
		req.Header[name] = values
	}
	if call.body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if c.userAgent != "" {
		req.Header.Set("User-Agent", c.userAgent)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, c.unanswered(err)
	}
	if resp.StatusCode >= 300 {
		defer resp.Body.Close()
		return nil, readProblem(resp)
	}
	return resp, nil
}

// unanswered describes which server did not answer and why, without the wrappers that net/http and the system add.
func (c caller) unanswered(err error) error {
	if failed, is := errors.AsType[*url.Error](err); is {
		err = failed.Err
	}
	isLate := errors.Is(err, context.DeadlineExceeded)
	if c.base == adminBase {
		if isLate {
			return late{"the daemon", err}
		}
		return err // err names the socket
	}
	if isLate {
		return late{c.base, err}
	}
	if failed, is := errors.AsType[*net.OpError](err); is {
		err = failed.Err
	}
	if failed, is := errors.AsType[*os.SyscallError](err); is {
		err = failed.Err
	}
	return fmt.Errorf("%s does not answer: %w%s", c.base, err, unansweredRemedy(err))
}

// unansweredRemedy returns what the user can do, after a semicolon. It is empty if that is unknown.
func unansweredRemedy(err error) string {
	_, isUntrusted := errors.AsType[*tls.CertificateVerificationError](err)
	switch {
	case errors.Is(err, http.ErrSchemeMismatch):
		return "; it serves plain HTTP: use http:// in the URL, or set server.tls there"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "; check the URL, and that attestd runs there: attestd status"
	case isUntrusted:
		return "; use a name of the certificate in the URL, and add its issuer to the trusted certificates of this machine"
	}
	return ""
}

// late is the error after a deadline has passed.
type late struct {
	who string
	err error
}

func (l late) Error() string { return l.who + " did not answer in time" }
func (l late) Unwrap() error { return l.err }

func readProblem(resp *http.Response) *Problem {
	p := &Problem{}
	body, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if json.Unmarshal(body, p) != nil || p.Code == "" {
		*p = Problem{Problem: wire.Problem{Detail: "the server answered " + resp.Status +
			", which is not attestd's format"}}
	}
	p.Status = resp.StatusCode
	if seconds, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil {
		p.RetryAfter = time.Duration(seconds) * time.Second
	}
	return p
}
