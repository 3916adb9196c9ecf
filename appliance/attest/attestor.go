// Package attest issues attestations: an Attestor signs a request with one of its attestor keys once the policy and the
// people that it names allow that, and returns when the journal has the record.
package attest

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/approval"
	"github.com/attestd/attestd/appliance/audit"
	"github.com/attestd/attestd/appliance/fairqueue"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/appliance/policy"
	"github.com/google/uuid"
)

// Signer signs digests with an attestor key that cannot be extracted.
type Signer interface {
	// Sign returns a signature over the digest: r and s in range, s in the lower half, v set, and verified against the
	// signer's address. It returns when ctx ends at the latest. Errors have CodeHSMUnavailable, or CodeTimeout if ctx
	// ended first.
	Sign(ctx context.Context, d appliance.Digest) (appliance.Signature, error)
	// PublicKey returns the public key: 65 bytes, SEC 1 uncompressed.
	PublicKey() []byte
	// Address returns the key's address.
	Address() appliance.Address
	// Ready returns nil if Sign is expected to succeed. It does not sign.
	Ready(ctx context.Context) error
}

// Attestor issues attestations. All methods are safe for concurrent use.
type Attestor struct {
	Keys    appliance.Keys
	Signer  Signer // the only attestor key, unless SetAttestorKeys was called
	Journal audit.Journal
	Events  *journal.Events // records refusals; may be nil
	Scheme  appliance.Scheme
	Now     func() time.Time

	// Stopped returns nil while attesting is allowed, and CodePaused or CodeHalted otherwise. Attest calls it for each
	// request, and again when the record is appended. Nil means that attesting is always allowed. See appliance/stop.
	Stopped func() error

	// Concurrency is the Concurrency of Signer; see AttestorKey.
	Concurrency func() int
	// MaxWaiting bounds the calls that are queued at one attestor key, over all API keys. Zero means
	// fairqueue.DefaultMaxWaiting.
	MaxWaiting int

	Trace Trace // traces the parts of each attestation

	// Second is called with each attestation for a second beneficiary of an unspendable address, and with the first
	// attestation of that address, if the policy is policy.WarnOfSecond. It may be nil.
	Second func(e journal.Entry, first appliance.Record)

	// Cosign asks all other members of the quorum for their signatures and returns at once. join waits until enough
	// have signed, and returns their signatures with the given one. Nil means that this appliance signs alone.
	Cosign func(ctx context.Context,
		r appliance.CosignRequest) (join func(own appliance.Attestation) (*appliance.Quorum, error))

	// Approvals keeps the requests that wait for people. It may be nil unless a policy has rules of approvals.
	Approvals *approval.Approvals

	// Uses counts the signatures of each API key. It may be nil.
	Uses *KeyUse

	attestorKeys atomic.Pointer[attestorKeys] // nil until SetAttestorKeys or the first use of Signer
	repeats      repeats
	signing      atomic.Int64
	begun        atomic.Int64 // Unix nanoseconds of Now at the start of the newest attestation
	policy       atomic.Pointer[policy.Policy]
}

// Govern replaces the policy; nil allows everything. It takes effect at once, also for pending requests that are not
// recorded yet.
func (a *Attestor) Govern(p *policy.Policy) { a.policy.Store(p) }

// ApprovalRules returns the rules of the policy by which people approve.
func (a *Attestor) ApprovalRules() []policy.ApprovalRule {
	if p := a.policy.Load(); p != nil {
		return p.Approvals
	}
	return nil
}

// Attest signs the digest of the request and returns when the record is on disk. If the API key has used the
// idempotency key before, Attest makes no signature and returns the earlier record with replayed set. If the earlier
// record has another request, the error is CodeIdempotencyMismatch.
//
// Other errors: CodeAPIKeyRevoked and CodeAPIKeyExpired, if the key was revoked or expired at any time before the
// record is written; CodePaused and CodeHalted; the errors of a Policy, whose address rules also apply to replays;
// CodeInvalidIdempotencyKey, CodeHSMUnavailable, CodeAttestorKeyUnavailable, CodeJournalUnavailable, CodeJournalLost,
// CodeOverloaded, CodeTimeout, CodeQuorumUnreachable, CodeQuorumRefused; CodeApprovalRequired, CodeApprovalDenied and
// CodeApprovalExpired, which a repeat with the same idempotency key also gets until people approve. After any error, no
// signature has left the appliance that is not in the journal.
func (a *Attestor) Attest(ctx context.Context, call appliance.Call) (e journal.Entry, replayed bool, err error) {
	e, replayed, err = a.answer(ctx, call)
	if policy.IsRefusal(err) && !policy.WaitsForPeople(err) {
		a.Events.Record(journal.Refusal(call.Key.ID, err))
	}
	return e, replayed, err
}

func (a *Attestor) answer(ctx context.Context, call appliance.Call) (e journal.Entry, replayed bool, err error) {
	// The key is read again, because the request's body may have taken long to arrive. The journal checks the key once
	// more, so no record follows a revocation.
	key, err := a.Keys.Key(ctx, call.Key.ID)
	if err == nil {
		err = key.Usable(a.Now())
	}
	if err != nil {
		return journal.Entry{}, false, err
	}
	call.Key = key
	if err := a.stopped(); err != nil {
		return journal.Entry{}, false, err
	}
	if err := a.policy.Load().CheckAddresses(call.Key.ID, call.Request); err != nil {
		return journal.Entry{}, false, err
	}
	if call.IdempotencyKey == "" {
		return a.attest(ctx, call)
	}
	if err := appliance.ValidateIdempotencyKey(call.IdempotencyKey); err != nil {
		return journal.Entry{}, false, err
	}
	asker := call.Key.ID
	if call.Coordinator != "" {
		asker = call.Coordinator
	}
	done, err := a.repeats.enter(ctx, asker+" "+call.IdempotencyKey)
	if err != nil {
		return journal.Entry{}, false, err
	}
	defer done()
	e, err = a.earlier(ctx, call)
	switch {
	case appliance.CodeOf(err) == appliance.CodeNotFound:
		e, replayed, err = a.attest(ctx, call)
	case err == nil:
		replayed = true
	}
	if err == nil && (e.Record.Request != call.Request || e.Record.Coordinator != call.Coordinator) {
		return journal.Entry{}, false, appliance.Errorf(appliance.CodeIdempotencyMismatch,
			"this Idempotency-Key was used for another request")
	}
	return e, replayed, err
}

// earlier returns the entry of an earlier call with the same idempotency key, or CodeNotFound. A coordinator's request
// is the same under another API key, too: its key may be replaced between two attempts.
func (a *Attestor) earlier(ctx context.Context, call appliance.Call) (journal.Entry, error) {
	if call.Coordinator == "" {
		return a.Journal.ByIdempotencyKey(ctx, call.Key.ID, call.IdempotencyKey)
	}
	hash := a.Scheme.Digest(call.Request)
	same, err := a.Journal.List(ctx, journal.Query{Hash: &hash, Limit: journal.MaxListed})
	for _, e := range same {
		if r := e.Record; r.Coordinator == call.Coordinator && r.IdempotencyKey == call.IdempotencyKey {
			return e, nil
		}
	}
	if err == nil {
		err = appliance.Errorf(appliance.CodeNotFound, "no attestation for this request of the coordinator")
	}
	return journal.Entry{}, err
}

func (a *Attestor) stopped() error {
	if a.Stopped == nil {
		return nil
	}
	return a.Stopped()
}

func (a *Attestor) attest(ctx context.Context, call appliance.Call) (journal.Entry, bool, error) {
	a.begun.Store(a.Now().UnixNano())
	signer, err := a.seatOf(call.Key)
	if err != nil {
		return journal.Entry{}, false, err
	}
	// Ready comes first, so that a full disk is found before a signature is made.
	if err := a.Journal.Ready(ctx); err != nil {
		return journal.Entry{}, false, err
	}
	id, err := uuid.NewV7()
	if err != nil {
		return journal.Entry{}, false, appliance.Errorf(appliance.CodeInternal, "cannot generate an id").Because(err)
	}
	r := appliance.Record{
		Attestation: appliance.Attestation{ID: id, Hash: a.Scheme.Digest(call.Request),
			SignerAddress: signer.Signer.Address()},
		Request:        call.Request,
		Scheme:         string(a.Scheme.Name),
		Domain:         a.Scheme.Domain,
		KeyID:          call.Key.ID,
		IdempotencyKey: call.IdempotencyKey,
		Coordinator:    call.Coordinator,
	}
	admission := &admission{attestor: a, keyName: call.Key.Name}
	if err := admission.early(ctx, r); err != nil {
		return journal.Entry{}, false, err
	}
	if r.Approval, err = admission.approve(ctx, call); err != nil {
		return journal.Entry{}, false, err
	}
	if r.Signature, r.Quorum, err = a.signAll(ctx, r.Attestation, signer, call); err != nil {
		return journal.Entry{}, false, err
	}
	now := a.Now()
	a.Keys.Used(call.Key.ID, now)
	a.Uses.Count(call.Key.ID, now)
	ctx, committed := a.Trace.begin(ctx, PartCommit)
	e, replayed, err := a.Journal.Append(ctx, r, admission)
	committed(err)
	if err == nil && !replayed && admission.second != nil && a.Second != nil {
		a.Second(e, *admission.second)
	}
	return e, replayed, err
}

// signAll signs, and joins the signatures of the other members of the quorum. Without a quorum, the second result is
// nil.
func (a *Attestor) signAll(ctx context.Context, own appliance.Attestation, signer *attestorKey,
	call appliance.Call) (s appliance.Signature, q *appliance.Quorum, err error) {
	if a.Cosign == nil || call.Coordinator != "" {
		s, err = a.sign(ctx, signer, call.Key.ID, own.Hash)
		return s, nil, err
	}
	join := a.Cosign(ctx, appliance.CosignRequest{Request: call.Request, Hash: own.Hash,
		ID: cosignID(call, own.ID, own.Hash)})
	if own.Signature, err = a.sign(ctx, signer, call.Key.ID, own.Hash); err != nil {
		return s, nil, err
	}
	q, err = join(own)
	return own.Signature, q, err
}

// Trial signs a trial digest for another member of the quorum, with the key that signs for this API key. It shows that
// this appliance would cosign, and records nothing, because no contract accepts the signature; see TrialDigest.
func (a *Attestor) Trial(ctx context.Context, key appliance.APIKey) (trial appliance.Attestation, err error) {
	signer, err := a.seatOf(key)
	if err == nil {
		err = a.stopped()
	}
	if err == nil {
		err = a.Journal.Ready(ctx)
	}
	if err != nil {
		return trial, err
	}
	trial.Hash, trial.SignerAddress = appliance.TrialDigest(), signer.Signer.Address()
	trial.Signature, err = a.sign(ctx, signer, key.ID, trial.Hash)
	return trial, err
}

func (a *Attestor) sign(ctx context.Context, by *attestorKey, keyID string,
	d appliance.Digest) (appliance.Signature, error) {
	a.signing.Add(1)
	defer a.signing.Add(-1)
	if by.Concurrency == nil {
		return a.signed(ctx, by, d)
	}
	waiting, admitted := a.Trace.begin(ctx, PartQueue)
	err := by.queue.Enter(waiting, keyID, by.Concurrency(), a.maxWaiting())
	admitted(err)
	if err != nil {
		return appliance.Signature{}, err
	}
	begin := time.Now()
	defer func() { by.queue.Leave(time.Since(begin), by.Concurrency()) }()
	return a.signed(ctx, by, d)
}

func (a *Attestor) signed(ctx context.Context, by *attestorKey, d appliance.Digest) (appliance.Signature, error) {
	ctx, done := a.Trace.begin(ctx, PartHSM)
	s, err := by.Signer.Sign(ctx, d)
	done(err)
	return s, err
}

func (a *Attestor) maxWaiting() int {
	if a.MaxWaiting == 0 {
		return fairqueue.DefaultMaxWaiting
	}
	return a.MaxWaiting
}

// Waiting returns how many calls are queued, over all attestor keys.
func (a *Attestor) Waiting() (n int) {
	for _, s := range a.now().all {
		n += s.queue.Len()
	}
	return n
}

// Saturated reports whether the default attestor key is overloaded: its queue is at least half full, or it refused a
// call in the last second. Load on other attestor keys does not count, because it slows down only the API keys bound to
// them.
func (a *Attestor) Saturated() bool { return a.now().standard.queue.Saturated(a.maxWaiting()) }

// Signing returns how many calls are queued for or inside the HSM. Their records will soon reach the journal, which may
// wait for some of them so that they share its next write.
func (a *Attestor) Signing() int { return int(a.signing.Load()) }

// Active reports whether attestations are being signed, or one began within the last ten seconds.
func (a *Attestor) Active() bool {
	return a.Signing() > 0 || a.Now().UnixNano()-a.begun.Load() < int64(10*time.Second)
}

// ReadBack returns the entry of an attestation that was issued to this API key, with its proof. An attestation of
// another API key returns CodeNotFound, as if it did not exist. If no checkpoint may be published (the journal is lost,
// or the disk does not store the high-water mark), the proof is zero. The policy's address rules apply as for a replay,
// so a signature cannot be fetched after its address was screened.
func (a *Attestor) ReadBack(ctx context.Context, key appliance.APIKey,
	id uuid.UUID) (journal.Entry, journal.InclusionProof, error) {
	e, err := a.Journal.ByID(ctx, id)
	if err != nil {
		return journal.Entry{}, journal.InclusionProof{}, err
	}
	if e.Record.KeyID != key.ID {
		return journal.Entry{}, journal.InclusionProof{}, appliance.Errorf(appliance.CodeNotFound, "no attestation %s", id)
	}
	if err := a.policy.Load().CheckAddresses(key.ID, e.Record.Request); err != nil {
		a.Events.Record(journal.Refusal(key.ID, err))
		return journal.Entry{}, journal.InclusionProof{}, err
	}
	proof, err := a.Journal.Prove(ctx, e.Index)
	if code := appliance.CodeOf(err); code == appliance.CodeJournalLost || code == appliance.CodeJournalUnavailable {
		return e, journal.InclusionProof{}, nil
	}
	return e, proof, err
}

// Ready returns nil if an attestation is expected to succeed, and the obstacle otherwise.
func (a *Attestor) Ready(ctx context.Context) error {
	if err := a.stopped(); err != nil {
		return err
	}
	if err := a.DefaultKey().Signer.Ready(ctx); err != nil {
		return err
	}
	return a.Journal.Ready(ctx)
}

// repeats serialises calls with the same idempotency key, so that the second call finds the record of the first instead
// of signing again. The zero value is ready.
type repeats struct {
	mu     sync.Mutex
	inside map[string]chan struct{} // closed when the running call is done
}

// enter waits until no other call with that name is running, or until ctx ends.
func (r *repeats) enter(ctx context.Context, name string) (done func(), err error) {
	for {
		r.mu.Lock()
		first, taken := r.inside[name]
		if !taken {
			if r.inside == nil {
				r.inside = make(map[string]chan struct{})
			}
			mine := make(chan struct{})
			r.inside[name] = mine
			r.mu.Unlock()
			return func() { r.leave(name, mine) }, nil
		}
		r.mu.Unlock()
		select {
		case <-first:
		case <-ctx.Done():
			return nil, appliance.Errorf(appliance.CodeTimeout,
				"another request with this Idempotency-Key is in progress").Because(fmt.Errorf("wait: %w", ctx.Err()))
		}
	}
}

func (r *repeats) leave(name string, mine chan struct{}) {
	r.mu.Lock()
	delete(r.inside, name)
	r.mu.Unlock()
	close(mine)
}

// cosignID identifies the request of a call. It depends only on the call, so that a coordinator that was killed asks
// the members again under the same id, and gets the signatures that they have recorded. A call without an idempotency
// key is never repeated, so its id is the id of its attestation.
func cosignID(call appliance.Call, attestation uuid.UUID, hash appliance.Digest) string {
	if call.IdempotencyKey == "" {
		return attestation.String()
	}
	h := sha256.New()
	for _, part := range []string{call.Key.ID, call.IdempotencyKey, string(hash[:])} {
		h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(part))))
		h.Write([]byte(part))
	}
	return hex.EncodeToString(h.Sum(nil))
}
