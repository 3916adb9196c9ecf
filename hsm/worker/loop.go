package worker

// #include "loop.h"
import "C"

import (
	"sync/atomic"
	"unsafe"

	"github.com/attestd/attestd/hsm"
)

// Go and C must agree on the layout of the shared structs.
var (
	_ [hsm.LoanSize]struct{}               = [C.sizeof_struct_loan]struct{}{}
	_ [unsafe.Sizeof(loopWords{})]struct{} = [C.sizeof_struct_shared]struct{}{}

	_ [unsafe.Sizeof(ringWords{})]struct{}         = [C.sizeof_struct_ring]struct{}{}
	_ [unsafe.Sizeof(askedWords{})]struct{}        = [C.sizeof_struct_asked]struct{}{}
	_ [unsafe.Sizeof(answeredWords{})]struct{}     = [C.sizeof_struct_answered]struct{}{}
	_ [unsafe.Offsetof(ringWords{}.waits)]struct{} = [C.offsetof_waits]struct{}{}
)

// loopWords are shared by all loops: struct shared in loop.h.
type loopWords struct {
	calls, busy       atomic.Int64
	sessions, repairs atomic.Uint32
}

// loop takes requests from the ring and signs with a leased session while signatures succeed. If a signature fails, it
// returns that request with failed set. Without a session it waits for a request and returns it. asked is false if no
// request is left to serve.
func (c *child) loop(l *hsm.Loan) (r askedWords, failed, asked bool) {
	var loan unsafe.Pointer
	if l != nil {
		loan = l.Words()
	}
	why := C.sign_loop((*C.struct_ring)(unsafe.Pointer(c.ring)), eventDescriptor, (*C.struct_loan)(loan),
		(*C.struct_shared)(unsafe.Pointer(&c.shared)), (*C.struct_asked)(unsafe.Pointer(&r)))
	return r, why == C.LOOP_FAILED, why != C.LOOP_ENOUGH
}
