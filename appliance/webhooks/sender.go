package webhooks

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"

	"code.dny.dev/ssrf"
)

const (
	// DefaultTimeout is the time limit of one attempt, from the resolution of the name to the end of the response.
	DefaultTimeout = 15 * time.Second
	maxHeaders     = 64 << 10 // bytes of a response
	maxBody        = 4 << 10  // bytes of a response that are read, so that its connection can be used again
)

// SenderOptions configure a Sender.
type SenderOptions struct {
	Networks  []netip.Prefix // private networks that may be reached; other private addresses are refused
	PlainHTTP bool           // allow http:// URLs
	Timeout   time.Duration  // of one attempt; 0 means DefaultTimeout
	Version   string         // of attestd
	Now       func() time.Time
}

// Sender posts events. It follows no redirects, uses no proxy, and connects to public addresses only, except for those
// that the operator allows. An address is checked when it is dialled, so a name cannot resolve to another one afterwards.
type Sender struct {
	opts   SenderOptions
	client *http.Client
}

// NewSender returns a Sender.
func NewSender(o SenderOptions) *Sender {
	if o.Timeout == 0 {
		o.Timeout = DefaultTimeout
	}
	var v4, v6 []netip.Prefix
	for _, network := range o.Networks {
		if network.Addr().Is4() {
			v4 = append(v4, network)
		} else {
			v6 = append(v6, network)
		}
	}
	guard := ssrf.New(ssrf.WithAnyPort(), ssrf.WithAllowedV4Prefixes(v4...), ssrf.WithAllowedV6Prefixes(v6...))
	dialer := &net.Dialer{Timeout: o.Timeout, Control: guard.Safe}
	return &Sender{o, &http.Client{
		Timeout: o.Timeout,
		Transport: &http.Transport{
			DialContext: dialer.DialContext, TLSHandshakeTimeout: o.Timeout, ForceAttemptHTTP2: true,
			DisableCompression: true, MaxResponseHeaderBytes: maxHeaders, IdleConnTimeout: time.Minute,
			MaxIdleConnsPerHost: parallel,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// result is the outcome of one attempt. err is nil if the receiver accepted the event.
type result struct {
	status int           // of the response; 0 without one
	took   time.Duration // until the response's headers
	after  time.Duration // that the receiver asks to wait
	err    error
}

// send makes one attempt to deliver an event.
func (s *Sender) send(ctx context.Context, w Webhook, id string, body []byte) (r result) {
	began := s.opts.Now()
	defer func() { r.took = s.opts.Now().Sub(began) }()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, w.URL, bytes.NewReader(body))
	if err == nil {
		request.Header, err = w.headers(id, began, body)
	}
	if err != nil {
		return result{err: err}
	}
	request.Header.Set("Content-Type", "application/cloudevents+json")
	request.Header.Set("User-Agent", "attestd/"+s.opts.Version)
	answer, err := s.client.Do(request)
	if err != nil {
		return result{err: explain(err)}
	}
	defer answer.Body.Close()
	_, _ = io.CopyN(io.Discard, answer.Body, maxBody) // what is not read closes the connection
	r.status = answer.StatusCode
	told := strings.TrimSpace(strconv.Itoa(r.status) + " " + http.StatusText(r.status)) // not the receiver's own words
	switch {
	case r.status >= 200 && r.status <= 299:
		return r
	case r.status >= 300 && r.status <= 399:
		r.err = fmt.Errorf("the receiver answers %s; redirects are not followed: set the URL to the target", told)
	default:
		r.err = fmt.Errorf("the receiver answers %s", told)
	}
	if seconds, err := strconv.Atoi(answer.Header.Get("Retry-After")); err == nil && seconds > 0 {
		r.after = min(time.Duration(min(seconds, 1<<20))*time.Second, retryMax)
	}
	return r
}

// explain removes the URL, which may contain a key, from an error of net/http.
func explain(err error) error {
	if errors.Is(err, ssrf.ErrProhibitedIP) {
		return errors.New("the URL leads to an address that is not public; to allow it, add its network to " +
			"webhooks.allow_networks")
	}
	if of, ok := errors.AsType[*url.Error](err); ok {
		if of.Timeout() {
			return errors.New("the receiver did not answer in time")
		}
		return of.Err
	}
	return err
}
