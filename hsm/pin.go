package hsm

import (
	"errors"
	"fmt"
	"os"

	"github.com/miekg/pkcs11"
)

// ReadPIN reads the PIN from its file. It is called for each login, so that the PIN does not stay in memory. The caller
// wipes the PIN. Its errors never contain the PIN.
func (u URI) ReadPIN() (*PIN, error) {
	path, err := u.PINFile()
	if err != nil {
		return nil, fmt.Errorf("read the PIN: %w", err)
	}
	stat, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("read the PIN: %w", err)
	}
	// The group may read it: systemd provides credentials with mode 0440.
	if stat.Mode().Perm()&0o007 != 0 {
		return nil,
			fmt.Errorf("read the PIN: every user can open %s (mode %04o): chmod 0600 %[1]s", path, stat.Mode().Perm())
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read the PIN: %w", err)
	}
	defer f.Close()
	pin, err := LockPIN(f)
	if err != nil {
		return nil, fmt.Errorf("read the PIN: %s: %w", path, err)
	}
	return pin, nil
}

// login logs in for all sessions of the process (PKCS#11 v2.40 base, section 5.6), if the token or the URI requires it.
//
// Errors: ErrPIN if the token refused the PIN, or if one more wrong PIN would lock the token.
func login(m module, h pkcs11.SessionHandle, t token, options Options) error {
	flags := t.info.Flags
	needed := flags&pkcs11.CKF_LOGIN_REQUIRED != 0
	if options.URI.PINSource == "" && !needed {
		return nil
	}
	if err := checkPINFlags(flags); err != nil {
		return fmt.Errorf("log in: %w", err)
	}
	if flags&pkcs11.CKF_USER_PIN_COUNT_LOW != 0 {
		options.Logger.Warn("a wrong PIN was entered on the token since the last login", "token", t.info.Label)
	}
	pin, outcome, err := options.pinFor(t)
	if err != nil {
		return fmt.Errorf("log in: %w", err)
	}
	defer pin.Wipe()
	if pin != nil && pin.unlocked != nil {
		options.Logger.Warn("the PIN could not be locked in memory and may be swapped to disk until the login is "+
			"done. Allow mlock (RLIMIT_MEMLOCK, CAP_IPC_LOCK)",
			"error", pin.unlocked.Error())
	}
	err = m.Login(h, pkcs11.CKU_USER, pin.text())
	if rvOf(err) == pkcs11.CKR_USER_ALREADY_LOGGED_IN {
		err = nil
	}
	if err != nil {
		err = fmt.Errorf("log in: %w", pinError(failed("C_Login", err)))
	}
	outcome(err)
	return err
}

// pinFor returns the PIN for a login to the token, and a function that must be called with the result of the login.
func (o Options) pinFor(t token) (pin *PIN, outcome func(error), err error) {
	outcome = func(error) {}
	switch {
	case o.URI.PINSource != "" && o.PIN != nil:
		return o.PIN()
	case o.URI.PINSource != "":
		pin, err = o.URI.ReadPIN()
	// otherwise the PIN is typed into the token's own keypad
	case t.info.Flags&pkcs11.CKF_PROTECTED_AUTHENTICATION_PATH == 0:
		err = errors.New("the token requires a login: add pin-source=file:/path to the URI")
	}
	return pin, outcome, err
}

// checkPINFlags returns ErrPIN if the PIN is locked, or would be locked by one more wrong PIN.
func checkPINFlags(flags uint) error {
	switch {
	case flags&pkcs11.CKF_USER_PIN_LOCKED != 0:
		return &refusedPIN{remedy: "CKF_USER_PIN_LOCKED: the token has locked the user PIN; the security officer " +
			"must set a new one"}
	case flags&pkcs11.CKF_USER_PIN_FINAL_TRY != 0:
		return &refusedPIN{remedy: "CKF_USER_PIN_FINAL_TRY: one more wrong PIN locks the token, so attestd does not log in; " +
			"log in once with the vendor's tool to reset the count, then restart"}
	}
	return nil
}

// loggedIn reports whether the user is logged in to the token of the session.
func loggedIn(m module, h pkcs11.SessionHandle) (bool, error) {
	state, err := m.GetSessionInfo(h)
	if err != nil {
		return false, failed("C_GetSessionInfo", err)
	}
	return state.State == pkcs11.CKS_RO_USER_FUNCTIONS || state.State == pkcs11.CKS_RW_USER_FUNCTIONS, nil
}

// pinError turns an error of C_Login into ErrPIN with a remedy. It returns an error unchanged only if the error
// concerns the connection to the token. Such a login is retried, and a retry must never count towards a lock of the
// PIN.
func pinError(err error) error {
	remedy := "the token may have counted this as a wrong PIN, so attestd does not retry it; fix the cause that the " +
		"code names, then restart"
	switch rv := rvOf(err); rv {
	case pkcs11.CKR_PIN_INCORRECT, pkcs11.CKR_PIN_INVALID, pkcs11.CKR_PIN_LEN_RANGE:
		remedy = "put the right PIN into the file that pin-source names and restart; attestd does not retry a wrong " +
			"PIN, because tokens lock after a few of them"
	case pkcs11.CKR_PIN_LOCKED:
		remedy = "the token has locked the user PIN; the security officer must set a new one"
	case pkcs11.CKR_PIN_EXPIRED:
		remedy = "the PIN has expired; set a new one with the vendor's tool, put it into the file that pin-source " +
			"names and restart"
	case pkcs11.CKR_USER_PIN_NOT_INITIALIZED:
		remedy = "the token's user PIN is not set; run attestd hsm init, or have the security officer set it"
	case pkcs11.CKR_OK, // not an error of the token
		pkcs11.CKR_DEVICE_ERROR, pkcs11.CKR_DEVICE_REMOVED, pkcs11.CKR_DEVICE_MEMORY, pkcs11.CKR_HOST_MEMORY,
		pkcs11.CKR_TOKEN_NOT_PRESENT, pkcs11.CKR_TOKEN_NOT_RECOGNIZED, pkcs11.CKR_SLOT_ID_INVALID,
		pkcs11.CKR_SESSION_HANDLE_INVALID, pkcs11.CKR_SESSION_CLOSED, pkcs11.CKR_CRYPTOKI_NOT_INITIALIZED,
		pkcs11.CKR_GENERAL_ERROR, pkcs11.CKR_FUNCTION_FAILED, pkcs11.CKR_FUNCTION_CANCELED:
		return err
	}
	return &refusedPIN{err, remedy}
}

// soError is pinError for the PIN of the security officer.
func soError(err error) error {
	switch rvOf(err) {
	case pkcs11.CKR_PIN_INCORRECT, pkcs11.CKR_PIN_INVALID, pkcs11.CKR_PIN_LEN_RANGE, pkcs11.CKR_PIN_LOCKED:
		return &refusedPIN{err, "the token refused the security officer's PIN; attestd tried it once"}
	}
	return err
}

type refusedPIN struct {
	cause  error // may be nil
	remedy string
}

func (e *refusedPIN) Error() string {
	if e.cause == nil {
		return e.remedy
	}
	return e.cause.Error() + ": " + e.remedy
}

func (e *refusedPIN) Unwrap() []error {
	if e.cause == nil {
		return []error{ErrPIN}
	}
	return []error{ErrPIN, e.cause}
}
