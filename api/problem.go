package api

import (
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"time"

	"github.com/gofiber/fiber/v2"
	"github.com/valyala/fasthttp"

	"github.com/attestd/attestd/api/wire"
	"github.com/attestd/attestd/appliance"
)

// Codes of errors that exist only in HTTP. Package appliance defines the others.
const (
	CodeInvalidRequest       appliance.Code = "invalid_request"
	CodeMethodNotAllowed     appliance.Code = "method_not_allowed"
	CodeRequestTimeout       appliance.Code = "request_timeout"
	CodeBodyTooLarge         appliance.Code = "body_too_large"
	CodeUnsupportedMediaType appliance.Code = "unsupported_media_type"
	CodeHeadersTooLarge      appliance.Code = "headers_too_large"
	CodeURITooLong           appliance.Code = "uri_too_long"
	CodeTooManyStreams       appliance.Code = "too_many_streams"
	CodeReloadRefused        appliance.Code = "reload_refused" // on the admin socket only
)

// statuses maps codes to HTTP statuses (RFC 9110, section 15; RFC 6585 for 429 and 431). A code that is missing here is
// a defect and becomes CodeInternal.
var statuses = map[appliance.Code]int{
	CodeInvalidRequest:                  fiber.StatusBadRequest,
	appliance.CodeInvalidJSON:           fiber.StatusBadRequest,
	appliance.CodeUnknownField:          fiber.StatusBadRequest,
	appliance.CodeMissingField:          fiber.StatusBadRequest,
	appliance.CodeDuplicateField:        fiber.StatusBadRequest,
	appliance.CodeInvalidField:          fiber.StatusBadRequest,
	appliance.CodeInvalidAddress:        fiber.StatusBadRequest,
	appliance.CodeInvalidChecksum:       fiber.StatusBadRequest,
	appliance.CodeZeroAddress:           fiber.StatusBadRequest,
	appliance.CodeInvalidID:             fiber.StatusBadRequest,
	appliance.CodeInvalidIdempotencyKey: fiber.StatusBadRequest,

	appliance.CodeMissingAPIKey: fiber.StatusUnauthorized,
	appliance.CodeInvalidAPIKey: fiber.StatusUnauthorized,

	appliance.CodeAPIKeyRevoked:     fiber.StatusForbidden,
	appliance.CodeAPIKeyExpired:     fiber.StatusForbidden,
	appliance.CodeScopeRequired:     fiber.StatusForbidden,
	appliance.CodeAddressNotAllowed: fiber.StatusForbidden,
	appliance.CodeScreened:          fiber.StatusForbidden,
	appliance.CodePolicyDeny:        fiber.StatusForbidden,
	appliance.CodePolicyAllow:       fiber.StatusForbidden,
	appliance.CodePolicyKey:         fiber.StatusForbidden,
	appliance.CodePolicyHours:       fiber.StatusForbidden,
	appliance.CodePolicySecond:      fiber.StatusForbidden,
	appliance.CodeQuorumRefused:     fiber.StatusForbidden,
	appliance.CodeApprovalRequired:  fiber.StatusForbidden,
	appliance.CodeApprovalDenied:    fiber.StatusForbidden,
	appliance.CodeApprovalExpired:   fiber.StatusForbidden,

	appliance.CodeNotFound:   fiber.StatusNotFound,
	CodeMethodNotAllowed:     fiber.StatusMethodNotAllowed,
	CodeRequestTimeout:       fiber.StatusRequestTimeout,
	CodeBodyTooLarge:         fiber.StatusRequestEntityTooLarge,
	CodeURITooLong:           fiber.StatusRequestURITooLong,
	CodeUnsupportedMediaType: fiber.StatusUnsupportedMediaType,

	appliance.CodeIdempotencyMismatch: fiber.StatusUnprocessableEntity,
	CodeReloadRefused:                 fiber.StatusUnprocessableEntity,
	appliance.CodeRateLimited:         fiber.StatusTooManyRequests,
	appliance.CodePolicyCap:           fiber.StatusTooManyRequests, // a cap per hour or longer, which resets over time
	CodeTooManyStreams:                fiber.StatusTooManyRequests,
	CodeHeadersTooLarge:               fiber.StatusRequestHeaderFieldsTooLarge,

	appliance.CodeInternal: fiber.StatusInternalServerError,

	appliance.CodeOverloaded:             fiber.StatusServiceUnavailable,
	appliance.CodeHSMUnavailable:         fiber.StatusServiceUnavailable,
	appliance.CodeAttestorKeyUnavailable: fiber.StatusServiceUnavailable,
	appliance.CodeJournalUnavailable:     fiber.StatusServiceUnavailable,
	appliance.CodeJournalLost:            fiber.StatusServiceUnavailable,
	appliance.CodeReplicaUnavailable:     fiber.StatusServiceUnavailable,
	appliance.CodeReplicaBehind:          fiber.StatusServiceUnavailable,
	appliance.CodeTimeout:                fiber.StatusServiceUnavailable,
	appliance.CodeShuttingDown:           fiber.StatusServiceUnavailable,
	appliance.CodePaused:                 fiber.StatusServiceUnavailable,
	appliance.CodeHalted:                 fiber.StatusServiceUnavailable,
	appliance.CodeQuorumUnreachable:      fiber.StatusServiceUnavailable,

	appliance.CodeUpstreamUnavailable: fiber.StatusServiceUnavailable,
	appliance.CodeAttestorMismatch:    fiber.StatusServiceUnavailable,
}

// defaultRetryAfter is the Retry-After of an error without one: soon enough for a waiting payment, late enough to
// reopen an HSM session.
const defaultRetryAfter = 2 * time.Second

// asError returns the appliance.Error in err. Any other error becomes CodeInternal, or CodeTimeout for the end of a
// context, and its text goes only to the log.
func asError(err error) *appliance.Error {
	if e, ok := errors.AsType[*appliance.Error](err); ok {
		if _, known := statuses[e.Code]; known {
			return e
		}
		return appliance.Errorf(appliance.CodeInternal, "internal error").Because(err)
	}
	if e, ok := errors.AsType[*fiber.Error](err); ok {
		return asHTTPError(e)
	}
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return appliance.Errorf(appliance.CodeTimeout, "the request took too long").Because(err)
	}
	return appliance.Errorf(appliance.CodeInternal, "internal error").Because(err)
}

// asHTTPError translates the errors of fiber's router, the only part of fiber that returns errors.
func asHTTPError(e *fiber.Error) *appliance.Error {
	switch e.Code {
	case fiber.StatusNotFound:
		return appliance.Errorf(appliance.CodeNotFound, "path not found")
	case fiber.StatusMethodNotAllowed:
		return appliance.Errorf(CodeMethodNotAllowed, "this method is not allowed here; see the Allow header")
	}
	return appliance.Errorf(appliance.CodeInternal, "internal error").Because(e)
}

// writeProblem answers with the problem for e. It keeps headers that are already set, such as the router's Allow.
func writeProblem(rctx *fasthttp.RequestCtx, e *appliance.Error, requestID string) {
	status := statuses[e.Code]
	body, _ := json.Marshal(wire.Problem{ // strings and numbers only: cannot fail
		Type: "about:blank", Title: fasthttp.StatusMessage(status), Status: status,
		Detail: e.Detail, Message: e.Detail, Code: e.Code, Field: e.Field, RequestID: requestID, Members: e.Members,
		ApprovalID: e.Approval,
	})
	resp := &rctx.Response
	resp.Header.SetContentType("application/problem+json")
	resp.Header.Set(fiber.HeaderCacheControl, "no-store")
	switch status {
	case fiber.StatusUnauthorized:
		resp.Header.Set(fiber.HeaderWWWAuthenticate, `ApiKey realm="attestd", header="x-api-key"`)
	case fiber.StatusTooManyRequests, fiber.StatusServiceUnavailable:
		resp.Header.Set(fiber.HeaderRetryAfter, retryAfter(e))
	case fiber.StatusForbidden:
		if e.RetryAfter > 0 { // until the hours that the policy allows, or while people are asked
			resp.Header.Set(fiber.HeaderRetryAfter, retryAfter(e))
		}
	}
	resp.SetStatusCode(status)
	resp.SetBody(body)
}

// retryAfter returns whole seconds, rounded up (RFC 9110, section 10.2.3).
func retryAfter(e *appliance.Error) string {
	wait := e.RetryAfter
	if wait <= 0 {
		wait = defaultRetryAfter
	}
	return strconv.Itoa(wholeSeconds(wait))
}
