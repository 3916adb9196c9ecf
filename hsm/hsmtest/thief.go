package hsmtest

import (
	_ "embed"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// Thief makes a module that tries the acts when a process loads it, then works as the real one does. An act is a word
// and its object, such as "read /etc/shadow"; thiefmodule/module.c has the words. The process prints "thief: ACT: done"
// or "thief: ACT: ERROR" to standard error for each, and "thief: has tried all" at the end.
func Thief(tb testing.TB, real string, acts ...string) (module string) {
	tb.Helper()
	library, err := compiledThief()
	if err != nil {
		tb.Fatalf("hsmtest: %v", err)
	}
	module = filepath.Join(tb.TempDir(), "thief.so")
	if err := os.WriteFile(module, library, 0o700); err != nil {
		tb.Fatalf("hsmtest: %v", err)
	}
	if err := os.WriteFile(module+".targets", []byte(strings.Join(acts, "\n")+"\n"), 0o600); err != nil {
		tb.Fatalf("hsmtest: %v", err)
	}
	if err := os.Symlink(real, module+".real"); err != nil {
		tb.Fatalf("hsmtest: %v", err)
	}
	return module
}

//go:embed thiefmodule/module.c
var thief []byte

var compiledThief = sync.OnceValues(func() ([]byte, error) { return compile(thief, shared...) })
