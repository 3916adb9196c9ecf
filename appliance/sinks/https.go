package sinks

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// HTTPS posts batches as lines of JSON. Any 2xx response means that the whole batch was accepted.
type HTTPS struct {
	URL      string
	Security Security
	Headers  func() (http.Header, error) // added to each request, such as Authorization; may be nil
	Gzip     bool
	Version  string // of attestd

	client *http.Client // nil until first used and after a failure, because certificate files may have changed
}

// maxAnswer bounds the part of a response that is read. An error message is at its beginning.
const maxAnswer = 4 << 10

// Send implements Destination.
func (h *HTTPS) Send(ctx context.Context, batch []Message) error {
	request, err := h.request(ctx, batch)
	if err != nil {
		return err
	}
	if h.client == nil {
		if h.client, err = h.connect(); err != nil {
			return err
		}
	}
	answer, err := h.client.Do(request)
	if err != nil {
		_ = h.Close()
		return fmt.Errorf("post to %s: %w", h, withoutURL(err))
	}
	defer answer.Body.Close()
	said, _ := io.ReadAll(io.LimitReader(answer.Body, maxAnswer)) // only for the error message
	return h.responseError(answer, said)
}

func (h *HTTPS) request(ctx context.Context, batch []Message) (*http.Request, error) {
	var body bytes.Buffer
	out, end := io.Writer(&body), func() error { return nil }
	if h.Gzip {
		z := gzip.NewWriter(&body)
		out, end = z, z.Close
	}
	for _, m := range batch {
		if _, err := out.Write(append(m.Text, '\n')); err != nil {
			return nil, err
		}
	}
	if err := end(); err != nil {
		return nil, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, h.URL, &body)
	if err != nil {
		return nil, withoutURL(err)
	}
	if h.Headers != nil {
		if request.Header, err = h.Headers(); err != nil {
			return nil, fmt.Errorf("headers: %w", err)
		}
	}
	request.Header.Set("Content-Type", "application/x-ndjson")
	request.Header.Set("User-Agent", "attestd/"+h.Version)
	request.Header.Set("Idempotency-Key", batchName(batch))
	if h.Gzip {
		request.Header.Set("Content-Encoding", "gzip")
	}
	return request, nil
}

// batchName returns an idempotency key. A batch that is sent again has the same key.
func batchName(batch []Message) string {
	first, last := batch[0], batch[len(batch)-1]
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\n%d\n%d", first.Log, first.Index, last.Index))
	return strconv.Quote(hex.EncodeToString(sum[:16])) // a string of RFC 9651
}

func (h *HTTPS) connect() (*http.Client, error) {
	config, err := h.Security.config(h.Security.ServerName) // if empty, net/http uses the host's
	if err != nil {
		return nil, err
	}
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.TLSClientConfig = config
	t.DisableCompression = true
	t.MaxResponseHeaderBytes = 64 << 10
	return &http.Client{
		Transport: t,
		// Redirects are not followed, because a redirect could send the headers anywhere.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}, nil
}

// responseError returns nil if the response means that the batch was accepted.
func (h *HTTPS) responseError(answer *http.Response, said []byte) error {
	code := answer.StatusCode
	if code >= 200 && code <= 299 {
		return nil
	}
	err := fmt.Errorf("%s answers %s: %.200q", h, answer.Status, strings.TrimSpace(string(said)))
	switch {
	case code == http.StatusRequestEntityTooLarge:
		return errors.Join(errUnsized, err)
	case code == http.StatusTooManyRequests || code == http.StatusServiceUnavailable:
		return &Later{After: retryAfter(answer.Header.Get("Retry-After")), Cause: err}
	case code >= 300 && code <= 399:
		return fmt.Errorf("%w; redirects are not followed: set url to the redirect's target", err)
	}
	return err
}

// errUnsized means that the destination refuses a batch of this size.
var errUnsized = errors.New("the batch is too large")

// retryAfter reads seconds or a date (RFC 9110, section 10.2.3).
func retryAfter(value string) time.Duration {
	if seconds, err := strconv.Atoi(value); err == nil {
		return time.Duration(min(max(seconds, 0), int(mostLater/time.Second))) * time.Second
	}
	if at, err := http.ParseTime(value); err == nil {
		return time.Until(at)
	}
	return 0
}

// withoutURL removes the URL, which may contain a key, from an error of net/http.
func withoutURL(err error) error {
	if of, ok := errors.AsType[*url.Error](err); ok {
		return of.Err
	}
	return err
}

// Close implements Destination.
func (h *HTTPS) Close() error {
	if h.client != nil {
		h.client.CloseIdleConnections()
		h.client = nil
	}
	return nil
}

// String returns the URL without its query, which may contain a key.
func (h *HTTPS) String() string {
	address, _, _ := strings.Cut(h.URL, "?")
	return address
}
