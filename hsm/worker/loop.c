// Signs what the daemon asks for, one digest after the other, without Go: a call into C and back, blocking in it and the
// scheduler's watch over that take Go's runtime a third as long as a fast HSM signs. Whatever does not go well ends the loop, and is
// for Go.
#include "loop.h"

#include <linux/futex.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { ENOUGH = 16, CKM_ECDSA = 0x1041 };

struct mechanism {
	unsigned long type;
	void *parameter;
	unsigned long length;
};
typedef unsigned long (*sign_init_function)(unsigned long session, struct mechanism *, unsigned long key);
typedef unsigned long (*sign_function)(unsigned long session, unsigned char *data, unsigned long size, unsigned char *signature, unsigned long *length);

static int64_t now(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

// sleep_until_asked returns when there may be a request.
static void sleep_until_asked(struct ring *ring) {
	for (;;) {
		uint32_t taken = ring->taken;
		if (ring->asked != taken)
			return;
		ring->asleep++; // before asked is looked at again, as the daemon looks whether anybody sleeps after it has changed that
		syscall(SYS_futex, &ring->asked, FUTEX_WAIT, taken, NULL, NULL, 0);
		ring->asleep--;
	}
}

// take takes a request. It returns 0 where there is none, or another thread was faster.
static int take(struct ring *ring, struct asked *request) {
	uint32_t taken = ring->taken;
	if (ring->asked == taken)
		return 0;
	memcpy(request, &ring->requests[taken % SLOTS], sizeof *request); // whole, if nobody has taken it until now
	return atomic_compare_exchange_strong(&ring->taken, &taken, taken + 1);
}

// sign puts the signature of a digest into rs. It returns 0 where it failed.
static int sign(struct loan *loan, unsigned char *digest, unsigned char *rs) {
	struct mechanism ecdsa = {CKM_ECDSA, NULL, 0};
	loan->signing = 0;
	loan->length = 4 * SIGNATURE; // room for one that is too long
	loan->rv = ((sign_init_function)loan->sign_init)(loan->session, &ecdsa, loan->key);
	if (loan->rv != 0)
		return 0;
	loan->signing = 1;
	loan->rv = ((sign_function)loan->sign)(loan->session, digest, DIGEST, rs, &loan->length);
	return loan->rv == 0 && loan->length == SIGNATURE;
}

static void answer(struct ring *ring, int event, struct shared *shared, uint32_t id, const unsigned char *rs) {
	uint32_t turn = ring->answered++;
	struct answered *a = &ring->answers[turn % SLOTS]; // free: the daemon asks no more at once than there are slots
	a->id = id;
	a->sessions = shared->sessions;
	a->repairs = shared->repairs;
	memcpy(a->signature, rs, SIGNATURE);
	a->turn = turn + 1;
	if (ring->waits && atomic_exchange(&ring->waits, 0))
		eventfd_write(event, 1); // fails only where the daemon is gone
}

int sign_loop(struct ring *ring, int event, struct loan *loan, struct shared *shared, struct asked *request) {
	unsigned char rs[4 * SIGNATURE];
	for (int n = 0; n < ENOUGH;) {
		int free = LOAN_FREE;
		if (loan != NULL && loan->wanted)
			break;
		sleep_until_asked(ring);
		if (loan == NULL) {
			if (take(ring, request))
				return LOOP_ASKED;
			continue;
		}
		if (!atomic_compare_exchange_strong(&loan->state, &free, LOAN_IN_USE)) {
			syscall(SYS_futex, &ring->asked, FUTEX_WAKE, 1, NULL, NULL, 0); // somebody else must take it: this thread may end
			break;
		}
		if (!take(ring, request)) {
			loan->state = LOAN_FREE;
			continue;
		}
		int64_t began = now();
		if (!sign(loan, request->digest, rs))
			return LOOP_FAILED;
		loan->state = LOAN_FREE;
		answer(ring, event, shared, request->id, rs);
		shared->calls++;
		shared->busy += now() - began;
		n++;
	}
	return LOOP_ENOUGH;
}
