package witness

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"

	"golang.org/x/mod/sumdb/tlog"
)

const (
	askTimeout = 10 * time.Second // of one request to a witness
	maxAnswer  = 16 << 10         // bytes; a cosignature has some 200
	maxProof   = 63               // hashes that a request may have
)

// CheckURL returns an error unless a witness's submission prefix is usable.
func CheckURL(prefix string) error {
	u, err := url.Parse(prefix)
	if err != nil {
		return errors.New("not a URL")
	}
	switch {
	case u.Scheme != "https" && u.Scheme != "http" || u.Hostname() == "":
		return errors.New("must be like https://witness.example/prefix")
	case u.User != nil, u.RawQuery != "", u.Fragment != "", strings.HasSuffix(prefix, "?"),
		strings.HasSuffix(prefix, "#"):
		return errors.New("must not have a user name, parameters or a fragment")
	case u.Scheme == "http" && !isLoopback(u.Hostname()):
		return errors.New("must be https: over http, an attacker could answer and raise false alarms (http is " +
			"allowed to this machine)")
	}
	return nil
}

func isLoopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return strings.EqualFold(host, "localhost") || err == nil && ip.Unmap().IsLoopback()
}

// newClient returns the HTTP client for witnesses.
func newClient() *http.Client {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.MaxResponseHeaderBytes = 64 << 10
	return &http.Client{
		Transport: t,
		// Redirects are refused: the policy names the only address of a witness.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// request is the body of add-checkpoint.
func request(old int64, proof tlog.TreeProof, signed []byte) ([]byte, error) {
	if len(proof) > maxProof {
		return nil, fmt.Errorf("the consistency proof has %d hashes", len(proof))
	}
	body := fmt.Appendf(nil, "old %d\n", old)
	for _, h := range proof {
		body = append(base64.StdEncoding.AppendEncode(body, h[:]), '\n')
	}
	return append(append(body, '\n'), signed...), nil
}

// answer is a witness's answer to add-checkpoint.
type answer struct {
	status     int
	body       []byte
	retryAfter time.Duration // 0 if absent
}

// addCheckpoint sends one request to one witness.
func addCheckpoint(ctx context.Context, client *http.Client, agent, prefix string, body []byte) (answer, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	address := strings.TrimSuffix(prefix, "/") + "/add-checkpoint"
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, address, bytes.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	r.Header.Set("User-Agent", agent)
	r.Header.Set("Content-Type", "text/plain; charset=utf-8")
	response, err := client.Do(r)
	if err != nil {
		return answer{}, err
	}
	defer func() { _ = response.Body.Close() }() // closing after a read cannot lose data
	text, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer+1))
	switch {
	case err != nil:
		return answer{}, fmt.Errorf("POST %s: %w", address, err)
	case len(text) > maxAnswer:
		return answer{}, fmt.Errorf("POST %s: the answer has more than %d bytes", address, maxAnswer)
	}
	return answer{response.StatusCode, text, retryAfter(response.Header.Get("Retry-After"))}, nil
}

// maxRetryAfter limits the Retry-After of a witness.
const maxRetryAfter = time.Hour

// retryAfter reads the header (RFC 9110, section 10.2.3).
func retryAfter(value string) time.Duration {
	wait := time.Duration(0)
	if seconds, err := strconv.ParseUint(value, 10, 31); err == nil {
		wait = time.Duration(seconds) * time.Second
	} else if at, err := http.ParseTime(value); err == nil {
		wait = time.Until(at)
	}
	return min(max(wait, 0), maxRetryAfter)
}

// size reads the body of a 409: the size of the tree that the witness cosigned last.
func (a answer) size() (int64, error) {
	text, whole := strings.CutSuffix(string(a.body), "\n")
	n, err := strconv.ParseUint(text, 10, 63)
	if !whole || err != nil || strconv.FormatUint(n, 10) != text {
		return 0, fmt.Errorf("it answered 409 without the size of its tree: %s", a.shown())
	}
	return int64(n), nil
}

// shown returns the body in a form for logs.
func (a answer) shown() string {
	const most = 200
	text := strings.ToValidUTF8(string(a.body), "?")
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "…"
	}
	return strconv.Quote(strings.TrimSpace(text))
}

// fault returns the error for an answer that is neither a cosignature nor a 409.
func (a answer) fault() error {
	why := ""
	switch a.status {
	case http.StatusBadRequest:
		why = "it rejects the request as malformed"
	case http.StatusForbidden:
		why = "it does not trust the checkpoint's key: the witness's operator must add this log's verifier key"
	case http.StatusNotFound:
		why = "it does not know this log: the witness's operator must add the log's verifier key, or the URL is wrong"
	case http.StatusTooManyRequests:
		why = "it limits the request rate: raise journal.witness_interval"
	case http.StatusMovedPermanently, http.StatusFound, http.StatusSeeOther, http.StatusTemporaryRedirect,
		http.StatusPermanentRedirect:
		why = "it redirects, but redirects are not followed: put the right URL into the policy"
	default:
		// some witnesses answer 500 to a log key that they do not trust
		return fmt.Errorf("it answered %d: %s", a.status, a.shown())
	}
	return fmt.Errorf("%s (%d: %s)", why, a.status, a.shown())
}
