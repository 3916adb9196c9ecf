// Package client speaks to an attestd: Client to its HTTP API, Admin to the daemon's admin socket.
package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/attestd/attestd/appliance"
)

// Problem is an answer that is not a success (RFC 9457).
type Problem struct {
	Status     int            `json:"status"`
	Title      string         `json:"title"`
	Detail     string         `json:"detail"`
	Code       appliance.Code `json:"code"` // empty where what answered is no attestd
	Field      string         `json:"field"`
	RequestID  string         `json:"requestId"`
	RetryAfter time.Duration  `json:"-"` // from the header; zero where it has none
}

// Error says what an operator needs to find the request in the server's log.
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

// CodeOf returns the code of the Problem in err, "" where there is none.
func CodeOf(err error) appliance.Code {
	if p, ok := errors.AsType[*Problem](err); ok {
		return p.Code
	}
	return ""
}

const (
	answerLimit = 64 << 20         // of an answer that is no stream
	baseWait    = time.Second      // before the first retry where the server says nothing
	longestWait = 30 * time.Second // between retries
)

// Options change a Client. Zero members mean the default.
type Options struct {
	HTTP      *http.Client // http.DefaultClient; for TLS
	UserAgent string
	// Timeout bounds a call, retries included. Zero leaves it to the call's context.
	Timeout time.Duration
	// Wait waits between retries; nil waits for real.
	Wait func(ctx context.Context, d time.Duration) error
}

// Client is a caller of the HTTP API. It may be used at once.
type Client struct {
	caller
	apiKey  string
	timeout time.Duration
	wait    func(ctx context.Context, d time.Duration) error
}

// New returns a client of the attestd at baseURL, like https://attestd.example:8443. The key may be empty for what
// anyone may ask.
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

// AttestOptions change one Attest.
type AttestOptions struct {
	// IdempotencyKey names the call, so that it can be repeated without signing twice, by whoever knows it. Empty
	// means a new one.
	IdempotencyKey string
}

// Attest asks for an attestation. Where the server is busy or for now unable, or cannot be reached, it asks again until
// time is up, always under the same idempotency key; without a deadline it asks once.
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
			return a, err // what the server said tells more than that time is up
		}
	}
}

// worthRetrying says whether and when to ask again.
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

// ReadBack is an attestation as its owner can read it again.
type ReadBack struct {
	appliance.Attestation
	appliance.Request
	Scheme string                   `json:"scheme"`
	Domain *appliance.EIP712Domain  `json:"domain,omitempty"`
	Time   time.Time                `json:"time"`
	Leaf   []byte                   `json:"leaf"`
	Proof  appliance.InclusionProof `json:"proof"`
}

// ReadBack returns an attestation that the client's key was issued. Check Proof against Leaf and the log's key.
func (c *Client) ReadBack(ctx context.Context, id uuid.UUID) (ReadBack, error) {
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	var r ReadBack
	err := c.do(ctx, call{
		method: http.MethodGet, path: "/functions/v1/attest/" + id.String(), into: &r,
		header: http.Header{"X-Api-Key": {c.apiKey}},
	})
	return r, err
}

// Attestor describes who signs, and the log's key.
type Attestor struct {
	SignerAddress appliance.Address       `json:"signerAddress"`
	PublicKey     string                  `json:"publicKey"` // 0x and 65 bytes: SEC 1, uncompressed
	Scheme        appliance.SchemeName    `json:"scheme"`
	Domain        *appliance.EIP712Domain `json:"domain,omitempty"`
	Log           struct {
		Origin      string `json:"origin"`
		VerifierKey string `json:"verifierKey"`
	} `json:"log"`
}

// Attestor returns who signs.
func (c *Client) Attestor(ctx context.Context) (Attestor, error) {
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	var a Attestor
	err := c.do(ctx, call{method: http.MethodGet, path: "/functions/v1/attestor", into: &a})
	return a, err
}

// caller makes calls and reads their answers.
type caller struct {
	base      string
	http      *http.Client
	userAgent string
}

type call struct {
	method, path string
	header       http.Header
	body         any // as JSON; nil means none
	into         any // JSON, or *[]byte for the answer as it is
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

// open returns an answer that is a success, for the caller to close.
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
		return nil, err
	}
	if resp.StatusCode >= 300 {
		defer resp.Body.Close()
		return nil, readProblem(resp)
	}
	return resp, nil
}

func readProblem(resp *http.Response) *Problem {
	p := &Problem{}
	body, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if json.Unmarshal(body, p) != nil || p.Code == "" {
		*p = Problem{Detail: "the server answered " + resp.Status + ", and not as attestd does"}
	}
	p.Status = resp.StatusCode
	if seconds, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil {
		p.RetryAfter = time.Duration(seconds) * time.Second
	}
	return p
}
