package appliance

import (
	"errors"
	"fmt"
	"time"
)

// Code names a kind of failure. Codes are stable: clients branch on them, and package api maps each to an HTTP status.
type Code string

// The codes, grouped by the client's remedy.
const (
	// The request is at fault. Repeating it unchanged cannot succeed.
	CodeInvalidJSON           Code = "invalid_json"
	CodeUnknownField          Code = "unknown_field"
	CodeMissingField          Code = "missing_field"
	CodeDuplicateField        Code = "duplicate_field"
	CodeInvalidField          Code = "invalid_field"
	CodeInvalidAddress        Code = "invalid_address"
	CodeInvalidChecksum       Code = "invalid_checksum"
	CodeZeroAddress           Code = "zero_address"
	CodeInvalidID             Code = "invalid_id"
	CodeInvalidIdempotencyKey Code = "invalid_idempotency_key"
	CodeIdempotencyMismatch   Code = "idempotency_mismatch"
	CodeNotFound              Code = "not_found"

	// The API key is at fault.
	CodeMissingAPIKey     Code = "missing_api_key"
	CodeInvalidAPIKey     Code = "invalid_api_key"
	CodeAPIKeyRevoked     Code = "api_key_revoked"
	CodeAPIKeyExpired     Code = "api_key_expired"
	CodeScopeRequired     Code = "scope_required"
	CodeAddressNotAllowed Code = "address_not_allowed"

	// The screening list or the policy refuses the request; see package appliance/policy.
	CodeScreened     Code = "screened"
	CodePolicyDeny   Code = "policy_deny"
	CodePolicyAllow  Code = "policy_allow"
	CodePolicyKey    Code = "policy_key"
	CodePolicyHours  Code = "policy_hours"
	CodePolicyCap    Code = "policy_cap"
	CodePolicySecond Code = "policy_second_beneficiary"

	// The policy demands that people approve the request; see policy.ApprovalRule. Error.Approval is the id.
	CodeApprovalRequired Code = "approval_required"
	CodeApprovalDenied   Code = "approval_denied"
	CodeApprovalExpired  Code = "approval_expired"

	// The appliance is temporarily at fault. The client may repeat the request after Error.RetryAfter.
	CodeRateLimited            Code = "rate_limited"
	CodeOverloaded             Code = "overloaded"
	CodeHSMUnavailable         Code = "hsm_unavailable"
	CodeAttestorKeyUnavailable Code = "attestor_key_unavailable" // for the attestor key of this API key
	CodeJournalUnavailable     Code = "journal_unavailable"
	CodeJournalLost            Code = "journal_lost" // the journal differs from the published one; see store/highwater
	CodeReplicaUnavailable     Code = "replica_unavailable"
	CodeReplicaBehind          Code = "replica_behind"
	CodeTimeout                Code = "timeout"
	CodeShuttingDown           Code = "shutting_down"
	CodePaused                 Code = "paused" // by an operator; see appliance/stop
	CodeHalted                 Code = "halted" // by the watchtower

	// Fewer members of the quorum answered than must sign, or so many refused that too few were left. Error.Members has
	// the reasons.
	CodeQuorumUnreachable Code = "quorum_unreachable"
	CodeQuorumRefused     Code = "quorum_refused"

	// The upstream of the reads is temporarily at fault.
	CodeUpstreamUnavailable Code = "upstream_unavailable"

	// A contract on chain has another attestor. Only readiness reports this.
	CodeAttestorMismatch Code = "attestor_mismatch"

	// A defect of attestd.
	CodeInternal Code = "internal"
)

// Error is the error type of the domain: a stable code and a sentence that is safe to show to a client. Cause holds the
// part that only an operator may see.
type Error struct {
	Code       Code
	Detail     string        // for the client; no internals
	Field      string        // the request member at fault, or empty
	RetryAfter time.Duration // when to repeat the request; zero means unknown
	Cause      error         // for the operator's log; may be nil

	Approval string // of CodeApprovalRequired, CodeApprovalDenied and CodeApprovalExpired: the approval's id

	Members []MemberFailure // of CodeQuorumUnreachable and CodeQuorumRefused: why members did not sign
}

// Errorf returns an Error with a formatted detail. It does not support %w: details are for clients, causes are not; see
// Error.Because.
func Errorf(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Detail: fmt.Sprintf(format, args...)}
}

// Because returns a copy of e with a cause for the operator.
func (e *Error) Because(cause error) *Error {
	c := *e
	c.Cause = cause
	return &c
}

// In returns a copy of e that names a member of the request as the one at fault.
func (e *Error) In(field string) *Error {
	c := *e
	c.Field = field
	return &c
}

// Error returns the operator's view: field, detail and cause.
func (e *Error) Error() string {
	s := e.Detail
	if e.Field != "" {
		s = e.Field + " " + s
	}
	if e.Cause != nil {
		s += ": " + e.Cause.Error()
	}
	return s
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Cause }

// CodeOf returns the code of the first Error in err's chain, CodeInternal for any other error and "" for nil.
func CodeOf(err error) Code {
	if err == nil {
		return ""
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Code
	}
	return CodeInternal
}
