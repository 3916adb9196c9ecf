package hsm_test

import (
	"errors"
	"sync"
	"testing"

	"github.com/miekg/pkcs11"

	"github.com/attestd/attestd/hsm"
)

// faulty injects faults between the package and a real SoftHSM. It injects faults that real tokens have and SoftHSM
// does not. It fails the test for calls that would crash a module: two concurrent calls on one session, and closing a
// session or finalising the module during a call.
//
// After C_Initialize SoftHSM returns the same handles again, so that stale ones seem to work. faulty returns every
// handle only once and rejects stale ones, as real tokens do.
type faulty struct {
	hsm.Library
	t testing.TB

	mu       sync.Mutex
	calls    map[string]int
	inside   int // calls inside the module
	most     int // concurrent calls of C_Sign
	signing  int
	next     uint
	slots    map[uint]uint // returned handle -> real slot
	sessions map[pkcs11.SessionHandle]*faultySession
	objects  map[pkcs11.ObjectHandle]pkcs11.ObjectHandle

	// Set before or, with set, while the module is in use.
	before    func(function string) error                        // returns an error to replace the call
	tokenInfo func(*pkcs11.TokenInfo) error                      // changes the result of C_GetTokenInfo
	attribute func(attribute uint, value []byte) ([]byte, error) // changes the result of C_GetAttributeValue
	signature func(signature []byte) []byte                      // changes the result of C_Sign
	login     func(pin string)                                   // receives the PIN
	hide      func(template []*pkcs11.Attribute) bool            // selects searches that return no objects
	noSlots   bool                                               // the module shows no slots
}

type faultySession struct {
	real   pkcs11.SessionHandle
	inside bool
	hidden bool
}

func newFaulty(t testing.TB) *faulty {
	return &faulty{t: t, calls: make(map[string]int)}
}

func (f *faulty) wrap(m hsm.Library) hsm.Library {
	f.Library = m
	f.forget()
	return f
}

// forget makes all handles stale.
func (f *faulty) forget() {
	f.slots = make(map[uint]uint)
	f.sessions = make(map[pkcs11.SessionHandle]*faultySession)
	f.objects = make(map[pkcs11.ObjectHandle]pkcs11.ObjectHandle)
}

func (f *faulty) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

func (f *faulty) count(function string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls[function]
}

// staleObjects invalidates all object handles, as a logout does on many tokens.
func (f *faulty) staleObjects() {
	f.set(func() { f.objects = make(map[pkcs11.ObjectHandle]pkcs11.ObjectHandle) })
}

// staleSessions invalidates all sessions and closes those outside a call. Closing the last one logs out of the token.
func (f *faulty) staleSessions() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range f.sessions {
		if !s.inside {
			_ = f.Library.CloseSession(s.real)
		}
	}
	f.sessions = make(map[pkcs11.SessionHandle]*faultySession)
}

// call runs one function of the module on a session. h is 0 for functions without a session.
func (f *faulty) call(function string, h pkcs11.SessionHandle, run func(*faultySession) error) error {
	s, err := f.enter(function, h)
	if err != nil {
		return err
	}
	defer f.leave(function, s)
	f.mu.Lock()
	before := f.before
	f.mu.Unlock()
	if before != nil {
		if err := before(function); err != nil {
			return err
		}
	}
	return run(s)
}

func (f *faulty) enter(function string, h pkcs11.SessionHandle) (*faultySession, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls[function]++
	var s *faultySession
	if h != 0 {
		if s = f.sessions[h]; s == nil {
			return nil, pkcs11.Error(pkcs11.CKR_SESSION_HANDLE_INVALID)
		}
		if s.inside {
			f.t.Errorf("%s on a session that another call is inside of", function)
		}
		s.inside = true
	}
	if function == "C_Finalize" && f.inside > 0 {
		f.t.Errorf("C_Finalize while %d calls are inside the module", f.inside)
	}
	f.inside++
	if function == "C_Sign" {
		f.signing++
		f.most = max(f.most, f.signing)
	}
	return s, nil
}

func (f *faulty) leave(function string, s *faultySession) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.inside--
	if function == "C_Sign" {
		f.signing--
	}
	if s != nil {
		s.inside = false
	}
}

func (f *faulty) Initialize(o ...pkcs11.InitializeOption) error {
	return f.call("C_Initialize", 0, func(*faultySession) error { return f.Library.Initialize(o...) })
}

func (f *faulty) Finalize() error {
	return f.call("C_Finalize", 0, func(*faultySession) error {
		f.set(f.forget)
		return f.Library.Finalize()
	})
}

func (f *faulty) GetSlotList(present bool) ([]uint, error) {
	var slots []uint
	err := f.call("C_GetSlotList", 0, func(*faultySession) error {
		real, err := f.Library.GetSlotList(present)
		f.set(func() {
			for _, slot := range real {
				if f.noSlots {
					return
				}
				slots = append(slots, f.slotFor(slot))
			}
		})
		return err
	})
	return slots, err
}

func (f *faulty) slotFor(real uint) uint {
	for given, known := range f.slots {
		if known == real {
			return given
		}
	}
	f.next++
	f.slots[f.next] = real
	return f.next
}

func (f *faulty) realSlot(given uint) (uint, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	real, known := f.slots[given]
	if !known {
		return 0, pkcs11.Error(pkcs11.CKR_SLOT_ID_INVALID)
	}
	return real, nil
}

func (f *faulty) GetTokenInfo(slot uint) (info pkcs11.TokenInfo, err error) {
	err = f.call("C_GetTokenInfo", 0, func(*faultySession) error {
		real, err := f.realSlot(slot)
		if err != nil {
			return err
		}
		info, err = f.Library.GetTokenInfo(real)
		if f.tokenInfo != nil {
			f.set(func() { err = errors.Join(err, f.tokenInfo(&info)) })
		}
		return err
	})
	return info, err
}

func (f *faulty) GetMechanismList(slot uint) (list []*pkcs11.Mechanism, err error) {
	real, err := f.realSlot(slot)
	if err != nil {
		return nil, err
	}
	return f.Library.GetMechanismList(real)
}

func (f *faulty) InitToken(slot uint, pin, label string) error {
	return f.call("C_InitToken", 0, func(*faultySession) error {
		real, err := f.realSlot(slot)
		if err != nil {
			return err
		}
		return f.Library.InitToken(real, pin, label)
	})
}

func (f *faulty) OpenSession(slot uint, flags uint) (given pkcs11.SessionHandle, err error) {
	err = f.call("C_OpenSession", 0, func(*faultySession) error {
		real, err := f.realSlot(slot)
		if err != nil {
			return err
		}
		h, err := f.Library.OpenSession(real, flags)
		if err != nil {
			return err
		}
		f.set(func() {
			f.next++
			given = pkcs11.SessionHandle(f.next)
			f.sessions[given] = &faultySession{real: h}
		})
		return nil
	})
	return given, err
}

func (f *faulty) CloseSession(h pkcs11.SessionHandle) error {
	return f.call("C_CloseSession", h, func(s *faultySession) error {
		f.set(func() { delete(f.sessions, h) })
		return f.Library.CloseSession(s.real)
	})
}

func (f *faulty) GetSessionInfo(h pkcs11.SessionHandle) (info pkcs11.SessionInfo, err error) {
	err = f.call("C_GetSessionInfo", h, func(s *faultySession) error {
		info, err = f.Library.GetSessionInfo(s.real)
		return err
	})
	return info, err
}

func (f *faulty) Login(h pkcs11.SessionHandle, user uint, pin string) error {
	if f.login != nil {
		f.login(pin)
	}
	return f.call("C_Login", h, func(s *faultySession) error { return f.Library.Login(s.real, user, pin) })
}

func (f *faulty) Logout(h pkcs11.SessionHandle) error {
	return f.call("C_Logout", h, func(s *faultySession) error { return f.Library.Logout(s.real) })
}

func (f *faulty) InitPIN(h pkcs11.SessionHandle, pin string) error {
	return f.call("C_InitPIN", h, func(s *faultySession) error { return f.Library.InitPIN(s.real, pin) })
}

func (f *faulty) FindObjectsInit(h pkcs11.SessionHandle, template []*pkcs11.Attribute) error {
	return f.call("C_FindObjectsInit", h, func(s *faultySession) error {
		f.set(func() { s.hidden = f.hide != nil && f.hide(template) })
		return f.Library.FindObjectsInit(s.real, template)
	})
}

func (f *faulty) FindObjects(h pkcs11.SessionHandle, most int) (given []pkcs11.ObjectHandle, more bool, err error) {
	err = f.call("C_FindObjects", h, func(s *faultySession) error {
		found, _, err := f.Library.FindObjects(s.real, most)
		f.set(func() {
			for _, o := range found {
				if !s.hidden {
					f.next++
					f.objects[pkcs11.ObjectHandle(f.next)] = o
					given = append(given, pkcs11.ObjectHandle(f.next))
				}
			}
		})
		return err
	})
	return given, false, err
}

func (f *faulty) FindObjectsFinal(h pkcs11.SessionHandle) error {
	return f.call("C_FindObjectsFinal", h, func(s *faultySession) error { return f.Library.FindObjectsFinal(s.real) })
}

func (f *faulty) realObject(given pkcs11.ObjectHandle, stale uint) (pkcs11.ObjectHandle, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	real, known := f.objects[given]
	if !known {
		return 0, pkcs11.Error(stale)
	}
	return real, nil
}

func (f *faulty) GetAttributeValue(h pkcs11.SessionHandle, o pkcs11.ObjectHandle,
	a []*pkcs11.Attribute) (got []*pkcs11.Attribute, err error) {
	err = f.call("C_GetAttributeValue", h, func(s *faultySession) error {
		real, err := f.realObject(o, pkcs11.CKR_OBJECT_HANDLE_INVALID)
		if err != nil {
			return err
		}
		got, err = f.Library.GetAttributeValue(s.real, real, a)
		if f.attribute != nil && err == nil {
			got[0].Value, err = f.attribute(a[0].Type, got[0].Value)
		}
		return err
	})
	return got, err
}

func (f *faulty) GenerateKeyPair(h pkcs11.SessionHandle, m []*pkcs11.Mechanism, public,
	private []*pkcs11.Attribute) (a, b pkcs11.ObjectHandle, err error) {
	err = f.call("C_GenerateKeyPair", h, func(s *faultySession) error {
		a, b, err = f.Library.GenerateKeyPair(s.real, m, public, private)
		return err
	})
	return a, b, err
}

func (f *faulty) SignInit(h pkcs11.SessionHandle, m []*pkcs11.Mechanism, key pkcs11.ObjectHandle) error {
	return f.call("C_SignInit", h, func(s *faultySession) error {
		real, err := f.realObject(key, pkcs11.CKR_KEY_HANDLE_INVALID)
		if err != nil {
			return err
		}
		return f.Library.SignInit(s.real, m, real)
	})
}

func (f *faulty) Sign(h pkcs11.SessionHandle, message []byte) (signature []byte, err error) {
	err = f.call("C_Sign", h, func(s *faultySession) error {
		signature, err = f.Library.Sign(s.real, message)
		f.set(func() {
			if f.signature != nil && err == nil {
				signature = f.signature(signature)
			}
		})
		return err
	})
	return signature, err
}

// times returns a before that fails the function with this value n times.
func times(n int, function string, rv uint) func(string) error {
	var mu sync.Mutex
	return func(called string) error {
		mu.Lock()
		defer mu.Unlock()
		if called != function || n == 0 {
			return nil
		}
		n--
		return pkcs11.Error(rv)
	}
}
