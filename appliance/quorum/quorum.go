// Package quorum asks the other members of a quorum of appliances for their signatures, so that a contract (ERC-1271)
// accepts an attestation only if m of n appliances have signed it. Each member has its own key, HSM, policy and
// journal.
//
// The member that a client asks is the coordinator of that request. It asks all others at the same time, over
// POST /functions/v1/cosign, and signs itself. Each member checks the request by its own rules, computes the digest,
// signs, appends the record to its own journal and answers. The coordinator verifies the signatures against the
// configured signers, takes the first m with its own, appends them in one record, and answers once that is on the disk.
//
// A member signs once for a request, which it knows by the origin of the coordinator's log and the request's id. The id
// depends only on the client's API key, Idempotency-Key and addresses. So a coordinator that was killed asks for the
// same signatures when the client repeats the request. These are the points at which it can be killed:
//
//	the coordinator was killed        members have        the repeated request
//	before it asked                   no record           begins anew
//	while members sign                some records        gets the recorded signatures, and new ones of the others
//	after it signed itself            their records       gets the recorded signatures; the coordinator signs again, since
//	                                                      its first signature has left neither the process nor a journal
//	after all answered                their records       the same
//	while it appends its record       their records       finds the record if it is on the disk; else as above
//	after the append, before it       their records       finds the record, and asks no member
//	answered
//
// A member that is killed between its signature and its append has not answered, and signs again. A repeat without
// an Idempotency-Key is another request. A repeat at another member is another request, too: API keys and journals are
// each member's own.
package quorum

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"time"

	"golang.org/x/mod/sumdb/note"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/chain"
	"github.com/attestd/attestd/appliance/journal"
)

// Options describe the quorum.
type Options struct {
	Contract  appliance.Address // accepts the signatures
	Threshold int               // signatures that make an attestation, this appliance's own included
	Timeout   time.Duration     // of one request to a member
	Members   []Member          // the others
	Origin    string            // of this appliance's log
	Version   string            // of attestd

	// Signers returns the addresses of this appliance's attestor keys, the default one first.
	Signers func() []appliance.Address
	// OnChain reads the contract over each RPC. Nil means that there is no RPC.
	OnChain func(context.Context) []chain.QuorumContract

	Events *journal.Events // records answers that a member must not give; may be nil
	Logger *slog.Logger
}

// Member is another appliance of the quorum.
type Member struct {
	Name   string
	Signer appliance.Address // address of its attestor key; other signatures do not count
	URLs   []string          // of its API: several if the member is a cluster
	APIKey string            // of scope cosign, made by that member
	HTTP   *http.Client

	Log         note.Verifier // key of its journal; without it (nil), its proofs do not count
	VerifierKey string        // the text form of Log
}

// Codes of failures in appliance.MemberFailure that are not the member's own answer.
const (
	CodeUnreachable   appliance.Code = "unreachable"    // no connection, or it broke
	CodeInvalidAnswer appliance.Code = "invalid_answer" // a wrong digest or signer, or a signature that does not verify
)

// EventInvalidAnswer records that a member gave an answer that an honest appliance does not give.
const EventInvalidAnswer journal.EventKind = "quorum_invalid_answer"

// Quorum asks the other members. Its methods are safe for concurrent use.
type Quorum struct {
	opts    Options
	members []*member

	base context.Context // of requests to members, which outlive the client's
	stop context.CancelFunc
	busy sync.WaitGroup
}

// New returns the quorum of checked options. The caller must close it.
func New(o Options) *Quorum {
	q := &Quorum{opts: o}
	q.base, q.stop = context.WithCancel(context.Background())
	for _, m := range o.Members {
		one := &member{Member: m, quorum: q, log: o.Logger.With("member", m.Name),
			slots: make(chan struct{}, maxPending)}
		q.members = append(q.members, one)
	}
	return q
}

// Close ends the requests that no client waits for.
func (q *Quorum) Close() {
	q.stop()
	q.busy.Wait()
}

// answer is a member's signature or its failure.
type answer struct {
	from    *member
	signed  appliance.Attestation
	failure *failure // nil for a signature
}

// Cosign implements attest.Attestor.Cosign. The requests continue after enough members have signed, so that each
// member's state is known and its connection is used again.
func (q *Quorum) Cosign(
	ctx context.Context, r appliance.CosignRequest,
) (join func(appliance.Attestation) (*appliance.Quorum, error)) {
	answers := make(chan answer, len(q.members))
	for _, m := range q.members {
		q.busy.Go(func() { answers <- m.cosign(q.base, r) })
	}
	return func(own appliance.Attestation) (*appliance.Quorum, error) { return q.join(ctx, own, answers) }
}

// join waits until enough members have signed, or cannot. If a repeat could succeed after a refusal, join waits for all
// answers, because one of them may say that it cannot.
func (q *Quorum) join(ctx context.Context, own appliance.Attestation,
	answers <-chan answer) (*appliance.Quorum, error) {
	all := []appliance.MemberSignature{own.By(q.opts.Origin)}
	var failed []answer
	for len(all) < q.opts.Threshold {
		answered := len(failed) + len(all) - 1 // own is no answer
		if err := q.hopeless(failed); err != nil && (err.RetryAfter == 0 || answered == len(q.members)) {
			return nil, err
		}
		select {
		case a := <-answers:
			switch {
			case a.failure == nil && a.signed.SignerAddress == own.SignerAddress:
				failed = append(failed,
					answer{from: a.from, failure: a.from.invalid("it signs with the key of this appliance")})
			case a.failure == nil:
				all = append(all, a.signed.By(a.from.Name))
			default:
				failed = append(failed, a)
			}
		case <-ctx.Done():
			return nil,
				appliance.Errorf(appliance.CodeTimeout, "the members of the quorum took too long").Because(ctx.Err())
		}
	}
	return appliance.NewQuorum(q.opts.Contract, all), nil
}

// hopeless returns an error once the members that have not failed are too few: a refusal if so many have refused that
// the others cannot matter. The refusal has RetryAfter only if enough members may sign a repeat then, for example after
// the approval of people.
func (q *Quorum) hopeless(failed []answer) *appliance.Error {
	spare := len(q.members) - (q.opts.Threshold - 1)
	if len(failed) <= spare {
		return nil
	}
	var refused, others []appliance.MemberFailure
	var why string
	// waits has an entry for each member that may sign a repeat: when to repeat.
	waits := make([]time.Duration, len(q.members)-len(failed), len(q.members))
	for _, a := range failed {
		one := appliance.MemberFailure{Member: a.from.Name, Code: a.failure.code}
		why += fmt.Sprintf("; %s: %s", a.from.Name, a.failure.detail)
		if a.failure.kind != kindRefused {
			others, waits = append(others, one), append(waits, 0)
			continue
		}
		refused = append(refused, one)
		if a.failure.retryAfter > 0 {
			waits = append(waits, a.failure.retryAfter)
		}
	}
	e := appliance.Errorf(appliance.CodeQuorumUnreachable,
		"of %d members of the quorum, %d must sign, and these did not: %s",
		len(q.members)+1, q.opts.Threshold, list(append(refused, others...)))
	e.Members = append(refused, others...)
	if len(refused) > spare {
		e.Code = appliance.CodeQuorumRefused
		slices.Sort(waits)
		if needed := q.opts.Threshold - 1; len(waits) >= needed {
			e.RetryAfter = waits[needed-1]
		}
	}
	return e.Because(fmt.Errorf("quorum%s", why))
}

// list describes failures to a client.
func list(failures []appliance.MemberFailure) (s string) {
	for i, f := range failures {
		if i > 0 {
			s += ", "
		}
		s += fmt.Sprintf("%s (%s)", f.Member, f.Code)
	}
	return s
}

// each calls do for all members at the same time.
func each[T any](q *Quorum, do func(*member) T) []T {
	all := make([]T, len(q.members))
	var asking sync.WaitGroup
	for i, m := range q.members {
		asking.Go(func() { all[i] = do(m) })
	}
	asking.Wait()
	return all
}

// Status asks all members for their state.
func (q *Quorum) Status(ctx context.Context) Status {
	var contracts []ContractStatus
	var reading sync.WaitGroup
	reading.Go(func() { contracts = q.onChain(ctx) })
	s := Status{
		Contract: q.opts.Contract, Threshold: q.opts.Threshold, Origin: q.opts.Origin,
		Members: each(q, func(m *member) MemberStatus { return m.status(ctx) }),
	}
	reading.Wait()
	s.OnChain = contracts
	return s
}

// Test asks all members for a signature over a trial digest, which no contract accepts, and verifies it.
func (q *Quorum) Test(ctx context.Context) Status {
	return Status{
		Contract: q.opts.Contract, Threshold: q.opts.Threshold, Origin: q.opts.Origin,
		Members: each(q, func(m *member) MemberStatus { return m.test(ctx) }),
	}
}

// Counts returns the counts of all members without asking them.
func (q *Quorum) Counts() []MemberStatus {
	all := make([]MemberStatus, len(q.members))
	for i, m := range q.members {
		all[i] = m.known()
	}
	return all
}

// Status is the state of the quorum as its coordinator sees it.
type Status struct {
	Contract  appliance.Address `json:"contract"`
	Threshold int               `json:"threshold"`
	Origin    string            `json:"origin"` // of this appliance's log
	Members   []MemberStatus    `json:"members"`
	OnChain   []ContractStatus  `json:"onChain,omitempty"` // the contract, as each RPC shows it; nil without RPCs
}

// MemberStatus is the state of another member. Counts and times are since the start of the daemon.
type MemberStatus struct {
	Name         string            `json:"name"`
	Signer       appliance.Address `json:"signer"`
	Version      string            `json:"version,omitempty"`
	VerifierKey  string            `json:"verifierKey,omitempty"` // of the member's log, by its own word
	Proves       bool              `json:"proves"`                // VerifierKey is the configured one
	Milliseconds float64           `json:"milliseconds"`          // until the answer to this question
	Error        string            `json:"error,omitempty"`

	Signed  uint64        `json:"signed"`
	Refused uint64        `json:"refused"`
	Failed  uint64        `json:"failed"`
	Invalid uint64        `json:"invalid"`
	Failing bool          `json:"-"` // the last answer was neither a signature nor a refusal
	Took    time.Duration `json:"-"` // in all, for signatures

	LastRefusal *Refusal `json:"lastRefusal,omitempty"`
}

// Refusal is a member's refusal.
type Refusal struct {
	Time time.Time      `json:"time"`
	Code appliance.Code `json:"code"`
}

// Cosign is the body of POST /functions/v1/cosign. The Idempotency-Key is the id of the request. The answer is the
// attestation that the member has recorded, or its trial.
type Cosign struct {
	UnspendableAddress *appliance.Address `json:"unspendableAddress,omitempty"`
	Beneficiary        *appliance.Address `json:"beneficiary,omitempty"`
	Hash               *appliance.Digest  `json:"hash,omitempty"`        // their digest, by the coordinator's scheme
	Coordinator        string             `json:"coordinator,omitempty"` // origin of the coordinator's log
	Trial              bool               `json:"trial,omitempty"`       // sign a trial digest instead
}

// Request returns the addresses, which must be there.
func (c Cosign) Request() appliance.Request {
	return appliance.Request{UnspendableAddress: *c.UnspendableAddress, Beneficiary: *c.Beneficiary}
}

// State is the answer of GET /functions/v1/cosign: the member's signer for this API key, its scheme and its version.
type State struct {
	SignerAddress appliance.Address    `json:"signerAddress"`
	Scheme        appliance.SchemeName `json:"scheme"`
	Version       string               `json:"version"`
	Origin        string               `json:"origin"`      // of the member's log
	VerifierKey   string               `json:"verifierKey"` // of the member's log (C2SP signed-note vkey)
}
