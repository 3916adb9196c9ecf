#include <stdatomic.h>
#include <stdint.h>

// A session that package hsm lends: type loanWords in hsm/loan.go.
struct loan {
	_Atomic int32_t state, wanted;
	uintptr_t sign_init, sign; // functions of the module
	unsigned long session, key;
	unsigned long signing, rv, length; // of a call that failed
};

enum { LOAN_FREE, LOAN_IN_USE };

// What all loops share: type loopWords in loop.go.
struct shared {
	_Atomic int64_t calls, busy;         // signatures made, and the nanoseconds in which sessions were busy with them
	_Atomic uint32_t sessions, repairs; // as the daemon is told in each answer
};

// Of a frame: see wire.go.
enum { HEADER = 20, DIGEST = 32, SIGNATURE = 64, HEAD_MARK = 0xa7, TAIL_MARK = 0x61747464, KIND_SIGN = 2, KIND_ANSWERED = 8 };

// Why a loop has ended.
enum {
	LOOP_ENOUGH = 1, // signatures for now
	LOOP_FRAME,      // received what is in the buffer, which is not for the loop
	LOOP_FAILED,     // received a digest, whose signature failed: the loan says how
	LOOP_ERROR,      // the socket gave an errno, or 0 where the daemon is gone
};

int sign_loop(int socket, struct loan *loan, struct shared *shared, unsigned char *buffer, long size, long *length);
