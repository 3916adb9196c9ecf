package graphql

import "github.com/attestd/attestd/appliance"

// Error codes of requests, in addition to the codes of packages document and appliance. They appear in extensions.code
// and are stable.
const (
	CodeBodyTooLarge         appliance.Code = "body_too_large"
	CodeBatchingUnsupported  appliance.Code = "batching_unsupported"
	CodeMethodNotAllowed     appliance.Code = "method_not_allowed"
	CodeUnsupportedMediaType appliance.Code = "unsupported_media_type"
	CodeNotAcceptable        appliance.Code = "not_acceptable"
	// CodePersistedQueryNotSupported is in capitals because the clients of Apollo and urql expect it so.
	CodePersistedQueryNotSupported appliance.Code = "PERSISTED_QUERY_NOT_SUPPORTED"
)
