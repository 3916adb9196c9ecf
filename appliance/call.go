package appliance

// Call is one request for an attestation by an authenticated API key.
type Call struct {
	Key            APIKey // authenticated and authorised for ScopeAttest, or ScopeCosign with a Coordinator
	Request        Request
	IdempotencyKey string // empty means none

	// Coordinator is the origin of the log of the appliance that asks for a signature, under the id of its request as
	// the IdempotencyKey. Empty means that a client asks. A coordinator's request never asks other members.
	Coordinator string
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
