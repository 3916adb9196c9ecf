package attest

import "context"

// Trace is called when a part of an attestation begins. The returned context is passed to that part, and the returned
// function is called with the part's result. A nil Trace costs nothing.
type Trace func(ctx context.Context, part string) (context.Context, func(err error))

// The parts of an attestation.
const (
	PartQueue  = "queue"  // waiting in the HSM's queue
	PartHSM    = "HSM"    // making and checking one signature
	PartCommit = "commit" // writing the record to disk
)

func (t Trace) begin(ctx context.Context, part string) (context.Context, func(error)) {
	if t == nil {
		return ctx, func(error) {}
	}
	return t(ctx, part)
}
