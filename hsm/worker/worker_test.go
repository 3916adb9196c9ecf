package worker_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/pkcs11"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/hsm"
	"github.com/attestd/attestd/hsm/hsmtest"
	"github.com/attestd/attestd/hsm/worker"
)

func TestSignaturesRecoverToTheKey(t *testing.T) {
	t.Parallel()
	token := hsmtest.New(t)
	s, _ := open(t, sessions(4, token.URI))
	if s.Address() != token.Key.Address {
		t.Errorf("address %s, want %s", s.Address(), token.Key.Address)
	}
	for range 20 {
		mustSign(t, s)
	}
	if err := s.Ready(t.Context()); err != nil {
		t.Error(err)
	}
	status, err := s.Status(t.Context())
	if err != nil || !status.Ready || status.Signatures != 20 || status.Session.Open != 4 ||
		status.Session.InUse != 0 ||
		status.Token.Label != token.URI.Token || *status.Key.Address != token.Key.Address || status.Worker == 0 ||
		status.LastError != "" {
		t.Errorf("%+v, %v", status, err)
	}
}

// If a worker ends under load, for any reason, every request is still answered soon.
func TestAWorkerThatEndsUnderLoadIsReplaced(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		end  func(*testing.T, *worker.Signer, *hsmtest.Faults)
		want []string // in the log
	}{
		"SIGKILL": {
			func(t *testing.T, s *worker.Signer, _ *hsmtest.Faults) {
				if err := syscall.Kill(workerOf(t, s), syscall.SIGKILL); err != nil {
					t.Error(err)
				}
			},
			[]string{"signal: killed"},
		},
		"a segmentation fault in the module": {
			func(_ *testing.T, _ *worker.Signer, f *hsmtest.Faults) {
				f.Set("C_Sign", hsmtest.Fault{Times: 1, Crash: true})
			},
			[]string{"SIGSEGV: segmentation violation", "HSM module output"},
		},
		"the module forgot that it is initialised": {
			func(_ *testing.T, _ *worker.Signer, f *hsmtest.Faults) {
				f.Set("C_SignInit", hsmtest.Fault{Times: 1, Error: pkcs11.CKR_CRYPTOKI_NOT_INITIALIZED})
			},
			[]string{"CKR_CRYPTOKI_NOT_INITIALIZED"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			token, faults := hsmtest.FaultModule(t)
			options := sessions(4, token.URI)
			// longer than requests may wait: the end must be noticed without the call timeout
			options.CallTimeout = time.Minute
			s, log := open(t, options)
			l := underLoad(t, s, 16)
			for range 3 {
				before := s.Usage().Restarts
				test.end(t, s, faults)
				for s.Usage().Restarts == before {
					l.await(1)
				}
				l.await(40)
			}
			l.stop()
			t.Logf("%d signatures, the longest outage %s", l.signed.Load(), l.outage())
			wantLog(t, log, append(test.want, "start another worker", "HSM repaired")...)
			if !s.Usage().Ready {
				t.Error("it is not ready")
			}
		})
	}
}

func TestAHangIsNoticedAndAnotherWorkerTakesOver(t *testing.T) {
	t.Parallel()
	const clients = 16
	token, faults := hsmtest.FaultModule(t)
	options := sessions(4, token.URI)
	options.CallTimeout = hangTimeout
	s, log := open(t, options)
	l := underLoad(t, s, clients)
	faults.Set("C_Sign", hsmtest.Fault{Times: 2, Hang: true}) // two of four sessions
	eventually(t, "two calls hang", func() bool { return faults.Hung() == 2 })
	before, meanwhile := l.signed.Load(), int64(0)
	for {
		n := l.signed.Load()
		if s.Usage().Restarts > 0 {
			break
		}
		meanwhile = n - before
		l.await(1)
	}
	if meanwhile <= clients { // this many may have been signed earlier and counted late
		t.Errorf("%d signatures while two of four sessions hung", meanwhile)
	}
	l.await(40)
	t.Logf("%d signatures while two of four sessions hung, the longest outage %s", meanwhile, l.outage())
	wantLog(t, log, "a call of the PKCS#11 module has not returned for", "HSM repaired")
}

func TestAStoppedWorkerIsReplaced(t *testing.T) {
	t.Parallel()
	options := sessions(4, hsmtest.New(t).URI)
	options.CallTimeout = hangTimeout
	s, _ := open(t, options)
	l := underLoad(t, s, 16)
	if err := syscall.Kill(workerOf(t, s), syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	l.await(1)
	for s.Usage().Restarts == 0 {
		l.await(1)
	}
	l.await(40)
	t.Logf("the longest outage %s", l.outage())
}

// While the whole HSM hangs, the appliance is not ready. Once the hang has ended, it signs at once.
func TestACompleteHangShowsAndPasses(t *testing.T) {
	t.Parallel()
	token, faults := hsmtest.FaultModule(t)
	options := sessions(2, token.URI)
	options.CallTimeout = hangTimeout
	s, log := open(t, options)
	for _, function := range []string{"C_Sign", "C_Initialize"} {
		faults.Set(function, hsmtest.Fault{Hang: true})
	}
	signed := make(chan error, 1)
	go func() { _, err := s.Sign(t.Context(), randomDigest()); signed <- err }()
	eventually(t, "not ready", func() bool { return !s.Usage().Ready })
	if err := s.Ready(t.Context()); appliance.CodeOf(err) != appliance.CodeHSMUnavailable ||
		!strings.Contains(err.Error(), "has not returned for") {
		t.Errorf("Ready says %v", err)
	}
	wantLog(t, log, "has not returned for")
	faults.Clear()
	faults.Release()
	select {
	case err := <-signed:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(patience):
		t.Error("the signature did not come")
	}
	eventually(t, "ready", func() bool { return s.Usage().Ready })
}

func TestGarbageFromAWorkerCostsTheWorker(t *testing.T) {
	t.Parallel()
	token := hsmtest.New(t)
	for name, script := range map[string]string{
		"text":                      `echo "this is no frame, but long enough for one" >&3; cat <&3 >/dev/null`,
		"too short":                 `printf '\247' >&3; cat <&3 >/dev/null`,
		"an answer to nothing":      `printf '\247\010\0\0\377\0\0\0\0\0\0\0\0\0\0\0dtta' >&3; cat <&3 >/dev/null`,
		"more than there is":        `printf '\247\010\0\0\1\0\0\0\0\0\0\0\377\377\377\377dtta' >&3; cat <&3 >/dev/null`,
		"an answer that is no JSON": `printf '\247\010\0\0\1\0\0\0\0\0\0\0\1\0\0\0dtta{' >&3; cat <&3 >/dev/null`,
		"a line of its log":         `printf '\247\014\0\0\1\0\0\0\0\0\0\0\1\0\0\0dtta{' >&3; cat <&3 >/dev/null`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			started := 0
			options := sessions(2, token.URI).Started(func() *exec.Cmd {
				started++
				return exec.Command("sh", "-c", script)
			})
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			_, err := worker.Open(ctx, options)
			if err == nil || !strings.Contains(err.Error(), "not a frame of the worker protocol") || started != 1 {
				t.Errorf("got %v after %d starts", err, started)
			}
		})
	}
}

func TestAWorkerThatCannotStartIsToldAndTriedAgain(t *testing.T) {
	t.Parallel()
	token := hsmtest.New(t)
	for name, test := range map[string]struct {
		command *exec.Cmd
		want    string
	}{
		"no such program":  {exec.Command("/nowhere/attestd"), "no such file"},
		"it ends at once":  {exec.Command("false"), "exit status 1"},
		"it never answers": {exec.Command("sleep", "1000"), "did not answer in time"},
		"another program's": {exec.Command("sh", "-c", "echo panic: of its own >&2; exit 2"),
			"exit status 2: panic: of its own"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			broken := func() *exec.Cmd { again := *test.command; return &again }
			ctx := t.Context()
			if name == "it never answers" {
				limited, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
				defer cancel()
				ctx = limited
			}
			if _, err := worker.Open(ctx, sessions(2, token.URI).Started(broken)); err == nil ||
				!strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
	t.Run("later", func(t *testing.T) {
		t.Parallel()
		starts := make(chan int, 100)
		n := 0
		s, _ := open(t, sessions(2, token.URI).Started(func() *exec.Cmd {
			n++
			starts <- n
			if 1 < n && n < 5 {
				return exec.Command("/nowhere/attestd")
			}
			return worker.Itself()
		}))
		if err := syscall.Kill(workerOf(t, s), syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		mustSign(t, s)
		if len(starts) != 5 {
			t.Errorf("%d starts, want 5", len(starts))
		}
	})
}

// No worker tries a PIN again that was refused.
func TestARefusedPINIsTriedOnceAcrossWorkers(t *testing.T) {
	t.Parallel()
	for name, rv := range map[string]uint{
		"CKR_PIN_INCORRECT":     pkcs11.CKR_PIN_INCORRECT,
		"CKR_FUNCTION_REJECTED": pkcs11.CKR_FUNCTION_REJECTED,
		"a vendor's own":        pkcs11.CKR_VENDOR_DEFINED + 0x1234,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			token, faults := hsmtest.FaultModule(t)
			s, log := open(t, sessions(2, token.URI))
			mustSign(t, s)
			faults.Set("C_Login", hsmtest.Fault{Error: rv})
			logins := faults.Calls("C_Login")
			if err := syscall.Kill(workerOf(t, s), syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			for range 3 {
				_, err := s.Sign(t.Context(), randomDigest())
				if !errors.Is(err, hsm.ErrPIN) || appliance.CodeOf(err) != appliance.CodeHSMUnavailable {
					t.Errorf("got %v, want ErrPIN", err)
				}
			}
			if n := faults.Calls("C_Login") - logins; n != 1 {
				t.Errorf("%d logins, want 1", n)
			}
			if err := s.Ready(t.Context()); !errors.Is(err, hsm.ErrPIN) {
				t.Errorf("Ready says %v", err)
			}
			wantLog(t, log, "HSM repair stopped until restart")
		})
	}
}

func TestWhatOpenFindsIsTold(t *testing.T) {
	t.Parallel()
	token := hsmtest.New(t)
	for name, test := range map[string]struct {
		change func(*hsm.URI)
		want   error
	}{
		"no such token":  {func(u *hsm.URI) { u.Token = "nowhere" }, hsm.ErrNotFound},
		"no such key":    {func(u *hsm.URI) { u.Object = "nowhere" }, hsm.ErrNotFound},
		"no such module": {func(u *hsm.URI) { u.ModulePath = "/nowhere/module.so" }, nil},
		"no PIN":         {func(u *hsm.URI) { u.PINSource = "file:/nowhere/pin" }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			u := token.URI
			test.change(&u)
			_, err := worker.Open(t.Context(), sessions(2, u))
			_, direct := hsm.Open(t.Context(), hsm.Options{URI: u})
			if err == nil || direct == nil || err.Error() != direct.Error() || test.want != nil &&
				!errors.Is(err, test.want) {
				t.Errorf("got\n%v, want\n%v", err, direct)
			}
		})
	}
}

func TestTheWorkerEndsWithItsDaemonOnly(t *testing.T) {
	t.Parallel()
	s, _ := open(t, sessions(2, hsmtest.New(t).URI))
	pid := workerOf(t, s)
	for _, signal := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP} {
		if err := syscall.Kill(pid, signal); err != nil {
			t.Fatal(err)
		}
		mustSign(t, s)
	}
	if group, err := syscall.Getpgid(pid); err != nil || group != pid {
		t.Errorf("its process group is %d, %v", group, err)
	}
	if n := s.Usage().Restarts; n != 0 {
		t.Errorf("%d restarts", n)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("it is still there: %v", err)
	}
	if err := s.Ready(t.Context()); !errors.Is(err, hsm.ErrClosed) {
		t.Errorf("Ready says %v", err)
	}
}

// While a token is away, requests wait for it until their deadlines.
func TestATokenThatIsAwayIsBackByItself(t *testing.T) {
	t.Parallel()
	token, faults := hsmtest.FaultModule(t)
	s, _ := open(t, sessions(2, token.URI))
	faults.Down(pkcs11.CKR_DEVICE_REMOVED)
	limited, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := s.Sign(limited, randomDigest()); appliance.CodeOf(err) != appliance.CodeTimeout {
		t.Errorf("got %v, want a timeout", err)
	}
	waits := make(chan error, 1)
	go func() { _, err := s.Sign(t.Context(), randomDigest()); waits <- err }()
	eventually(t, "not ready", func() bool { return !s.Usage().Ready })
	if err := s.Ready(t.Context()); appliance.CodeOf(err) != appliance.CodeHSMUnavailable ||
		!strings.Contains(err.Error(), "CKR_DEVICE_REMOVED") {
		t.Errorf("Ready says %v", err)
	}
	faults.Up()
	began := time.Now()
	if err := <-waits; err != nil {
		t.Error(err)
	}
	t.Logf("back after %s", time.Since(began))
	if n := s.Usage().Sessions; n != 2 {
		t.Errorf("%d sessions", n)
	}
}

// A token's session limit may shrink without the loss of a worker.
func TestAShrinkingSessionLimitCostsNoWorker(t *testing.T) {
	t.Parallel()
	token, faults := hsmtest.FaultModule(t)
	s, _ := open(t, sessions(16, token.URI))
	logins := faults.Calls("C_Login")
	faults.LimitSessions(4)
	faults.Restart()
	l := underLoad(t, s, 32)
	l.await(200)
	l.stop()
	if u := s.Usage(); u.Sessions != 4 || u.Restarts != 0 || !u.Ready {
		t.Errorf("%+v", u)
	}
	if n := faults.Calls("C_Login") - logins; n != 1 {
		t.Errorf("%d logins, want 1", n)
	}
}

// A worker recovers from a restart of the token with a login, without initialising the module.
func TestATokenRestartCostsNoWorker(t *testing.T) {
	t.Parallel()
	token, faults := hsmtest.FaultModule(t)
	s, _ := open(t, sessions(8, token.URI))
	l := underLoad(t, s, 32)
	logins, initialised := faults.Calls("C_Login"), faults.Calls("C_Initialize")
	faults.Restart()
	l.await(200)
	l.stop()
	t.Logf("the longest outage %s", l.outage())
	if u := s.Usage(); u.Restarts != 0 || u.Repairs == 0 || faults.Calls("C_Initialize") != initialised {
		t.Errorf("%+v, %d times C_Initialize", u, faults.Calls("C_Initialize")-initialised)
	}
	if n := faults.Calls("C_Login") - logins; n != 1 {
		t.Errorf("%d logins, want 1", n)
	}
}

// Every function of the module fails now and then, signatures are wrong, and the module crashes. Every returned
// signature is still right.
func TestEverySignatureIsRightUnderContinuousFaults(t *testing.T) {
	t.Parallel()
	token, faults := hsmtest.FaultModule(t)
	s, _ := open(t, sessions(4, token.URI))
	rare := func(rv uint) hsmtest.Fault { return hsmtest.Fault{Chance: 0.01, Error: rv} }
	faults.Set("C_SignInit", rare(pkcs11.CKR_USER_NOT_LOGGED_IN), rare(pkcs11.CKR_KEY_HANDLE_INVALID),
		rare(pkcs11.CKR_DEVICE_ERROR),
		rare(pkcs11.CKR_CRYPTOKI_NOT_INITIALIZED))
	faults.Set("C_Sign", rare(pkcs11.CKR_SESSION_CLOSED), rare(pkcs11.CKR_GENERAL_ERROR),
		hsmtest.Fault{Chance: 0.002, Crash: true},
		hsmtest.Fault{Chance: 0.005, Answer: hsmtest.BitFlipped})
	faults.Set("C_FindObjects", rare(pkcs11.CKR_DEVICE_REMOVED))
	var all sync.WaitGroup
	var twice atomic.Int32
	for range 32 {
		all.Go(func() {
			for range 15 {
				d := randomDigest()
				signature, err := s.Sign(t.Context(), d)
				switch {
				case errors.Is(err, hsm.ErrWrongKey):
					twice.Add(1) // must be refused if the token is wrong twice in a row
				case err != nil:
					t.Error(err)
				default:
					checkSignature(t, s, d, signature)
				}
			}
		})
	}
	all.Wait()
	faults.Clear()
	mustSign(t, s)
	u := s.Usage()
	t.Logf("%d restarts, %d repairs, %d wrong signatures withheld, %d requests refused for them", u.Restarts, u.Repairs,
		u.WrongSignatures, twice.Load())
	if twice.Load() > 3 {
		t.Errorf("%d requests were refused", twice.Load())
	}
}

func TestAnotherKeyInItsPlaceIsRefusedUntilOursIsBack(t *testing.T) {
	t.Parallel()
	token, faults := hsmtest.FaultModule(t)
	s, _ := open(t, sessions(2, token.URI))
	faults.Set("C_Sign", hsmtest.Fault{Answer: hsmtest.OtherDigest})
	for range 2 {
		_, err := s.Sign(t.Context(), randomDigest())
		if !errors.Is(err, hsm.ErrWrongKey) || appliance.CodeOf(err) != appliance.CodeHSMUnavailable {
			t.Errorf("got %v, want ErrWrongKey", err)
		}
	}
	if n := s.Usage().WrongSignatures; n == 0 {
		t.Error("no wrong signature was counted")
	}
	faults.Clear()
	eventually(t, "ready", func() bool { return s.Ready(t.Context()) == nil })
	mustSign(t, s)
}

// The worker's secrets are not in the process list, its environment or a core dump.
func TestTheWorkerKeepsItsSecrets(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "@nowhere")
	t.Setenv("ATTESTD_GRAPHQL_UPSTREAM_HEADERS", "Authorization: secret")
	token := hsmtest.New(t)
	s, _ := open(t, sessions(2, token.URI))
	process := fmt.Sprintf("/proc/%d/", workerOf(t, s))
	pin, err := os.ReadFile(token.PINFile)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"cmdline", "environ"} {
		text, err := os.ReadFile(process + name)
		if errors.Is(err, os.ErrPermission) && os.Geteuid() != 0 {
			continue // the process is not dumpable, so its own user may not read it
		}
		if err != nil || bytes.Contains(text, bytes.TrimSpace(pin)) {
			t.Errorf("%s: %q, %v", name, text, err)
		}
		if bytes.Contains(text, []byte("NOTIFY_SOCKET=")) || bytes.Contains(text, []byte("ATTESTD_")) {
			t.Errorf("%s has what is the daemon's: %q", name, text)
		}
	}
	limits, err := os.ReadFile(process + "limits")
	if err != nil || !regexp.MustCompile(`Max core file size +0 +0 `).Match(limits) {
		t.Errorf("%s%v", limits, err)
	}
}
