package hsm_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"github.com/miekg/pkcs11"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/hsm"
	"github.com/attestd/attestd/hsm/hsmtest"
)

func TestWrongPINIsTriedOnce(t *testing.T) {
	t.Parallel()
	token := hsmtest.New(t)
	u := token.URI
	u.PINSource = secretFile(t, "31415926", 0o600)
	f := newFaulty(t)
	_, err := tryOpen(t, f, hsm.Options{URI: u})
	if !errors.Is(err, hsm.ErrPIN) || !strings.Contains(err.Error(), "CKR_PIN_INCORRECT") ||
		!strings.Contains(err.Error(), "pin-source") {
		t.Errorf("got %v, want ErrPIN with the cause and the remedy", err)
	}
	if strings.Contains(err.Error(), "31415926") {
		t.Errorf("the error shows the PIN: %v", err)
	}
	if f.count("C_Login") != 1 {
		t.Errorf("%d logins, want 1", f.count("C_Login"))
	}
}

func TestPINThatBecameWrongIsTriedOnce(t *testing.T) {
	t.Parallel()
	token := hsmtest.New(t)
	pin, err := os.ReadFile(token.PINFile)
	if err != nil {
		t.Fatal(err)
	}
	u := token.URI
	u.PINSource = secretFile(t, string(pin), 0o400)
	var logged bytes.Buffer
	f := newFaulty(t)
	s := open(t, f, hsm.Options{URI: u, Logger: slog.New(slog.NewTextHandler(&logged, nil))})
	mustSign(t, s)
	_ = os.Chmod(u.PINSource, 0o600)
	if err := os.WriteFile(u.PINSource, []byte("31415926"), 0o600); err != nil {
		t.Fatal(err)
	}
	f.staleSessions()
	var all sync.WaitGroup
	for range 16 {
		all.Go(func() {
			for range 4 {
				_, err := s.Sign(t.Context(), randomDigest())
				if !errors.Is(err, hsm.ErrPIN) || appliance.CodeOf(err) != appliance.CodeHSMUnavailable {
					t.Errorf("got %v, want ErrPIN", err)
				}
			}
		})
	}
	all.Wait()
	if f.count("C_Login") != 2 {
		t.Errorf("%d logins, want the first and one with the wrong PIN", f.count("C_Login"))
	}
	if err := s.Ready(t.Context()); !errors.Is(err, hsm.ErrPIN) {
		t.Errorf("Ready says %v, want ErrPIN", err)
	}
	if status, _ := s.Status(t.Context()); status.Ready || !strings.Contains(status.LastError, "CKR_PIN_INCORRECT") {
		t.Errorf("status %+v", status)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if log := logged.String(); strings.Contains(log, "31415926") ||
		strings.Contains(log, strings.TrimSpace(string(pin))) {
		t.Errorf("the log shows a PIN:\n%s", log)
	}
}

func TestPINIsNotTriedWhereItCouldLockTheToken(t *testing.T) {
	t.Parallel()
	token := hsmtest.New(t)
	for name, flag := range map[string]uint{
		"CKF_USER_PIN_FINAL_TRY": pkcs11.CKF_USER_PIN_FINAL_TRY,
		"CKF_USER_PIN_LOCKED":    pkcs11.CKF_USER_PIN_LOCKED,
	} {
		t.Run(name, func(t *testing.T) {
			f := newFaulty(t)
			f.tokenInfo = func(info *pkcs11.TokenInfo) error { info.Flags |= flag; return nil }
			_, err := tryOpen(t, f, hsm.Options{URI: token.URI})
			if !errors.Is(err, hsm.ErrPIN) || !strings.Contains(err.Error(), name) {
				t.Errorf("got %v, want ErrPIN that names %s", err, name)
			}
			if f.count("C_Login") != 0 {
				t.Errorf("%d logins, want none", f.count("C_Login"))
			}
		})
	}
}

func TestPINFileMustBePrivate(t *testing.T) {
	t.Parallel()
	token := hsmtest.New(t)
	pin, err := os.ReadFile(token.PINFile)
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		source, want string
	}{
		"0600 and a newline": {secretFile(t, string(pin), 0o600), ""},
		"0440, as systemd":   {secretFile(t, strings.TrimSpace(string(pin)), 0o440), ""},
		"a file URI":         {"file:" + secretFile(t, string(pin), 0o600), ""},
		"0644":               {secretFile(t, string(pin), 0o644), "chmod 0600"},
		"missing":            {filepath.Join(t.TempDir(), "none"), "no such file"},
		"empty":              {secretFile(t, "\n", 0o600), "is empty"},
		"not given":          {"", "add pin-source"},
	} {
		t.Run(name, func(t *testing.T) {
			u := token.URI
			u.PINSource = test.source
			f := newFaulty(t)
			s, err := hsm.Open(t.Context(), hsm.Options{URI: u}.Through(f.wrap))
			if err == nil {
				defer func() { _ = s.Close() }()
			}
			if (test.want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), test.want) {
				t.Fatalf("got %v, want %q", err, test.want)
			}
			if err != nil && f.count("C_Login") != 0 {
				t.Error("a login was tried")
			}
		})
	}
}

// While it is needed, the PIN is in memory that is neither swapped nor dumped. Afterwards the memory is unmapped.
func TestPINIsLockedInMemoryAndWiped(t *testing.T) {
	token := hsmtest.New(t)
	f := newFaulty(t)
	var seen string
	var flags []string
	f.login = func(pin string) {
		seen = fmt.Sprintf("%p", unsafe.StringData(pin))
		flags = flagsOf(t, unsafe.StringData(pin))
	}
	s, err := hsm.Open(t.Context(), hsm.Options{URI: token.URI}.Through(f.wrap))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	wanted := []string{"dd"} // not dumped (proc_pid_smaps(5))
	if hsmtest.CanLock(t) {
		wanted = append(wanted, "lo") // locked
	}
	for _, want := range wanted {
		if !slices.Contains(flags, want) {
			t.Errorf("the memory that holds the PIN has the flags %s, and not %s", flags, want)
		}
	}
	address, err := strconv.ParseUint(strings.TrimPrefix(seen, "0x"), 16, 64)
	if err != nil {
		t.Fatal(err)
	}
	memory, err := os.Open("/proc/self/mem")
	if err != nil {
		t.Fatal(err)
	}
	defer memory.Close()
	pin, err := os.ReadFile(token.PINFile)
	if err != nil {
		t.Fatal(err)
	}
	left := make([]byte, len(bytes.TrimSpace(pin)))
	if _, err := memory.ReadAt(left, int64(address)); err == nil && bytes.Equal(left, bytes.TrimSpace(pin)) {
		t.Error("the PIN is still where it was")
	}
}

// flagsOf returns the kernel's flags of the memory at an address.
func flagsOf(t *testing.T, at *byte) []string {
	t.Helper()
	maps, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	inside := false
	for line := range strings.Lines(string(maps)) {
		var from, to uintptr
		if n, _ := fmt.Sscanf(line, "%x-%x ", &from, &to); n == 2 {
			inside = from <= uintptr(unsafe.Pointer(at)) && uintptr(unsafe.Pointer(at)) < to
		}
		if flags, found := strings.CutPrefix(line, "VmFlags:"); found && inside {
			return strings.Fields(flags)
		}
	}
	t.Fatal("the PIN is nowhere")
	return nil
}
