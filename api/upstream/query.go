package upstream

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/index/follower"
)

// accept is the Accept header of Query. Older upstreams send the older media type.
const accept = "application/graphql-response+json, application/json;q=0.9"

// Query implements follower.Upstream. For an answer larger than Options.MaxResponse it returns
// appliance.CodeUpstreamUnavailable, caused by ErrTooLarge.
func (c *Client) Query(ctx context.Context, query string, variables map[string]any) (json.RawMessage, error) {
	body, err := json.Marshal(struct {
		Query     string         `json:"query"`
		Variables map[string]any `json:"variables,omitempty"`
	}{query, variables})
	if err != nil {
		return nil, fmt.Errorf("variables: %w", err)
	}
	began := time.Now()
	resp, err := c.sendAgain(ctx,
		Request{Method: http.MethodPost, Body: body, ContentType: "application/json", Accept: accept})
	var data json.RawMessage
	switch {
	case errors.Is(err, ErrTooLarge):
		err = appliance.Errorf(appliance.CodeUpstreamUnavailable, "the upstream cannot be read").Because(err)
	case err == nil:
		data, err = resp.data()
	}
	c.metrics.observe(useQuery, resp.Status, err, time.Since(began))
	return data, err
}

// knownBytes bounds all cached answers together, knownAnswer each of them, in bytes. knownTag bounds an ETag, because
// each request sends it.
const (
	knownBytes  = 4 << 20
	knownAnswer = 1 << 20
	knownTag    = 256
)

// size returns the memory that an answer uses, including headers of any length.
func (r Response) size() int { return cap(r.Body) + len(r.ETag) + len(r.ContentType) + 256 }

// noTag is an ETag that no answer has. If-None-Match with noTag makes an upstream that supports ETags send one with its
// answer.
const noTag = `"-"`

// sendAgain sends a request. If the upstream answers 304, it returns the cached answer. The follower repeats many
// queries with answers that rarely change.
func (c *Client) sendAgain(ctx context.Context, r Request) (Response, error) {
	key := sha256.Sum256(r.Body)
	before, known := c.known.GetIfPresent(key)
	if r.IfNoneMatch = noTag; known {
		r.IfNoneMatch = before.ETag
	}
	resp, err := c.send(ctx, r)
	switch {
	case err != nil:
	case resp.Status == http.StatusNotModified && known:
		return before, nil
	case resp.Status == http.StatusOK && resp.ETag != "" && len(resp.ETag) <= knownTag && !hasControl(resp.ETag) &&
		resp.size() <= knownAnswer:
		c.known.Set(key, resp)
	}
	return resp, err
}

// data returns the data of a response without errors.
func (r Response) data() (json.RawMessage, error) {
	var body struct {
		Data   json.RawMessage `json:"data"`
		Errors []responseError `json:"errors"`
	}
	isLimit := r.Status == http.StatusTooManyRequests
	if isLimit || r.Status >= 500 || !r.isGraphQL() || json.Unmarshal(r.Body, &body) != nil {
		return nil, r.Unavailable()
	}
	switch refusal := queryError(body.Errors); {
	case refusal != nil && slices.ContainsFunc(refusal.Errors, isTemporary):
		e := appliance.Errorf(appliance.CodeUpstreamUnavailable, "the upstream cannot answer at present")
		e.RetryAfter = r.RetryAfter
		return nil, e.Because(refusal)
	case refusal != nil:
		return nil, refusal
	case r.Status/100 != 2 || !bytes.HasPrefix(body.Data, []byte("{")):
		return nil, r.Unavailable()
	}
	return body.Data, nil
}

// responseError is an error in an answer. All its members are untrusted.
type responseError struct {
	Message    string          `json:"message"`
	Extensions json.RawMessage `json:"extensions"`
}

// maxErrors and maxMessage bound the errors of an answer that are kept.
const (
	maxErrors  = 10
	maxMessage = 500 // bytes
)

// queryError converts the errors of an answer. It returns nil for an empty list.
func queryError(answered []responseError) *follower.QueryError {
	if len(answered) == 0 {
		return nil
	}
	var e follower.QueryError
	for _, a := range answered[:min(len(answered), maxErrors)] {
		var extensions struct {
			Code string `json:"code"`
		}
		_ = json.Unmarshal(a.Extensions, &extensions) // extensions may lack a code
		e.Errors = append(e.Errors, follower.ResponseError{Message: shorten(a.Message), Code: shorten(extensions.Code)})
	}
	return &e
}

func shorten(text string) string {
	return strings.ToValidUTF8(text[:min(len(text), maxMessage)], "")
}

// temporaryCodes are the error codes after which a retry makes sense: attestd's own, and their names in other servers.
var temporaryCodes = []string{
	"rate_limited", "rate_limit_exceeded", "too_many_requests", "timeout", "time_limit_exceeded", "service_unavailable",
	"upstream_unavailable", "replica_unavailable", "replica_behind", "shutting_down",
}

func isTemporary(e follower.ResponseError) bool {
	return slices.Contains(temporaryCodes, strings.ReplaceAll(strings.ToLower(e.Code), "-", "_"))
}
