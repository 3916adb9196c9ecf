package hsmtest

import (
	_ "embed"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"
)

// Faults makes a PKCS#11 module fail. The module in the token's URI is a C module of this package, which forwards every
// call to the real one. Faults and the module share a mapped file, so it does not matter which process loads the
// module, or whether it is already loaded. Without faults, a call takes some 0.1 us longer.
//
// Functions are named as in PKCS#11: "C_Sign". A call that only asks for the length of a signature is not counted and
// has no faults. Calls that would crash many modules fail the test at its end: two concurrent calls on one session, and
// C_Finalize during another call.
type Faults struct {
	Module string // path of the module; the URI of Token names it

	tb      testing.TB
	control *control
	mu      sync.Mutex
	rules   uint64 // number of rules used so far
}

// Fault is a fault in calls of a function. The zero Fault has no effect.
type Fault struct {
	After  int     // unaffected calls at first
	Times  int     // affected calls after that; 0 means all
	Chance float64 // probability per call; 0 means every call

	Delay  time.Duration
	Leak   int    // bytes that are never freed
	Crash  bool   // a segmentation fault
	Hang   bool   // until Release
	Error  uint   // CK_RV that is returned instead of calling the real function
	Answer Answer // of C_Sign
}

// Answer is the kind of wrong answer of C_Sign.
type Answer uint64

// Answers, by the module's numbers.
const (
	Right       Answer = 0
	BitFlipped  Answer = 4
	OtherDigest Answer = 8 // a valid signature of another digest
	TooShort    Answer = 16
)

// Other numbers of the module.
const (
	hangs    = 1
	crashes  = 2
	all      = math.MaxUint64
	complete = 0x31746c7561666364 // control.magic
)

// control mirrors struct control of the module.
type control struct {
	magic, changes, restarts, limit, down, releases, hung, misuse atomic.Uint64

	functions [80]struct {
		first, calls atomic.Uint64
		_            [6]uint64
	}
	processes [64]struct{ pid, sessions atomic.Uint64 }
	rules     [8192]struct{ next, skip, left, chance, delay, rv, what, leak atomic.Uint64 }
}

// FaultModule is New with faults injected before the token.
func FaultModule(tb testing.TB) (*Token, *Faults) {
	tb.Helper()
	token := New(tb)
	faults := NewFaults(tb, token.URI.ModulePath)
	token.URI.ModulePath = faults.Module
	return token, faults
}

// NewFaults makes a module that wraps the real one. When the test ends, all faults end and hanging calls continue.
func NewFaults(tb testing.TB, real string) *Faults {
	tb.Helper()
	library, err := compiled()
	if err != nil {
		tb.Fatalf("hsmtest: %v", err)
	}
	f := &Faults{tb: tb, Module: filepath.Join(tb.TempDir(), "faults.so")}
	if err := f.place(library, real); err != nil {
		tb.Fatalf("hsmtest: %v", err)
	}
	tb.Cleanup(func() {
		f.Clear()
		if n := f.control.misuse.Load(); n > 0 {
			tb.Errorf(
				"%d calls would have crashed many modules: two at a time on one session, or C_Finalize during a call",
				n)
		}
	})
	return f
}

// place copies the library, because only a copy has separate variables, and creates its files next to it.
func (f *Faults) place(library []byte, real string) error {
	if err := os.WriteFile(f.Module, library, 0o700); err != nil {
		return err
	}
	if err := os.Symlink(real, f.Module+".real"); err != nil {
		return err
	}
	mapped, err := mapFile(f.Module+".control", unsafe.Sizeof(control{}))
	if err != nil {
		return err
	}
	f.control = (*control)(mapped) // stays mapped: a call that hangs may outlive the test
	f.control.magic.Store(complete)
	return nil
}

// Set replaces the function's faults. They apply to a call in this order, up to the first that returns an error.
// Without arguments the function works again, except for calls that already hang.
func (f *Faults) Set(function string, faults ...Fault) {
	f.tb.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	first := uint64(0)
	for i := len(faults) - 1; i >= 0; i-- {
		first = f.add(faults[i], first)
	}
	f.control.functions[f.index(function)].first.Store(first)
}

// add writes a rule and returns its number. Calls may still be reading earlier rules, so these are reused only much
// later.
func (f *Faults) add(fault Fault, next uint64) uint64 {
	place := f.rules % uint64(len(f.control.rules))
	f.rules++
	r := &f.control.rules[place]
	r.next.Store(next)
	r.skip.Store(uint64(fault.After))
	r.left.Store(all)
	if fault.Times > 0 {
		r.left.Store(uint64(fault.Times))
	}
	r.chance.Store(all)
	if fault.Chance > 0 && fault.Chance < 1 {
		r.chance.Store(uint64(fault.Chance * math.MaxUint64))
	}
	r.delay.Store(uint64(fault.Delay))
	r.rv.Store(uint64(fault.Error))
	r.leak.Store(uint64(fault.Leak))
	what := uint64(fault.Answer)
	if fault.Hang {
		what |= hangs
	}
	if fault.Crash {
		what |= crashes
	}
	r.what.Store(what)
	return place + 1
}

// Clear ends all faults: the faults of functions, Down, LimitSessions, and hanging.
func (f *Faults) Clear() {
	for _, i := range functions() {
		f.control.functions[i].first.Store(0)
	}
	f.Up()
	f.LimitSessions(-1)
	f.Release()
}

// Release lets all calls that hang now continue.
func (f *Faults) Release() { f.control.releases.Add(1) }

// Hung returns how many calls have hung so far, including calls that still hang.
func (f *Faults) Hung() int { return int(f.control.hung.Load()) }

// Calls returns how often the function has been called.
func (f *Faults) Calls(function string) int {
	f.tb.Helper()
	return int(f.control.functions[f.index(function)].calls.Load())
}

// Restart ends all sessions and logins and invalidates all handles, as a restart of the token does.
func (f *Faults) Restart() {
	f.control.restarts.Add(1)
	f.control.changes.Add(1)
}

// Down makes every function except C_Finalize return rv, as if the token's server were gone. Sessions stay, unless
// Restart ends them.
func (f *Faults) Down(rv uint) { f.control.down.Store(uint64(rv)) }

// Up ends Down.
func (f *Faults) Up() { f.control.down.Store(0) }

// LimitSessions makes the token allow n sessions in all processes together, and ends the newest open sessions beyond n.
// -1 means no limit.
func (f *Faults) LimitSessions(n int) {
	f.control.limit.Store(uint64(n + 1))
	f.control.changes.Add(1)
}

// Sessions returns how many sessions are open in the processes that have the module loaded.
func (f *Faults) Sessions() int {
	n := 0
	for i := range f.control.processes {
		p := &f.control.processes[i]
		if pid := int(p.pid.Load()); pid != 0 && syscall.Kill(pid, 0) == nil {
			n += int(p.sessions.Load())
		}
	}
	return n
}

func (f *Faults) index(function string) int {
	f.tb.Helper()
	i, known := functions()[function]
	if !known {
		f.tb.Fatalf("hsmtest: PKCS#11 has no function %q", function)
	}
	return i
}

//go:embed faultmodule/module.c
var source []byte

// functions are the indexes of the functions in the module's list.
var functions = sync.OnceValue(func() map[string]int {
	places := make(map[string]int)
	for i, match := range regexp.MustCompile(`F\((C_\w+), "`).FindAllSubmatch(source, -1) {
		places[string(match[1])] = i
	}
	return places
})

// compiled returns the library.
var compiled = sync.OnceValues(func() ([]byte, error) { return compile(source, shared...) })
