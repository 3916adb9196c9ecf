/*
 * A PKCS#11 module (v2.40) that signs as a fast network HSM does, to measure what everything around C_Sign costs. SoftHSM
 * hides that, since it takes ten times the CPU for a signature.
 *
 * One token with one secp256k1 key. C_Sign takes libsecp256k1 some 30 us of CPU, and returns after the latency that was
 * asked for, in which its thread sleeps. Nonces are those of RFC 6979. Half of the signatures have a high s, as those of
 * most HSMs do. Calls on different sessions run in parallel, but for what `engines` allows.
 *
 * What may be set lies in a file beside the module, PATH.control, which hsmtest.Fast maps and writes; it counts, too.
 * Without that file the module asks the environment: FAST_HSM_LATENCY_US, FAST_HSM_SESSIONS, FAST_HSM_ENGINES. To build it
 * by hand, with the sources of two Go modules that go.mod has:
 *
 *	dir() { go list -m -f '{{.Dir}}' "$1"; }
 *	secp=$(dir github.com/ethereum/go-ethereum)/crypto/secp256k1/libsecp256k1
 *	cc -std=gnu11 -O2 -shared -fPIC -I "$secp" -I "$(dir github.com/miekg/pkcs11)" -o fast.so module.c
 *
 * Its PIN is 1234, its token is named attestd and its key attestor.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#define NDEBUG
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function"
#include "src/secp256k1.c"
#include "src/precomputed_ecmult.c"
#include "src/precomputed_ecmult_gen.c"
#pragma GCC diagnostic pop

#define CK_PTR *
#define CK_DEFINE_FUNCTION(type, name) type name
#define CK_DECLARE_FUNCTION(type, name) type name
#define CK_DECLARE_FUNCTION_POINTER(type, name) type(*name)
#define CK_CALLBACK_FUNCTION(type, name) type(*name)
#ifndef NULL_PTR
#define NULL_PTR 0
#endif
#include "pkcs11.h"

/* What is shared with the test. Every field has 8 bytes and is read and written atomically. */
typedef _Atomic uint64_t word;

static struct control {
	word latency; /* ns of a C_Sign */
	word most;    /* sessions that a process may have open */
	word untold;  /* not 0: C_GetTokenInfo says that there is no maximum */
	word engines; /* signatures made at the same time, 0: one for each session */
	word signs;   /* signatures made */
	word cpu;     /* ns that C_Sign took of the CPU */
} *control;

#define MOST_SESSIONS 4096
static struct session {
	_Atomic CK_SESSION_HANDLE given; /* 0: free */
	CK_SLOT_ID slot;
	int signing;       /* C_SignInit was called */
	int searching;     /* C_FindObjectsInit was called */
	unsigned int found; /* objects, a bit each */
} sessions[MOST_SESSIONS];

enum { NO_SLOT = 1, PRIVATE = 1, PUBLIC = 2, OBJECTS = 2 };

static secp256k1_context *context;
static unsigned char point[2 + 65]; /* CKA_EC_POINT: a DER OCTET STRING */
static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER; /* of sessions */
static CK_SESSION_HANDLE serial;
static _Atomic uint64_t opened; /* sessions that are open */
static _Atomic int initialized, logged_in;

static const char pin[] = "1234";
static const unsigned char key[] = "attestd: the key of a fast HSM!!";

static struct session *find_session(CK_SESSION_HANDLE given) {
	struct session *s = &sessions[given % MOST_SESSIONS];
	return initialized && given != 0 && s->given == given ? s : NULL;
}

static void pad(CK_UTF8CHAR *to, const char *text, size_t size) {
	memset(to, ' ', size);
	memcpy(to, text, strlen(text));
}

/* General purpose */

static uint64_t from_environment(const char *name, uint64_t otherwise) {
	const char *text = getenv(name);
	return text ? strtoull(text, NULL, 10) : otherwise;
}

CK_RV C_GetFunctionList(CK_FUNCTION_LIST_PTR_PTR list);

/* find_control maps the file beside this library, or asks the environment. */
static void find_control(void) {
	static struct control own;
	Dl_info self;
	char path[4096];
	if (dladdr((void *)C_GetFunctionList, &self) && snprintf(path, sizeof path, "%s.control", self.dli_fname) < (int)sizeof path) {
		int fd = open(path, O_RDWR | O_CLOEXEC);
		void *shared = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof own, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		if (fd >= 0)
			close(fd);
		if (shared != MAP_FAILED) {
			control = shared;
			return;
		}
	}
	own.latency = 1000 * from_environment("FAST_HSM_LATENCY_US", 0);
	own.most = from_environment("FAST_HSM_SESSIONS", MOST_SESSIONS);
	own.engines = from_environment("FAST_HSM_ENGINES", 0);
	control = &own;
}

static void prepare(void) {
	find_control();
	context = secp256k1_context_create(SECP256K1_CONTEXT_NONE);
	secp256k1_pubkey public;
	size_t size = 65;
	if (!secp256k1_ec_pubkey_create(context, &public, key))
		abort();
	secp256k1_ec_pubkey_serialize(context, point + 2, &size, &public, SECP256K1_EC_UNCOMPRESSED);
	point[0] = 4;
	point[1] = (unsigned char)size;
}

static CK_RV initialize(CK_VOID_PTR arguments) {
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	(void)arguments; /* this module locks by itself whatever it is told */
	pthread_once(&once, prepare);
	return atomic_exchange(&initialized, 1) ? CKR_CRYPTOKI_ALREADY_INITIALIZED : CKR_OK;
}

static CK_RV close_all(CK_SLOT_ID slot) {
	if (slot != NO_SLOT)
		return CKR_SLOT_ID_INVALID;
	pthread_mutex_lock(&opening);
	for (int i = 0; i < MOST_SESSIONS; i++)
		if (atomic_exchange(&sessions[i].given, 0) != 0)
			opened--;
	logged_in = 0;
	pthread_mutex_unlock(&opening);
	return CKR_OK;
}

static CK_RV finalize(CK_VOID_PTR reserved) {
	(void)reserved;
	if (!atomic_exchange(&initialized, 0))
		return CKR_CRYPTOKI_NOT_INITIALIZED;
	return close_all(NO_SLOT);
}

static CK_RV get_info(CK_INFO_PTR info) {
	memset(info, 0, sizeof *info);
	info->cryptokiVersion = (CK_VERSION){2, 40};
	info->libraryVersion = (CK_VERSION){1, 0};
	pad(info->manufacturerID, "attestd", sizeof info->manufacturerID);
	pad(info->libraryDescription, "a fast HSM, for measurements", sizeof info->libraryDescription);
	return initialized ? CKR_OK : CKR_CRYPTOKI_NOT_INITIALIZED;
}

/* Slot and token */

/* give copies a list as PKCS#11 wants it: without a place for it, its length only. */
static CK_RV give(CK_ULONG_PTR to, CK_ULONG_PTR count, const CK_ULONG *list, CK_ULONG n) {
	CK_ULONG room = *count;
	if (!initialized)
		return CKR_CRYPTOKI_NOT_INITIALIZED;
	*count = n;
	if (to != NULL && room < n)
		return CKR_BUFFER_TOO_SMALL;
	if (to != NULL)
		memcpy(to, list, n * sizeof *list);
	return CKR_OK;
}

static CK_RV get_slot_list(CK_BBOOL present, CK_SLOT_ID_PTR slots, CK_ULONG_PTR count) {
	static const CK_ULONG all[] = {NO_SLOT};
	(void)present;
	return give(slots, count, all, 1);
}

static CK_RV get_slot_info(CK_SLOT_ID slot, CK_SLOT_INFO_PTR info) {
	memset(info, 0, sizeof *info);
	pad(info->slotDescription, "fast", sizeof info->slotDescription);
	pad(info->manufacturerID, "attestd", sizeof info->manufacturerID);
	info->flags = CKF_TOKEN_PRESENT | CKF_HW_SLOT;
	return slot == NO_SLOT ? CKR_OK : CKR_SLOT_ID_INVALID;
}

static CK_RV get_token_info(CK_SLOT_ID slot, CK_TOKEN_INFO_PTR info) {
	if (!initialized || slot != NO_SLOT)
		return initialized ? CKR_SLOT_ID_INVALID : CKR_CRYPTOKI_NOT_INITIALIZED;
	memset(info, 0, sizeof *info);
	pad(info->label, "attestd", sizeof info->label);
	pad(info->manufacturerID, "attestd", sizeof info->manufacturerID);
	pad(info->model, "fast", sizeof info->model);
	pad(info->serialNumber, "1", sizeof info->serialNumber);
	pad(info->utcTime, "", sizeof info->utcTime);
	info->flags = CKF_TOKEN_INITIALIZED | CKF_LOGIN_REQUIRED | CKF_USER_PIN_INITIALIZED;
	info->ulMaxSessionCount = control->untold ? CK_EFFECTIVELY_INFINITE : control->most;
	info->ulMaxRwSessionCount = info->ulMaxSessionCount;
	info->ulSessionCount = info->ulRwSessionCount = CK_UNAVAILABLE_INFORMATION;
	info->ulTotalPublicMemory = info->ulFreePublicMemory = CK_UNAVAILABLE_INFORMATION;
	info->ulTotalPrivateMemory = info->ulFreePrivateMemory = CK_UNAVAILABLE_INFORMATION;
	info->ulMaxPinLen = info->ulMinPinLen = sizeof pin - 1;
	return CKR_OK;
}

static CK_RV get_mechanism_list(CK_SLOT_ID slot, CK_MECHANISM_TYPE_PTR mechanisms, CK_ULONG_PTR count) {
	static const CK_ULONG all[] = {CKM_ECDSA};
	return slot == NO_SLOT ? give(mechanisms, count, all, 1) : CKR_SLOT_ID_INVALID;
}

static CK_RV get_mechanism_info(CK_SLOT_ID slot, CK_MECHANISM_TYPE mechanism, CK_MECHANISM_INFO_PTR info) {
	*info = (CK_MECHANISM_INFO){256, 256, CKF_HW | CKF_SIGN | CKF_EC_F_P | CKF_EC_NAMEDCURVE | CKF_EC_UNCOMPRESS};
	if (slot != NO_SLOT)
		return CKR_SLOT_ID_INVALID;
	return mechanism == CKM_ECDSA ? CKR_OK : CKR_MECHANISM_INVALID;
}

/* Sessions */

static CK_RV open_session(CK_SLOT_ID slot, CK_FLAGS flags, CK_VOID_PTR application, CK_NOTIFY notify, CK_SESSION_HANDLE_PTR given) {
	(void)application;
	(void)notify;
	if (!initialized || slot != NO_SLOT)
		return initialized ? CKR_SLOT_ID_INVALID : CKR_CRYPTOKI_NOT_INITIALIZED;
	if (!(flags & CKF_SERIAL_SESSION))
		return CKR_SESSION_PARALLEL_NOT_SUPPORTED;
	CK_RV rv = CKR_SESSION_COUNT;
	pthread_mutex_lock(&opening);
	for (CK_ULONG i = 0; i < MOST_SESSIONS && opened < control->most; i++) {
		if (sessions[i].given != 0)
			continue;
		sessions[i].slot = slot;
		sessions[i].signing = sessions[i].searching = 0;
		*given = ++serial * MOST_SESSIONS + i; /* never given out again */
		sessions[i].given = *given;
		opened++;
		rv = CKR_OK;
		break;
	}
	pthread_mutex_unlock(&opening);
	return rv;
}

static CK_RV close_session(CK_SESSION_HANDLE given) {
	struct session *s = find_session(given);
	if (s == NULL || !atomic_compare_exchange_strong(&s->given, &given, 0))
		return CKR_SESSION_HANDLE_INVALID;
	if (--opened == 0)
		logged_in = 0;
	return CKR_OK;
}

static CK_RV get_session_info(CK_SESSION_HANDLE given, CK_SESSION_INFO_PTR info) {
	if (find_session(given) == NULL)
		return CKR_SESSION_HANDLE_INVALID;
	*info = (CK_SESSION_INFO){NO_SLOT, logged_in ? CKS_RO_USER_FUNCTIONS : CKS_RO_PUBLIC_SESSION, CKF_SERIAL_SESSION, 0};
	return CKR_OK;
}

static CK_RV login(CK_SESSION_HANDLE given, CK_USER_TYPE user, CK_UTF8CHAR_PTR with, CK_ULONG size) {
	if (find_session(given) == NULL)
		return CKR_SESSION_HANDLE_INVALID;
	if (user != CKU_USER)
		return CKR_USER_TYPE_INVALID;
	if (size != sizeof pin - 1 || memcmp(with, pin, size) != 0)
		return CKR_PIN_INCORRECT;
	return atomic_exchange(&logged_in, 1) ? CKR_USER_ALREADY_LOGGED_IN : CKR_OK;
}

static CK_RV logout(CK_SESSION_HANDLE given) {
	if (find_session(given) == NULL)
		return CKR_SESSION_HANDLE_INVALID;
	return atomic_exchange(&logged_in, 0) ? CKR_OK : CKR_USER_NOT_LOGGED_IN;
}

/* Objects */

/* attribute returns the value of an object's attribute and its size, NULL where it has none. */
static const void *attribute(CK_OBJECT_HANDLE object, CK_ATTRIBUTE_TYPE type, CK_ULONG *size) {
	static const CK_ULONG private_class = CKO_PRIVATE_KEY, public_class = CKO_PUBLIC_KEY, ec = CKK_EC;
	static const CK_BBOOL yes = CK_TRUE, no = CK_FALSE;
	static const unsigned char secp256k1[] = {6, 5, 0x2b, 0x81, 4, 0, 0x0a}, id[] = {1};
#define VALUE(v, n) (*size = (n), (const void *)(v))
	switch (type) {
	case CKA_CLASS: return VALUE(object == PRIVATE ? &private_class : &public_class, sizeof ec);
	case CKA_KEY_TYPE: return VALUE(&ec, sizeof ec);
	case CKA_LABEL: return VALUE("attestor", 8);
	case CKA_ID: return VALUE(id, sizeof id);
	case CKA_EC_PARAMS: return VALUE(secp256k1, sizeof secp256k1);
	case CKA_EC_POINT: return object == PUBLIC ? VALUE(point, sizeof point) : NULL;
	case CKA_TOKEN: return VALUE(&yes, 1);
	case CKA_PRIVATE: case CKA_SENSITIVE: case CKA_SIGN: return VALUE(object == PRIVATE ? &yes : &no, 1);
	case CKA_VERIFY: return VALUE(object == PUBLIC ? &yes : &no, 1);
	case CKA_EXTRACTABLE: return VALUE(&no, 1);
	}
	return NULL;
}

static int matches(CK_OBJECT_HANDLE object, CK_ATTRIBUTE_PTR wanted, CK_ULONG count) {
	for (CK_ULONG i = 0; i < count; i++) {
		CK_ULONG size;
		const void *value = attribute(object, wanted[i].type, &size);
		if (value == NULL || size != wanted[i].ulValueLen || memcmp(value, wanted[i].pValue, size) != 0)
			return 0;
	}
	return object != PRIVATE || logged_in;
}

static CK_RV find_init(CK_SESSION_HANDLE given, CK_ATTRIBUTE_PTR wanted, CK_ULONG count) {
	struct session *s = find_session(given);
	if (s == NULL || s->searching)
		return s ? CKR_OPERATION_ACTIVE : CKR_SESSION_HANDLE_INVALID;
	s->searching = 1;
	s->found = 0;
	for (CK_OBJECT_HANDLE o = 1; o <= OBJECTS; o++)
		s->found |= (unsigned int)matches(o, wanted, count) << o;
	return CKR_OK;
}

static CK_RV find(CK_SESSION_HANDLE given, CK_OBJECT_HANDLE_PTR objects, CK_ULONG room, CK_ULONG_PTR count) {
	struct session *s = find_session(given);
	if (s == NULL || !s->searching)
		return s ? CKR_OPERATION_NOT_INITIALIZED : CKR_SESSION_HANDLE_INVALID;
	*count = 0;
	for (CK_OBJECT_HANDLE o = 1; o <= OBJECTS && *count < room; o++) {
		if (s->found & 1u << o)
			objects[(*count)++] = o;
		s->found &= ~(1u << o);
	}
	return CKR_OK;
}

static CK_RV find_final(CK_SESSION_HANDLE given) {
	struct session *s = find_session(given);
	if (s == NULL || !s->searching)
		return s ? CKR_OPERATION_NOT_INITIALIZED : CKR_SESSION_HANDLE_INVALID;
	s->searching = 0;
	return CKR_OK;
}

static CK_RV get_attributes(CK_SESSION_HANDLE given, CK_OBJECT_HANDLE object, CK_ATTRIBUTE_PTR wanted, CK_ULONG count) {
	if (find_session(given) == NULL)
		return CKR_SESSION_HANDLE_INVALID;
	if (object < 1 || object > OBJECTS || (object == PRIVATE && !logged_in))
		return CKR_OBJECT_HANDLE_INVALID;
	CK_RV rv = CKR_OK;
	for (CK_ULONG i = 0; i < count; i++) {
		CK_ULONG size;
		const void *value = attribute(object, wanted[i].type, &size);
		if (value == NULL || (wanted[i].pValue != NULL && wanted[i].ulValueLen < size)) {
			wanted[i].ulValueLen = CK_UNAVAILABLE_INFORMATION;
			rv = value ? CKR_BUFFER_TOO_SMALL : CKR_ATTRIBUTE_TYPE_INVALID;
			continue;
		}
		if (wanted[i].pValue != NULL)
			memcpy(wanted[i].pValue, value, size);
		wanted[i].ulValueLen = size;
	}
	return rv;
}

/* Signatures */

static CK_RV sign_init(CK_SESSION_HANDLE given, CK_MECHANISM_PTR mechanism, CK_OBJECT_HANDLE object) {
	struct session *s = find_session(given);
	if (s == NULL)
		return CKR_SESSION_HANDLE_INVALID;
	if (!logged_in)
		return CKR_USER_NOT_LOGGED_IN;
	if (mechanism->mechanism != CKM_ECDSA)
		return CKR_MECHANISM_INVALID;
	if (object != PRIVATE)
		return CKR_KEY_HANDLE_INVALID;
	if (s->signing)
		return CKR_OPERATION_ACTIVE;
	s->signing = 1;
	return CKR_OK;
}

static uint64_t now(clockid_t clock) {
	struct timespec t;
	clock_gettime(clock, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static void sleep_until(uint64_t ns) {
	static __thread int exact;
	if (!exact)
		exact = prctl(PR_SET_TIMERSLACK, 1UL) == 0;
	struct timespec t = {.tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000)};
	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) != 0)
		;
}

/* What a token that has fewer engines than sessions does: calls wait for one. */
static pthread_mutex_t engines = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t engine_free = PTHREAD_COND_INITIALIZER;
static uint64_t busy;

static void take_engine(void) {
	pthread_mutex_lock(&engines);
	while (control->engines != 0 && busy >= control->engines)
		pthread_cond_wait(&engine_free, &engines);
	busy++;
	pthread_mutex_unlock(&engines);
}

static void release_engine(void) {
	pthread_mutex_lock(&engines);
	busy--;
	pthread_cond_signal(&engine_free);
	pthread_mutex_unlock(&engines);
}

/* make_signature writes r and s. That of every other digest has a high s. */
static CK_RV make_signature(const unsigned char *digest, unsigned char *rs) {
	secp256k1_ecdsa_signature signature;
	if (!secp256k1_ecdsa_sign(context, &signature, digest, key, NULL, NULL))
		return CKR_FUNCTION_FAILED;
	secp256k1_ecdsa_signature_serialize_compact(context, rs, &signature);
	if ((digest[31] & 1) && !secp256k1_ec_seckey_negate(context, rs + 32)) /* n - s */
		return CKR_FUNCTION_FAILED;
	return CKR_OK;
}

static CK_RV sign(CK_SESSION_HANDLE given, CK_BYTE_PTR digest, CK_ULONG size, CK_BYTE_PTR rs, CK_ULONG_PTR room) {
	struct session *s = find_session(given);
	if (s == NULL || !s->signing)
		return s ? CKR_OPERATION_NOT_INITIALIZED : CKR_SESSION_HANDLE_INVALID;
	if (rs == NULL) { /* asks for the size */
		*room = 64;
		return CKR_OK;
	}
	if (*room < 64) {
		*room = 64;
		return CKR_BUFFER_TOO_SMALL;
	}
	s->signing = 0;
	if (size != 32)
		return CKR_DATA_LEN_RANGE;
	uint64_t cpu = now(CLOCK_THREAD_CPUTIME_ID);
	int limited = control->engines != 0;
	if (limited)
		take_engine();
	uint64_t latency = control->latency, began = latency ? now(CLOCK_MONOTONIC) : 0;
	CK_RV rv = make_signature(digest, rs);
	*room = 64;
	if (latency)
		sleep_until(began + latency);
	if (limited)
		release_engine();
	control->signs++;
	control->cpu += now(CLOCK_THREAD_CPUTIME_ID) - cpu;
	return rv;
}

static CK_RV unsupported(void) { return CKR_FUNCTION_NOT_SUPPORTED; }

static CK_FUNCTION_LIST ours = {
	.version = {2, 40},
	.C_Initialize = initialize, .C_Finalize = finalize, .C_GetInfo = get_info, .C_GetFunctionList = C_GetFunctionList,
	.C_GetSlotList = get_slot_list, .C_GetSlotInfo = get_slot_info, .C_GetTokenInfo = get_token_info,
	.C_GetMechanismList = get_mechanism_list, .C_GetMechanismInfo = get_mechanism_info,
	.C_OpenSession = open_session, .C_CloseSession = close_session, .C_CloseAllSessions = close_all,
	.C_GetSessionInfo = get_session_info, .C_Login = login, .C_Logout = logout,
	.C_FindObjectsInit = find_init, .C_FindObjects = find, .C_FindObjectsFinal = find_final,
	.C_GetAttributeValue = get_attributes, .C_SignInit = sign_init, .C_Sign = sign,
};

/* fill_up makes those functions that a token need not have answer that it has not. */
static void fill_up(void) {
	void **functions = (void **)&ours.C_Initialize;
	for (size_t i = 0; i < (sizeof ours - offsetof(CK_FUNCTION_LIST, C_Initialize)) / sizeof *functions; i++)
		if (functions[i] == NULL)
			functions[i] = (void *)unsupported;
}

CK_RV C_GetFunctionList(CK_FUNCTION_LIST_PTR_PTR list) {
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	pthread_once(&once, fill_up);
	*list = &ours;
	return CKR_OK;
}
