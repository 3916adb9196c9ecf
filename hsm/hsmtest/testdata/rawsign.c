/*
 * What a PKCS#11 module gives: C_SignInit and C_Sign on so many sessions at the same time, each with a thread of its own,
 * and nothing around them.
 *
 *	rawsign MODULE PINFILE SESSIONS MILLISECONDS
 *
 * It prints signatures, nanoseconds, and nanoseconds of CPU. The token is the first initialised one, the key its only
 * private one. The digests are of no attestation: they begin with 0xff.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define CK_PTR *
#define CK_DEFINE_FUNCTION(type, name) type name
#define CK_DECLARE_FUNCTION(type, name) type name
#define CK_DECLARE_FUNCTION_POINTER(type, name) type(*name)
#define CK_CALLBACK_FUNCTION(type, name) type(*name)
#ifndef NULL_PTR
#define NULL_PTR 0
#endif
#include "pkcs11.h"

static CK_FUNCTION_LIST *module;
static CK_OBJECT_HANDLE key;
static _Atomic int ended;
static _Atomic uint64_t signatures;

static uint64_t now(clockid_t clock) {
	struct timespec t;
	clock_gettime(clock, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static void check(CK_RV rv, const char *what) {
	if (rv != CKR_OK) {
		fprintf(stderr, "rawsign: %s: 0x%lx\n", what, rv);
		exit(1);
	}
}

static void *sign(void *argument) {
	CK_SESSION_HANDLE session = (CK_SESSION_HANDLE)argument;
	CK_MECHANISM ecdsa = {CKM_ECDSA, NULL, 0};
	CK_BYTE digest[32], signature[64];
	uint64_t made = 0;
	memset(digest, 0xff, sizeof digest);
	do {
		CK_ULONG size = sizeof signature;
		memcpy(digest + 1, &made, sizeof made);
		check(module->C_SignInit(session, &ecdsa, key), "C_SignInit");
		check(module->C_Sign(session, digest, sizeof digest, signature, &size), "C_Sign");
		made++;
	} while (!ended);
	signatures += made;
	return NULL;
}

static void load(const char *path) {
	void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	CK_C_GetFunctionList get = library ? (CK_C_GetFunctionList)dlsym(library, "C_GetFunctionList") : NULL;
	CK_C_INITIALIZE_ARGS locking = {.flags = CKF_OS_LOCKING_OK};
	if (get == NULL) {
		fprintf(stderr, "rawsign: %s\n", dlerror());
		exit(1);
	}
	check(get(&module), "C_GetFunctionList");
	check(module->C_Initialize(&locking), "C_Initialize");
}

static CK_SLOT_ID find_slot(void) {
	CK_SLOT_ID slots[64];
	CK_ULONG n = 64;
	CK_TOKEN_INFO info;
	check(module->C_GetSlotList(CK_TRUE, slots, &n), "C_GetSlotList");
	for (CK_ULONG i = 0; i < n; i++)
		if (module->C_GetTokenInfo(slots[i], &info) == CKR_OK && (info.flags & CKF_TOKEN_INITIALIZED))
			return slots[i];
	check(CKR_TOKEN_NOT_PRESENT, "find the token");
	return 0;
}

static void log_in(CK_SESSION_HANDLE session, const char *pin_file) {
	CK_OBJECT_CLASS private = CKO_PRIVATE_KEY;
	CK_ATTRIBUTE wanted = {CKA_CLASS, &private, sizeof private};
	CK_ULONG n = 0;
	char pin[256] = "";
	FILE *file = fopen(pin_file, "r");
	if (file == NULL || fgets(pin, sizeof pin, file) == NULL)
		check(CKR_PIN_INVALID, "read the PIN");
	fclose(file);
	pin[strcspn(pin, "\n")] = 0;
	check(module->C_Login(session, CKU_USER, (CK_UTF8CHAR *)pin, strlen(pin)), "C_Login");
	check(module->C_FindObjectsInit(session, &wanted, 1), "C_FindObjectsInit");
	check(module->C_FindObjects(session, &key, 1, &n), "C_FindObjects");
	check(module->C_FindObjectsFinal(session), "C_FindObjectsFinal");
	check(n == 1 ? CKR_OK : CKR_KEY_HANDLE_INVALID, "find the key");
}

int main(int count, char **arguments) {
	if (count != 5) {
		fprintf(stderr, "usage: rawsign MODULE PINFILE SESSIONS MILLISECONDS\n");
		return 2;
	}
	int sessions = atoi(arguments[3]);
	load(arguments[1]);
	CK_SLOT_ID slot = find_slot();
	pthread_t *threads = calloc((size_t)sessions, sizeof *threads);
	CK_SESSION_HANDLE *handles = calloc((size_t)sessions, sizeof *handles);
	for (int i = 0; i < sessions; i++) {
		check(module->C_OpenSession(slot, CKF_SERIAL_SESSION, NULL, NULL, &handles[i]), "C_OpenSession");
		if (i == 0)
			log_in(handles[0], arguments[2]);
	}
	uint64_t began = now(CLOCK_MONOTONIC), cpu = now(CLOCK_PROCESS_CPUTIME_ID);
	for (int i = 0; i < sessions; i++)
		check(pthread_create(&threads[i], NULL, sign, (void *)handles[i]) ? CKR_HOST_MEMORY : CKR_OK, "pthread_create");
	usleep((useconds_t)atoi(arguments[4]) * 1000);
	ended = 1;
	for (int i = 0; i < sessions; i++)
		pthread_join(threads[i], NULL);
	cpu = now(CLOCK_PROCESS_CPUTIME_ID) - cpu;
	printf("%lu %lu %lu\n", (unsigned long)signatures, (unsigned long)(now(CLOCK_MONOTONIC) - began), (unsigned long)cpu);
	return module->C_Finalize(NULL) == CKR_OK ? 0 : 1;
}
