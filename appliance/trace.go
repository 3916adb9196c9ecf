package appliance

import "context"

// Trace is told when a part of an attestation begins, and by the function that it returns, how it ended. What the part calls gets the
// context that it returns. Nil means that nobody wants to know, which costs nothing.
type Trace func(ctx context.Context, part string) (context.Context, func(err error))

// The parts of an attestation.
const (
	PartQueue  = "queue"  // waiting for a turn at the HSM
	PartHSM    = "HSM"    // one signature, made and checked
	PartCommit = "commit" // until the record is on the disk
)

func (t Trace) begin(ctx context.Context, part string) (context.Context, func(error)) {
	if t == nil {
		return ctx, func(error) {}
	}
	return t(ctx, part)
}
