package graphql

import "github.com/attestd/attestd/appliance"

// The codes of errors of a request, in addition to those of packages document and appliance. They are in extensions.code, and
// are stable.
const (
	CodeBodyTooLarge         appliance.Code = "body_too_large"
	CodeBatchingUnsupported  appliance.Code = "batching_unsupported"
	CodeMethodNotAllowed     appliance.Code = "method_not_allowed"
	CodeUnsupportedMediaType appliance.Code = "unsupported_media_type"
	CodeNotAcceptable        appliance.Code = "not_acceptable"
	// CodePersistedQueryNotSupported is in capitals, as Apollo's and urql's clients look for it.
	CodePersistedQueryNotSupported appliance.Code = "PERSISTED_QUERY_NOT_SUPPORTED"
)
