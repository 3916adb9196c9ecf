package quorum

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"regexp"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/appliance/policy"
)

const (
	// maxPending bounds the requests that a member has not answered. A member that hangs costs no more; further
	// requests count as failed at once.
	maxPending = 256
	maxAnswer  = 64 << 10 // bytes
)

// member is another appliance with its counters.
type member struct {
	Member
	quorum *Quorum
	log    *slog.Logger
	slots  chan struct{} // one for each request that is not answered
	well   atomic.Int64  // the index in URLs of the appliance that answered last

	mu     sync.Mutex // guards the fields below
	counts MemberStatus
}

// failure is why a member did not sign.
type failure struct {
	kind       kind
	code       appliance.Code // for the client
	detail     string         // for the operator
	retryAfter time.Duration
}

func (f *failure) Error() string { return f.detail }

type kind int

const (
	kindFailed  kind = iota // a repeat may succeed
	kindRefused             // by its rules
	kindInvalid             // an honest member does not answer so
)

// cosign asks for the member's signature, and verifies it.
func (m *member) cosign(ctx context.Context, r appliance.CosignRequest) answer {
	begin := time.Now()
	var a appliance.Attestation
	body := Cosign{
		UnspendableAddress: &r.UnspendableAddress, Beneficiary: &r.Beneficiary, Hash: &r.Hash,
		Coordinator: m.quorum.opts.Origin,
	}
	err := m.call(ctx, http.MethodPost, r.ID, body, &a)
	if err == nil {
		err = m.check(a, r.Hash)
	}
	f := m.note(err, time.Since(begin))
	return answer{m, a, f}
}

// check verifies a member's signature over the digest.
func (m *member) check(a appliance.Attestation, hash appliance.Digest) error {
	switch err := a.Verify(); {
	case a.Hash != hash:
		return m.invalid("it signed another digest, %s", a.Hash)
	case a.SignerAddress != m.Signer:
		return m.invalid("it signed as %s, and quorum.members names %s", a.SignerAddress, m.Signer)
	case err != nil:
		return m.invalid("its signature does not verify: %s", err)
	}
	return nil
}

// note counts the outcome of a request. It returns the failure, or nil.
func (m *member) note(err error, took time.Duration) *failure {
	f, _ := errors.AsType[*failure](err)
	m.mu.Lock()
	was := m.counts.Failing
	m.counts.Failing = f != nil && f.kind != kindRefused
	changed := was != m.counts.Failing
	switch {
	case f == nil:
		m.counts.Signed++
		m.counts.Took += took
	case f.kind == kindRefused:
		m.counts.Refused++
		m.counts.LastRefusal = &Refusal{time.Now().UTC(), f.code}
	case f.kind == kindInvalid:
		m.counts.Invalid++
	default:
		m.counts.Failed++
	}
	m.mu.Unlock()
	switch {
	case f != nil && f.kind == kindInvalid:
		m.log.Error("quorum: a member's answer does not count; ask its operator about changes there", "why", f.detail)
		details := map[string]string{"member": m.Name, "why": f.detail}
		m.quorum.opts.Events.Record(journal.Event{Kind: EventInvalidAnswer, Details: details})
	case changed && f != nil && f.kind == kindFailed:
		m.log.Warn("quorum: a member does not sign", "why", f.detail)
	case changed:
		m.log.Info("quorum: a member answers again")
	}
	return f
}

func (m *member) invalid(format string, args ...any) *failure {
	return &failure{kind: kindInvalid, code: CodeInvalidAnswer, detail: fmt.Sprintf(format, args...)}
}

// known returns the counts.
func (m *member) known() MemberStatus {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.counts
	s.Name, s.Signer = m.Name, m.Signer
	return s
}

// status asks the member for its state.
func (m *member) status(ctx context.Context) MemberStatus {
	var state State
	begin := time.Now()
	err := m.call(ctx, http.MethodGet, "", nil, &state)
	if err == nil && state.SignerAddress != m.Signer {
		err = m.invalid("it would sign as %s, and quorum.members names %s", state.SignerAddress, m.Signer)
	}
	s := m.outcome(begin, err)
	s.Version, s.VerifierKey = state.Version, state.VerifierKey
	s.Proves = m.Log != nil && state.VerifierKey == m.VerifierKey
	return s
}

// test asks the member for a trial signature.
func (m *member) test(ctx context.Context) MemberStatus {
	var a appliance.Attestation
	begin := time.Now()
	err := m.call(ctx, http.MethodPost, uuid.NewString(), Cosign{Trial: true}, &a)
	if err == nil {
		err = m.check(a, a.Hash)
	}
	if err == nil && !appliance.IsTrial(a.Hash) {
		err = m.invalid("it signed %s, which is no trial digest", a.Hash)
	}
	return m.outcome(begin, err)
}

func (m *member) outcome(begin time.Time, err error) MemberStatus {
	s := m.known()
	s.Milliseconds = float64(time.Since(begin).Microseconds()) / 1000
	if err != nil {
		s.Error = err.Error()
	}
	return s
}

// call makes one request to /functions/v1/cosign, and decodes its answer. Its errors are failures.
func (m *member) call(ctx context.Context, method, id string, body, into any) error {
	text, err := m.fetch(ctx, method, "", id, body)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, into); err != nil {
		return m.invalid("its answer cannot be read: %s", err)
	}
	return nil
}

// fetch makes one request to a path below /functions/v1/cosign. Its errors are failures. If an appliance of a member
// that is a cluster fails, fetch asks the next one, which signs no request twice: they share a journal.
func (m *member) fetch(ctx context.Context, method, path, id string, body any) ([]byte, error) {
	select {
	case m.slots <- struct{}{}:
		defer func() { <-m.slots }()
	default:
		why := fmt.Sprintf("%d earlier requests are not answered yet", maxPending)
		return nil, &failure{code: appliance.CodeOverloaded, detail: why}
	}
	ctx, cancel := context.WithTimeout(ctx, m.quorum.opts.Timeout)
	defer cancel()
	var text []byte
	if body != nil {
		text, _ = json.Marshal(body) // strings only: cannot fail
	}
	first := int(m.well.Load())
	for i := range m.URLs {
		at := (first + i) % len(m.URLs)
		answer, err := m.fetchFrom(ctx, len(m.URLs)-i, m.URLs[at], method, path, id, text)
		f, failed := errors.AsType[*failure](err)
		if !failed || f.kind != kindFailed || i == len(m.URLs)-1 {
			m.well.Store(int64(at))
			return answer, err
		}
	}
	return nil, &failure{code: CodeUnreachable, detail: "the member has no URL"}
}

// fetchFrom asks one appliance of the member, and leaves an equal share of the time for each of those left.
func (m *member) fetchFrom(ctx context.Context, left int, url, method, path, id string, body []byte) ([]byte, error) {
	end, _ := ctx.Deadline()
	ctx, cancel := context.WithTimeout(ctx, time.Until(end)/time.Duration(left))
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, url+"/functions/v1/cosign"+path, bytes.NewReader(body))
	if err != nil {
		return nil, &failure{code: CodeUnreachable, detail: err.Error()}
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("User-Agent", "attestd/"+m.quorum.opts.Version)
	request.Header.Set("X-Api-Key", m.APIKey)
	if id != "" {
		request.Header.Set("Idempotency-Key", id) // net/http then repeats it on a connection that the member has closed
	}
	response, err := m.HTTP.Do(request)
	if err != nil {
		return nil, unreachable(ctx, err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil {
		return nil, unreachable(ctx, err)
	}
	if response.StatusCode != http.StatusOK {
		return nil, refusal(response, text)
	}
	return text, nil
}

func unreachable(ctx context.Context, err error) *failure {
	f := &failure{code: CodeUnreachable, detail: err.Error()}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		f.code, f.detail = appliance.CodeTimeout, "no answer in time (quorum.timeout)"
	}
	return f
}

var isCode = regexp.MustCompile(`^[a-z0-9_]{1,64}$`)

// refusal reads a problem (RFC 9457).
func refusal(response *http.Response, text []byte) *failure {
	var problem struct {
		Code   appliance.Code `json:"code"`
		Detail string         `json:"detail"`
	}
	if json.Unmarshal(text, &problem) != nil || !isCode.MatchString(string(problem.Code)) {
		return &failure{code: CodeUnreachable, detail: "HTTP status " + response.Status}
	}
	f := &failure{code: problem.Code, detail: fmt.Sprintf("%s: %.200s", problem.Code, problem.Detail)}
	if policy.IsRefusal(appliance.Errorf(problem.Code, "")) {
		f.kind = kindRefused
	}
	if seconds, err := strconv.Atoi(response.Header.Get("Retry-After")); err == nil {
		f.retryAfter = time.Duration(seconds) * time.Second
	}
	return f
}
