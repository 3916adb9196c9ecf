package hsm

/*
#cgo LDFLAGS: -ldl
#include <dlfcn.h>
#include <stdlib.h>

// What a module's C_GetFunctionList gives (PKCS#11 v2.40 base, section 3.6): all functions, in the order of the standard.
struct functions {
	unsigned char version[2];
	void *all[68];
};

enum { GET_INFO = 2, SIGN_INIT = 42, SIGN = 43 };

// functions_of returns the functions of a module that is loaded and initialised, else NULL.
static struct functions *functions_of(const char *path) {
	void *library = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
	unsigned long (*list)(struct functions **);
	struct functions *found = NULL;
	char info[512]; // a CK_INFO has 88 bytes
	if (library == NULL)
		return NULL;
	*(void **)&list = dlsym(library, "C_GetFunctionList");
	// Some libraries, as p11-kit's proxy, give each caller functions of its own, which are not initialised.
	if (list == NULL || list(&found) != 0 || ((unsigned long (*)(void *))found->all[GET_INFO])(info) != 0)
		found = NULL;
	dlclose(library); // it stays: whoever loaded it has it
	return found;
}

static void *function(struct functions *f, int i) { return f->all[i]; }
*/
import "C"

import (
	"unsafe"

	"github.com/miekg/pkcs11"
)

// direct holds functions of the module for callers in C. A direct call avoids the binding's copies and its second call
// of C_Sign. The functions are 0 if the module does not offer them; calls then go through the binding.
type direct struct{ signInit, sign uintptr }

func directOf(m module, path string) direct {
	if _, real := m.(*pkcs11.Ctx); !real { // a test's wrapper, which must see each call
		return direct{}
	}
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name))
	f := C.functions_of(name)
	if f == nil {
		return direct{}
	}
	return direct{uintptr(C.function(f, C.SIGN_INIT)), uintptr(C.function(f, C.SIGN))}
}
