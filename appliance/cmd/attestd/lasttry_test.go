package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/attestd/attestd/appliance/daemontest"
	"github.com/attestd/attestd/hsm/softhsm"
)

// lastTry is a PKCS#11 module around SoftHSM. Its token reports that one more wrong PIN locks it, which SoftHSM itself
// never does. Each C_Login writes a line to the file that LOGINS names.
const lastTry = `
#define CK_PTR *
#define CK_DECLARE_FUNCTION(returnType, name) returnType name
#define CK_DECLARE_FUNCTION_POINTER(returnType, name) returnType (*name)
#define CK_CALLBACK_FUNCTION(returnType, name) returnType (*name)
#ifndef NULL_PTR
#define NULL_PTR 0
#endif
#include "pkcs11.h"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

static CK_FUNCTION_LIST ours, *theirs;

static CK_RV token_info(CK_SLOT_ID slot, CK_TOKEN_INFO_PTR info) {
	CK_RV rv = theirs->C_GetTokenInfo(slot, info);
	info->flags |= CKF_USER_PIN_COUNT_LOW | CKF_USER_PIN_FINAL_TRY;
	return rv;
}

static CK_RV login(CK_SESSION_HANDLE h, CK_USER_TYPE user, CK_UTF8CHAR_PTR pin, CK_ULONG n) {
	FILE *f = fopen(getenv("LOGINS"), "a");
	fputs("login\n", f);
	fclose(f);
	return theirs->C_Login(h, user, pin, n);
}

CK_RV C_GetFunctionList(CK_FUNCTION_LIST_PTR_PTR list) {
	void *library = dlopen(getenv("SOFTHSM"), RTLD_NOW);
	CK_C_GetFunctionList get = (CK_C_GetFunctionList)dlsym(library, "C_GetFunctionList");
	CK_RV rv = get(&theirs);
	ours = *theirs;
	ours.C_GetTokenInfo = token_info;
	ours.C_Login = login;
	*list = &ours;
	return rv;
}
`

func TestDoctorNeverTriesThePINAtItsLastTry(t *testing.T) {
	t.Parallel()
	d := daemontest.New(t)
	d.Write(t, "pin", "wrong\n")
	module, logins := buildLastTry(t), filepath.Join(t.TempDir(), "logins")
	softHSM, err := softhsm.Module()
	if err != nil {
		t.Fatal(err)
	}
	config, err := os.ReadFile(filepath.Join(d.Dir, "attestd.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	d.Write(t, "attestd.yaml", strings.Replace(string(config), softHSM, module, 1))

	for _, command := range []string{"doctor", "hsm status", "serve"} {
		cmd := d.Command(strings.Fields(command)...)
		cmd.Env = append(cmd.Env, "LOGINS="+logins, "SOFTHSM="+softHSM)
		out, err := cmd.CombinedOutput()
		if err == nil {
			t.Errorf("%s ends well", command)
		}
		if want := "one more wrong PIN locks the token"; !strings.Contains(string(out), want) {
			t.Errorf("%s does not say %q:\n%s", command, want, out)
		}
	}
	if tried, err := os.ReadFile(logins); err == nil {
		t.Errorf("the PIN was tried:\n%s", tried)
	}
}

// buildLastTry compiles the module.
func buildLastTry(t *testing.T) string {
	t.Helper()
	headers, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/miekg/pkcs11").Output()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	source, module := filepath.Join(dir, "lasttry.c"), filepath.Join(dir, "lasttry.so")
	if err := os.WriteFile(source, []byte(lastTry), 0o600); err != nil {
		t.Fatal(err)
	}
	compile := exec.Command("gcc", "-shared", "-fPIC", "-I", strings.TrimSpace(string(headers)), "-o", module, source,
		"-ldl")
	if out, err := compile.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return module
}
