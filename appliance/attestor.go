package appliance

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
)

// Signer signs digests with the attestor key, which it holds but cannot show.
type Signer interface {
	// Sign returns a signature of the signer's own key over the digest: in range, s in the lower half, v found and
	// the address checked. It waits no longer than ctx. Errors have CodeHSMUnavailable, or CodeTimeout when ctx ended first.
	Sign(ctx context.Context, d Digest) (Signature, error)
	// PublicKey returns the key's public half: 65 bytes, SEC 1 uncompressed.
	PublicKey() []byte
	// Address returns the key's address.
	Address() Address
	// Ready returns nil when Sign can be expected to succeed. It does not sign.
	Ready(ctx context.Context) error
}

// Attestor issues attestations. All methods are safe for concurrent use.
type Attestor struct {
	Keys    Keys
	Signer  Signer // the attestor key, where SetAttestorKeys has not said which there are
	Journal Journal
	Events  *Events // told of refusals; nil means that nobody is
	Scheme  Scheme
	Now     func() time.Time

	// Stopped returns nil while attesting may go on, else CodePaused or CodeHalted; it is asked for each call, and once more when its
	// record is appended. Nil means that nothing stops it. See appliance/stop.
	Stopped func() error

	// Concurrency is that of Signer; see AttestorKey.
	Concurrency func() int
	// MaxWaiting bounds the calls that wait for their turn at one attestor key, over all API keys. Zero means DefaultMaxWaiting.
	MaxWaiting int

	Trace Trace // told of the parts of each attestation

	// Second is told of each attestation for a second beneficiary of an unspendable address, where the policy warns of them, and of the
	// address's first attestation. Nil means that nobody wants to know.
	Second func(e Entry, first Record)

	// Uses counts what API keys have had signed. Nil counts nothing.
	Uses *KeyUse

	seats   atomic.Pointer[seats] // nil while Signer is the only one and was not asked for
	repeats repeats
	signing atomic.Int64
	policy  atomic.Pointer[Policy]
}

// Govern replaces the policy; nil allows all. It takes effect at once, also for requests under way that are not recorded yet.
func (a *Attestor) Govern(p *Policy) { a.policy.Store(p) }

// Call is one call for an attestation.
type Call struct {
	Key            APIKey // authenticated and authorised for ScopeAttest
	Request        Request
	IdempotencyKey string // empty means none
}

// MaxIdempotencyKey is the longest Idempotency-Key, in bytes.
const MaxIdempotencyKey = 255

// ValidateIdempotencyKey returns CodeInvalidIdempotencyKey unless s is 1 to MaxIdempotencyKey visible ASCII characters.
func ValidateIdempotencyKey(s string) error {
	for i := range len(s) {
		if s[i] < '!' || s[i] > '~' {
			return Errorf(CodeInvalidIdempotencyKey, "Idempotency-Key must have visible ASCII characters only")
		}
	}
	if len(s) == 0 || len(s) > MaxIdempotencyKey {
		return Errorf(CodeInvalidIdempotencyKey, "Idempotency-Key must have 1 to %d characters", MaxIdempotencyKey)
	}
	return nil
}

// Attest signs what the call asks for and returns when the record is on disk. With an idempotency key that the
// API key has used before, it signs nothing and returns that record, replayed; for another request under the
// same idempotency key the error is CodeIdempotencyMismatch.
//
// Other errors: CodeAPIKeyRevoked and CodeAPIKeyExpired, for a key that was revoked or expired since it was authorised, until the
// record is written; CodePaused and CodeHalted; those of a Policy, of which the rules about whom also refuse what was attested
// before; CodeInvalidIdempotencyKey,
// CodeHSMUnavailable, CodeAttestorKeyUnavailable, CodeJournalUnavailable, CodeJournalLost, CodeOverloaded, CodeTimeout. After any error nothing left the appliance that is not in the journal.
func (a *Attestor) Attest(ctx context.Context, call Call) (e Entry, replayed bool, err error) {
	e, replayed, err = a.answer(ctx, call)
	if IsRefusal(err) {
		a.Events.Record(Refusal(call.Key.ID, err))
	}
	return e, replayed, err
}

func (a *Attestor) answer(ctx context.Context, call Call) (e Entry, replayed bool, err error) {
	// Asked again: the body may have taken its time. The journal asks once more, so that nothing is recorded after a revocation.
	key, err := a.Keys.Key(ctx, call.Key.ID)
	if err == nil {
		err = key.Usable(a.Now())
	}
	if err != nil {
		return Entry{}, false, err
	}
	call.Key = key
	if err := a.stopped(); err != nil {
		return Entry{}, false, err
	}
	if err := a.policy.Load().whom(call.Key.ID, call.Request); err != nil {
		return Entry{}, false, err
	}
	if call.IdempotencyKey == "" {
		return a.attest(ctx, call)
	}
	if err := ValidateIdempotencyKey(call.IdempotencyKey); err != nil {
		return Entry{}, false, err
	}
	done, err := a.repeats.enter(ctx, call.Key.ID+" "+call.IdempotencyKey)
	if err != nil {
		return Entry{}, false, err
	}
	defer done()
	e, err = a.Journal.ByIdempotencyKey(ctx, call.Key.ID, call.IdempotencyKey)
	switch {
	case CodeOf(err) == CodeNotFound:
		e, replayed, err = a.attest(ctx, call)
	case err == nil:
		replayed = true
	}
	if err == nil && e.Record.Request != call.Request {
		return Entry{}, false, Errorf(CodeIdempotencyMismatch, "this Idempotency-Key was used for another request")
	}
	return e, replayed, err
}

func (a *Attestor) stopped() error {
	if a.Stopped == nil {
		return nil
	}
	return a.Stopped()
}

func (a *Attestor) attest(ctx context.Context, call Call) (Entry, bool, error) {
	signer, err := a.seatOf(call.Key)
	if err != nil {
		return Entry{}, false, err
	}
	// Asked first, so that a full disk is found before a signature exists rather than after.
	if err := a.Journal.Ready(ctx); err != nil {
		return Entry{}, false, err
	}
	id, err := uuid.NewV7()
	if err != nil {
		return Entry{}, false, Errorf(CodeInternal, "no id could be made").Because(err)
	}
	r := Record{
		Attestation:    Attestation{ID: id, Hash: a.Scheme.Digest(call.Request), SignerAddress: signer.Signer.Address()},
		Request:        call.Request,
		Scheme:         string(a.Scheme.Name),
		Domain:         a.Scheme.Domain,
		KeyID:          call.Key.ID,
		IdempotencyKey: call.IdempotencyKey,
	}
	admission := &admission{attestor: a}
	if err := admission.early(ctx, r); err != nil {
		return Entry{}, false, err
	}
	if r.Signature, err = a.sign(ctx, signer, call.Key.ID, r.Hash); err != nil {
		return Entry{}, false, err
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

func (a *Attestor) sign(ctx context.Context, by *seat, keyID string, d Digest) (Signature, error) {
	a.signing.Add(1)
	defer a.signing.Add(-1)
	if by.Concurrency == nil {
		return a.signed(ctx, by, d)
	}
	waiting, admitted := a.Trace.begin(ctx, PartQueue)
	err := by.turns.enter(waiting, keyID, by.Concurrency(), a.maxWaiting())
	admitted(err)
	if err != nil {
		return Signature{}, err
	}
	begin := time.Now()
	defer func() { by.turns.leave(time.Since(begin), by.Concurrency()) }()
	return a.signed(ctx, by, d)
}

func (a *Attestor) signed(ctx context.Context, by *seat, d Digest) (Signature, error) {
	ctx, done := a.Trace.begin(ctx, PartHSM)
	s, err := by.Signer.Sign(ctx, d)
	done(err)
	return s, err
}

func (a *Attestor) maxWaiting() int {
	if a.MaxWaiting == 0 {
		return DefaultMaxWaiting
	}
	return a.MaxWaiting
}

// Waiting returns how many calls wait for their turn, at all attestor keys.
func (a *Attestor) Waiting() (n int) {
	for _, s := range a.now().all {
		n += s.turns.length()
	}
	return n
}

// Saturated says whether more is asked for than the default key can do: half of the calls that may wait do, or one was refused in
// the last second. What is asked of another key slows nobody down who is not bound to it.
func (a *Attestor) Saturated() bool { return a.now().standard.turns.saturated(a.maxWaiting()) }

// Signing returns how many signatures are being made: records that will reach the journal soon. A journal may wait
// for some of them, so that they share its next write.
func (a *Attestor) Signing() int { return int(a.signing.Load()) }

// ReadBack returns the entry of an attestation that this API key was issued, with its proof. Another key's
// attestation is CodeNotFound, as one that never was. While no checkpoint may be given out, because the journal is CodeJournalLost or
// the disk takes no high-water mark, the proof is zero. The policy's rules about the addresses hold as for a repeat, so that a signature
// cannot be fetched after its address was screened.
func (a *Attestor) ReadBack(ctx context.Context, key APIKey, id uuid.UUID) (Entry, InclusionProof, error) {
	e, err := a.Journal.ByID(ctx, id)
	if err != nil {
		return Entry{}, InclusionProof{}, err
	}
	if e.Record.KeyID != key.ID {
		return Entry{}, InclusionProof{}, Errorf(CodeNotFound, "no attestation %s", id)
	}
	if err := a.policy.Load().whom(key.ID, e.Record.Request); err != nil {
		a.Events.Record(Refusal(key.ID, err))
		return Entry{}, InclusionProof{}, err
	}
	proof, err := a.Journal.Prove(ctx, e.Index)
	if code := CodeOf(err); code == CodeJournalLost || code == CodeJournalUnavailable {
		return e, InclusionProof{}, nil
	}
	return e, proof, err
}

// Ready returns nil when an attestation can be expected to succeed, else what stands in the way.
func (a *Attestor) Ready(ctx context.Context) error {
	if err := a.stopped(); err != nil {
		return err
	}
	if err := a.DefaultKey().Signer.Ready(ctx); err != nil {
		return err
	}
	return a.Journal.Ready(ctx)
}

// repeats lets calls with the same idempotency key in one after the other, so that the second finds what the
// first recorded instead of signing again. The zero value is ready.
type repeats struct {
	mu     sync.Mutex
	inside map[string]chan struct{} // closed when the call inside is done
}

// enter waits until no other call of that name is inside, or until ctx ends.
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
			return nil, Errorf(CodeTimeout, "another request with this Idempotency-Key is still under way").Because(fmt.Errorf("wait: %w", ctx.Err()))
		}
	}
}

func (r *repeats) leave(name string, mine chan struct{}) {
	r.mu.Lock()
	delete(r.inside, name)
	r.mu.Unlock()
	close(mine)
}
