package hsm

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/miekg/pkcs11"

	"github.com/attestd/attestd/appliance"
)

var (
	// ErrPIN is wrapped by an error when the token refused the PIN, or when trying the PIN could lock the token. A
	// Signer then fails until it is reopened: it never tries a wrong PIN twice.
	ErrPIN = errors.New("the PIN was not accepted")
	// ErrNotFound is wrapped when no token or no key has all attributes of the URI.
	ErrNotFound = errors.New("not found")
	// ErrNoToken is wrapped in addition to ErrNotFound when the module shows no token at all, not even an uninitialised
	// one: it cannot reach its device or its server.
	ErrNoToken = errors.New("the module shows no token")
	// ErrOtherKeys is wrapped in addition to ErrNotFound when the token has keys, but none with the URI's object and
	// id: the URI is more likely to be wrong than the key to be missing.
	ErrOtherKeys = errors.New("the token has other keys")
	// ErrAmbiguous is wrapped when several tokens or keys have all attributes of the URI.
	ErrAmbiguous = errors.New("ambiguous")
	// ErrWrongKey is wrapped when a signature of the token does not verify.
	ErrWrongKey = errors.New("the token signed with another key or returned a wrong signature")
	// ErrOtherKey is wrapped when one of several tokens has a different key than the others, or than expected.
	ErrOtherKey = errors.New("another key than expected")
	// ErrExists is wrapped when a key with that label already exists.
	ErrExists = errors.New("exists already")
	// ErrLost is wrapped by the errors of a Signer after a fault that only reloading the module can repair.
	ErrLost = errors.New("the module must be reloaded")
	// ErrClosed is wrapped by the errors of a Signer after Close.
	ErrClosed = errors.New("the signer is closed")
)

// callError is the error of a PKCS#11 function that did not return CKR_OK.
type callError struct {
	function string
	rv       pkcs11.Error
}

func (e *callError) Error() string { return e.function + ": " + rvName(e.rv) }

func (e *callError) Unwrap() error { return e.rv }

// failed adds the name of the PKCS#11 function to err. It returns nil if err is nil.
func failed(function string, err error) error {
	if err == nil {
		return nil
	}
	if rv, ok := errors.AsType[pkcs11.Error](err); ok {
		return &callError{function, rv}
	}
	return fmt.Errorf("%s: %w", function, err)
}

// rvName returns the name CKR_… of a value, or the number if PKCS#11 v2.40 has no name for it: vendors define their
// own.
func rvName(rv pkcs11.Error) string {
	text := rv.Error()
	if name := text[strings.LastIndex(text, " ")+1:]; strings.HasPrefix(name, "CKR_") {
		return name
	}
	return fmt.Sprintf("CKR 0x%08X", uint(rv))
}

// rvOf returns the CK_RV that err wraps, CKR_OK if it wraps no CK_RV.
func rvOf(err error) uint {
	rv, _ := errors.AsType[pkcs11.Error](err)
	return uint(rv)
}

// Unavailable returns CodeHSMUnavailable. Clients see only this code; the cause is for the operator.
func Unavailable(cause error, retryAfter time.Duration) error {
	e := appliance.Errorf(appliance.CodeHSMUnavailable, "the HSM is not available").Because(cause)
	e.RetryAfter = retryAfter
	return e
}

// TimedOut returns CodeTimeout, for a wait that ended with the context of its caller.
func TimedOut(waitingFor string, cause error) error {
	e := appliance.Errorf(appliance.CodeTimeout,
		"the HSM did not answer in time").Because(fmt.Errorf("wait for %s: %w", waitingFor, cause))
	e.RetryAfter = time.Second
	return e
}
