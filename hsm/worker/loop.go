package worker

// #include "loop.h"
import "C"

import (
	"io"
	"sync/atomic"
	"syscall"
	"unsafe"

	"github.com/attestd/attestd/hsm"
)

// C knows as much of frames as wire.go, and sees words where Go has them.
var (
	_ [hsm.LoanSize]struct{}               = [C.sizeof_struct_loan]struct{}{}
	_ [unsafe.Sizeof(loopWords{})]struct{} = [C.sizeof_struct_shared]struct{}{}

	_ [headerSize]struct{}   = [C.HEADER]struct{}{}
	_ [headMark]struct{}     = [C.HEAD_MARK]struct{}{}
	_ [tailMark]struct{}     = [C.TAIL_MARK]struct{}{}
	_ [kindSign]struct{}     = [C.KIND_SIGN]struct{}{}
	_ [kindAnswered]struct{} = [C.KIND_ANSWERED]struct{}{}
)

// loopWords are what all loops share: struct shared in loop.h.
type loopWords struct {
	calls, busy       atomic.Int64
	sessions, repairs atomic.Uint32
}

// loop receives requests on the worker's socket, and signs with a session that is lent as long as they are for signatures and
// all goes well. It returns a frame that is for others to do: of a failed signature with failed set, and none after
// some signatures.
func (c *child) loop(l *hsm.Loan, buffer []byte) (f frame, failed bool, err error) {
	var length C.long
	why := C.sign_loop(socketDescriptor, (*C.struct_loan)(l.Words()), (*C.struct_shared)(unsafe.Pointer(&c.shared)),
		(*C.uchar)(&buffer[0]), C.long(len(buffer)), &length)
	switch {
	case why == C.LOOP_ENOUGH:
		return frame{}, false, nil
	case why == C.LOOP_ERROR && length == 0:
		return frame{}, false, io.EOF
	case why == C.LOOP_ERROR:
		return frame{}, false, syscall.Errno(length)
	}
	f, err = parse(buffer[:length])
	return f, why == C.LOOP_FAILED, err
}
