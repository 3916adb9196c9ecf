#include <stdatomic.h>
#include <stddef.h>
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
	_Atomic int64_t calls, busy;        // signatures made, and the nanoseconds in which sessions were busy with them
	_Atomic uint32_t sessions, repairs; // as the daemon is told in each answer
};

// The memory that daemon and worker share: type ringWords in ring.go, which says how it is used.
enum { SLOTS = 1024, DIGEST = 32, SIGNATURE = 64 };

struct asked {
	uint32_t id;
	unsigned char digest[DIGEST];
};

struct answered {
	_Atomic uint32_t turn;
	uint32_t id, sessions, repairs;
	unsigned char signature[SIGNATURE];
};

struct ring {
	_Alignas(64) _Atomic uint32_t asked;
	_Alignas(64) _Atomic uint32_t taken;
	_Atomic uint32_t asleep;
	_Alignas(64) _Atomic uint32_t answered;
	_Alignas(64) _Atomic uint32_t waits;
	_Alignas(64) struct asked requests[SLOTS];
	struct answered answers[SLOTS];
};

enum { offsetof_waits = offsetof(struct ring, waits) };

// Why a loop has ended.
enum {
	LOOP_ENOUGH = 1, // signatures for now, or the session is wanted
	LOOP_ASKED,      // has no session, and took a request
	LOOP_FAILED,     // took a request whose signature failed: the loan says how
};

int sign_loop(struct ring *ring, int event, struct loan *loan, struct shared *shared, struct asked *request);
