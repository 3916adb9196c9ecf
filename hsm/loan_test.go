package hsm_test

import (
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/attestd/attestd/hsm"
	"github.com/attestd/attestd/hsm/hsmtest"
)

// The words of a lease that a loop in C reads and writes.
func state(l *hsm.Loan) *atomic.Int32  { return (*atomic.Int32)(l.Words()) }
func wanted(l *hsm.Loan) *atomic.Int32 { return (*atomic.Int32)(unsafe.Add(l.Words(), 4)) }

func lending(t *testing.T, sessions int) *hsm.Signer {
	t.Helper()
	s, err := hsm.Open(t.Context(), hsm.Options{URI: hsmtest.New(t).URI, Sessions: sessions})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return s
}

func TestALentSessionThatIsNotInUseIsTakenBack(t *testing.T) {
	t.Parallel()
	s := lending(t, 1)
	l := s.Lend()
	if l == nil || s.Lend() != nil {
		t.Fatal("the one session was not lent, or twice")
	}
	mustSign(t, s)
	if state(l).CompareAndSwap(0, 1) {
		t.Error("the loop could use a session that was taken back")
	}
	s.Return(l)
	if l = s.Lend(); l == nil || s.Lend() != nil {
		t.Error("the session did not come back to the pool once")
	}
}

func TestALentSessionThatIsInUseComesBackWhenItIsWanted(t *testing.T) {
	t.Parallel()
	s := lending(t, 1)
	l := s.Lend()
	state(l).Store(1)
	if n := s.Usage().InUse; n != 1 {
		t.Errorf("%d sessions are in use, want 1", n)
	}
	signed := make(chan error, 1)
	go func() { _, err := s.Sign(t.Context(), randomDigest()); signed <- err }()
	for wanted(l).Load() == 0 {
		select {
		case err := <-signed:
			t.Fatalf("signed while the session was inside another call: %v", err)
		case <-time.After(time.Millisecond):
		}
	}
	if s.Lend() != nil {
		t.Error("a session was lent that another waits for")
	}
	state(l).Store(0)
	s.Return(l)
	if err := <-signed; err != nil {
		t.Error(err)
	}
}

func TestNothingIsLentThroughABindingThatTestsWatch(t *testing.T) {
	t.Parallel()
	s := open(t, newFaulty(t), hsm.Options{URI: hsmtest.New(t).URI, Sessions: 1})
	if s.Lend() != nil {
		t.Error("calls would pass it by")
	}
}

func TestCloseTakesBackWhatIsLent(t *testing.T) {
	t.Parallel()
	s := lending(t, 2)
	l := s.Lend()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	s.Return(l)
	if s.Lend() != nil {
		t.Error("a session was lent after Close")
	}
}
