// Signs what the daemon asks for, one digest after the other, without Go: a call into C and back, two blocking system calls
// and the scheduler's watch over them take Go's runtime a third as long as a fast HSM signs. Whatever is not an ordinary
// signature ends the loop, and is for Go.
#include "loop.h"

#include <errno.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "frames are little-endian");

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

static int is_sign(const unsigned char *frame, long length) {
	const uint32_t tail_mark = TAIL_MARK;
	return length == HEADER + DIGEST && frame[0] == HEAD_MARK && frame[1] == KIND_SIGN && memcmp(frame + HEADER - 4, &tail_mark, 4) == 0;
}

// sign puts the signature of the frame's digest into rs. It returns 0 where it failed.
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

// answer makes the answer's header of the request's, which has the id.
static void answer(unsigned char *frame, const unsigned char *request, struct shared *shared) {
	uint16_t sessions = shared->sessions;
	uint32_t repairs = shared->repairs, length = SIGNATURE;
	memcpy(frame, request, HEADER);
	frame[1] = KIND_ANSWERED;
	memcpy(frame + 2, &sessions, 2);
	memcpy(frame + 8, &repairs, 4);
	memcpy(frame + 12, &length, 4);
}

int sign_loop(int socket, struct loan *loan, struct shared *shared, unsigned char *buffer, long size, long *length) {
	unsigned char frame[HEADER + 4 * SIGNATURE];
	for (int n = 0; n < ENOUGH && !loan->wanted; n++) {
		int free = LOAN_FREE;
		do
			*length = read(socket, buffer, size);
		while (*length < 0 && errno == EINTR);
		if (*length <= 0) {
			*length = *length < 0 ? errno : 0;
			return LOOP_ERROR;
		}
		int64_t began = now();
		if (!is_sign(buffer, *length) || !atomic_compare_exchange_strong(&loan->state, &free, LOAN_IN_USE))
			return LOOP_FRAME;
		if (!sign(loan, buffer + HEADER, frame + HEADER))
			return LOOP_FAILED;
		loan->state = LOAN_FREE;
		answer(frame, buffer, shared);
		do // any other error shows when the socket is read
			*length = write(socket, frame, HEADER + SIGNATURE);
		while (*length < 0 && errno == EINTR);
		shared->calls++;
		shared->busy += now() - began;
	}
	return LOOP_ENOUGH;
}
