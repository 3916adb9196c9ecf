package chain

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/ethereum/go-ethereum"
	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/ethclient"
	"github.com/ethereum/go-ethereum/rpc"

	"github.com/attestd/attestd/appliance"
)

// CheckURL returns an error unless the URL of an RPC is usable. The error does not repeat the URL, which may contain a
// secret.
func CheckURL(address string) error {
	u, err := url.Parse(address)
	if parseError, ok := errors.AsType[*url.Error](err); ok {
		return parseError.Err
	}
	switch {
	case err != nil:
		return err
	case u.Scheme != "https" && u.Scheme != "http" || u.Hostname() == "":
		return errors.New("must be like https://host/path")
	case u.Scheme == "http" && !isLoopback(u.Hostname()):
		return fmt.Errorf("must be https: over http, an attacker between here and %s could hide a redemption (http "+
			"is allowed to this machine)", u.Hostname())
	}
	return nil
}

func isLoopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return strings.EqualFold(host, "localhost") || err == nil && ip.Unmap().IsLoopback()
}

// rpcID identifies an RPC in the store without revealing its URL.
func rpcID(address string) string {
	sum := sha256.Sum256([]byte(address))
	return hex.EncodeToString(sum[:8])
}

// shownURL returns a URL without user, path and query, which may be secret.
func shownURL(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return "(not a URL)"
	}
	return u.Scheme + "://" + u.Host
}

// node is an RPC of an Ethereum node (execution-apis, over HTTP).
type node struct {
	id, shown string
	eth       *ethclient.Client
	timeout   time.Duration // of one call
	pause     *pause
}

// shownURLs returns distinct shownURLs for labels of metrics.
func shownURLs(addresses []string) []string {
	shown := make([]string, len(addresses))
	seen := make(map[string]int)
	for i, address := range addresses {
		shown[i] = shownURL(address)
		if seen[shown[i]]++; seen[shown[i]] > 1 {
			shown[i] = fmt.Sprintf("%s (%d)", shown[i], seen[shown[i]])
		}
	}
	return shown
}

func newNode(address, shown string, timeout time.Duration, userAgent string) (*node, error) {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.MaxResponseHeaderBytes = 64 << 10
	p := &pause{base: t}
	httpClient := &http.Client{
		Transport: p,
		// A redirect is not followed, because the URL may contain a secret.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	client, err := rpc.DialOptions(context.Background(), address, rpc.WithHTTPClient(httpClient),
		rpc.WithHeader("User-Agent", userAgent))
	if err != nil { // not connected yet
		return nil, fmt.Errorf("%s: %w", shown, withoutURL(err))
	}
	return &node{id: rpcID(address), shown: shown, eth: ethclient.NewClient(client), timeout: timeout, pause: p}, nil
}

func (n *node) close() { n.eth.Close() }

// maxAnswer is the maximum size of an answer in bytes. An event has about 700.
const maxAnswer = 16 << 20

// pause is a transport that limits the size of answers and returns Retry-After as an error.
type pause struct{ base http.RoundTripper }

// throttled is a node's 429, or its 503 with a Retry-After.
type throttled struct{ after time.Duration }

func (t *throttled) Error() string {
	if t.after == 0 {
		return "the RPC limits the request rate (429)"
	}
	return fmt.Sprintf("the RPC asks for a pause of %s", t.after)
}

// RoundTrip implements http.RoundTripper.
func (p *pause) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := p.base.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	after := retryAfter(resp.Header.Get("Retry-After"), time.Now())
	if resp.StatusCode == http.StatusTooManyRequests || resp.StatusCode == http.StatusServiceUnavailable && after > 0 {
		_ = resp.Body.Close()
		return nil, &throttled{after}
	}
	resp.Body = http.MaxBytesReader(nil, resp.Body, maxAnswer)
	return resp, nil
}

// retryAfter parses a Retry-After (RFC 9110, section 10.2.3). It returns 0 for an empty header.
func retryAfter(s string, now time.Time) time.Duration {
	if seconds, err := strconv.Atoi(s); err == nil {
		return max(0, time.Duration(seconds)*time.Second)
	}
	if at, err := http.ParseTime(s); err == nil {
		return max(0, at.Sub(now))
	}
	return 0
}

// withoutURL takes the URL out of an error of net/http.
func withoutURL(err error) error {
	if u, ok := errors.AsType[*url.Error](err); ok {
		err = u.Err
	}
	if status, ok := errors.AsType[rpc.HTTPError](err); ok { // its text contains the whole body
		return fmt.Errorf("HTTP %s", status.Status)
	}
	return err
}

// tooLarge reports whether a smaller query may succeed. Nodes have many messages for this, so that any error about the
// query counts, and an answer that is cut off.
func tooLarge(err error) bool {
	if _, refused := errors.AsType[rpc.Error](err); refused {
		return true
	}
	if _, long := errors.AsType[*http.MaxBytesError](err); long {
		return true
	}
	if status, ok := errors.AsType[*refused](err); ok {
		return status.code == http.StatusBadRequest || status.code == http.StatusRequestEntityTooLarge ||
			status.code >= 500
	}
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, errIncomplete)
}

// isTrouble reports whether the node may need a pause: it failed or took too long.
func isTrouble(err error) bool {
	status, isStatus := errors.AsType[*refused](err)
	return isStatus && status.code >= 500 || errors.Is(err, context.DeadlineExceeded)
}

// refused is an HTTP status other than 2xx.
type refused struct {
	code   int
	status string
}

func (r *refused) Error() string { return "HTTP " + r.status }

// do limits the time of a call and removes secrets from its error.
func (n *node) do(ctx context.Context, what string, call func(context.Context) error) error {
	limit, cancel := context.WithTimeout(ctx, n.timeout)
	defer cancel()
	err := call(limit)
	switch status, isStatus := errors.AsType[rpc.HTTPError](err); {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case limit.Err() != nil:
		return fmt.Errorf("%s: no answer within %s: %w", what, n.timeout, context.DeadlineExceeded)
	case isStatus:
		return fmt.Errorf("%s: %w", what, &refused{status.StatusCode, status.Status})
	}
	return fmt.Errorf("%s: %w", what, shortened(withoutURL(err)))
}

// shortened truncates a node's message.
func shortened(err error) error {
	const most = 300
	if text := err.Error(); len(text) > most {
		return &longError{text[:most] + "…", err}
	}
	return err
}

type longError struct {
	text  string
	cause error
}

func (e *longError) Error() string { return e.text }
func (e *longError) Unwrap() error { return e.cause }

var (
	errNoBlock    = errors.New("the RPC does not have that block")
	errIncomplete = errors.New("the answer is incomplete")
)

// header is a block with its bloom filter.
type header struct {
	Block
	bloom types.Bloom
}

// block returns the block of a number or a tag such as latest. It decodes the JSON itself, because other EVM chains
// have other fields and hash them differently.
func (n *node) block(ctx context.Context, tag string) (h header, err error) {
	var answer *struct {
		Number    *hexutil.Uint64 `json:"number"`
		Hash      *common.Hash    `json:"hash"`
		Timestamp hexutil.Uint64  `json:"timestamp"`
		LogsBloom types.Bloom     `json:"logsBloom"`
	}
	err = n.do(ctx, "block "+tag, func(ctx context.Context) error {
		return n.eth.Client().CallContext(ctx, &answer, "eth_getBlockByNumber", tag, false)
	})
	switch {
	case err != nil:
		return h, err
	case answer == nil:
		return h, fmt.Errorf("block %s: %w", tag, errNoBlock)
	case answer.Number == nil || answer.Hash == nil:
		return h, fmt.Errorf("block %s: the answer lacks a number or hash", tag)
	}
	h = header{Block{uint64(*answer.Number), appliance.Digest(*answer.Hash),
		time.Unix(int64(answer.Timestamp), 0).UTC()}, answer.LogsBloom}
	if strings.HasPrefix(tag, "0x") && hexutil.EncodeUint64(h.Number) != tag {
		return h, fmt.Errorf("block %s: the answer is block %d", tag, h.Number)
	}
	return h, nil
}

func (n *node) blockAt(ctx context.Context, number uint64) (header, error) {
	return n.block(ctx, hexutil.EncodeUint64(number))
}

func (n *node) chainID(ctx context.Context) (id string, err error) {
	err = n.do(ctx, "chain id", func(ctx context.Context) error {
		number, err := n.eth.ChainID(ctx)
		if err == nil {
			id = number.String()
		}
		return err
	})
	return id, err
}

// hasCode reports whether there is a contract at an address.
func (n *node) hasCode(ctx context.Context, address appliance.Address) (has bool, err error) {
	err = n.do(ctx, "code", func(ctx context.Context) error {
		code, err := n.eth.CodeAt(ctx, common.Address(address), nil)
		has = len(code) > 0
		return err
	})
	return has, err
}

// call calls a contract (eth_call).
func (n *node) call(ctx context.Context, what string, to appliance.Address, input []byte) (answer []byte, err error) {
	address := common.Address(to)
	err = n.do(ctx, what, func(ctx context.Context) error {
		answer, err = n.eth.CallContract(ctx, ethereum.CallMsg{To: &address, Data: input}, nil)
		return err
	})
	return answer, err
}

// safe returns the highest block that may be read. ok is false if no block may be read yet.
func (n *node) safe(ctx context.Context, c *Contract) (number uint64, ok bool, err error) {
	tag := "latest"
	if c.Finalized {
		tag = "finalized"
	}
	head, err := n.block(ctx, tag)
	if c.Finalized && errors.Is(err, errNoBlock) {
		return 0, false, nil // the chain is too short
	}
	if err != nil || head.Number < c.Confirmations {
		return 0, false, err
	}
	return head.Number - c.Confirmations, true, nil
}
