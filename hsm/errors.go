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
	// ErrPIN is in the chain of an error when the token refused the PIN, or when trying it could lock the token.
	// It is permanent until the signer is opened anew: a wrong PIN is never tried twice.
	ErrPIN = errors.New("the PIN was not accepted")
	// ErrNotFound is in the chain when no token or no key has all the attributes of the URI.
	ErrNotFound = errors.New("not found")
	// ErrAmbiguous is in the chain when several tokens or keys have all the attributes of the URI.
	ErrAmbiguous = errors.New("ambiguous")
	// ErrWrongKey is in the chain when a signature did not verify under the key it was asked of.
	ErrWrongKey = errors.New("the token signed with another key, or wrongly")
	// ErrExists is in the chain when a key of that label exists already.
	ErrExists = errors.New("exists already")
	// ErrClosed is in the chain after Close.
	ErrClosed = errors.New("the signer is closed")
)

// callError is a PKCS#11 function that did not return CKR_OK.
type callError struct {
	function string
	rv       pkcs11.Error
}

func (e *callError) Error() string { return e.function + ": " + rvName(e.rv) }

func (e *callError) Unwrap() error { return e.rv }

// failed names the function in err, or returns nil for nil.
func failed(function string, err error) error {
	if err == nil {
		return nil
	}
	if rv, ok := errors.AsType[pkcs11.Error](err); ok {
		return &callError{function, rv}
	}
	return fmt.Errorf("%s: %w", function, err)
}

// rvName returns CKR_… where PKCS#11 v2.40 names the value, else the number: vendors define their own.
func rvName(rv pkcs11.Error) string {
	text := rv.Error()
	if name := text[strings.LastIndex(text, " ")+1:]; strings.HasPrefix(name, "CKR_") {
		return name
	}
	return fmt.Sprintf("CKR 0x%08X", uint(rv))
}

// rvOf returns the CK_RV in err's chain, or CKR_OK where there is none.
func rvOf(err error) uint {
	rv, _ := errors.AsType[pkcs11.Error](err)
	return uint(rv)
}

// unavailable is what a client of the domain gets for a fault of the HSM; the fault itself is for the operator.
func unavailable(cause error, retryAfter time.Duration) error {
	e := appliance.Errorf(appliance.CodeHSMUnavailable, "the HSM is not available").Because(cause)
	e.RetryAfter = retryAfter
	return e
}

func timedOut(waitingFor string, cause error) error {
	e := appliance.Errorf(appliance.CodeTimeout, "the HSM did not answer in time").Because(fmt.Errorf("wait for %s: %w", waitingFor, cause))
	e.RetryAfter = time.Second
	return e
}
