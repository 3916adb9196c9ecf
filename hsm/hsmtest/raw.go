package hsmtest

import (
	"bytes"
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"
)

// RawResult is the performance of a module in a C program that only signs.
type RawResult struct {
	PerSecond float64
	CPU       time.Duration // of a signature, whole process
}

// Raw signs in a separate process for d, with this many sessions and one thread per session.
func Raw(tb testing.TB, token *Token, sessions int, d time.Duration) (r RawResult) {
	tb.Helper()
	program, err := rawProgram()
	if err != nil {
		tb.Fatalf("hsmtest: %v", err)
	}
	path := filepath.Join(tb.TempDir(), "rawsign")
	// a process started by another test at the same time would have the file open for writing: ETXTBSY
	syscall.ForkLock.RLock()
	err = os.WriteFile(path, program, 0o700)
	syscall.ForkLock.RUnlock()
	if err != nil {
		tb.Fatal(err)
	}
	cmd := exec.CommandContext(tb.Context(), path, token.URI.ModulePath, token.PINFile, strconv.Itoa(sessions),
		strconv.FormatInt(d.Milliseconds(), 10))
	cmd.Env = append(os.Environ(), token.Env...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		tb.Fatalf("hsmtest: raw signatures: %v: %s", err, stderr.Bytes())
	}
	var n, ns, cpu int64
	if _, err := fmt.Sscan(string(out), &n, &ns, &cpu); err != nil || n == 0 {
		tb.Fatalf("hsmtest: raw signatures: %q: %v", out, err)
	}
	return RawResult{PerSecond: float64(n) / time.Duration(ns).Seconds(), CPU: time.Duration(cpu / n)}
}

//go:embed testdata/rawsign.c
var rawSource []byte

// rawProgram returns the program.
var rawProgram = sync.OnceValues(func() ([]byte, error) {
	headers, err := moduleDir("github.com/miekg/pkcs11")
	if err != nil {
		return nil, err
	}
	return compile(rawSource, "-I", headers)
})
