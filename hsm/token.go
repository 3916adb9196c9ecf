package hsm

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/miekg/pkcs11"
)

// token is a slot with a token in it.
type token struct {
	slot uint
	info pkcs11.TokenInfo
	err  error // why the slot does not show its token; then info is empty
}

func (t token) initialized() bool { return t.info.Flags&pkcs11.CKF_TOKEN_INITIALIZED != 0 }

func (t token) String() string {
	if t.err != nil {
		return fmt.Sprintf("slot-id=%d unreadable: %s", t.slot, t.err)
	}
	return fmt.Sprintf("token=%q serial=%q slot-id=%d", t.info.Label, t.info.SerialNumber, t.slot)
}

// matches says whether the token has all the attributes that the URI gives.
func (t token) matches(u URI) bool {
	same := func(want, has string) bool { return want == "" || want == has }
	return same(u.Token, t.info.Label) && same(u.Serial, t.info.SerialNumber) && same(u.Manufacturer, t.info.ManufacturerID) &&
		same(u.Model, t.info.Model) && (u.SlotID == nil || *u.SlotID == t.slot)
}

// tokens lists the tokens that are present, those not yet initialised too. A slot that fails is listed with its
// error and fails nothing else: it may be another's dead token.
func tokens(m module) ([]token, error) {
	slots, err := m.GetSlotList(true)
	if err != nil {
		return nil, failed("C_GetSlotList", err)
	}
	list := make([]token, 0, len(slots))
	for _, slot := range slots {
		info, err := m.GetTokenInfo(slot)
		if rvOf(err) == pkcs11.CKR_CRYPTOKI_NOT_INITIALIZED {
			return nil, failed("C_GetTokenInfo", err)
		}
		if err != nil {
			info = pkcs11.TokenInfo{}
		}
		list = append(list, token{slot, info, failed("C_GetTokenInfo", err)})
	}
	return list, nil
}

// findToken returns the one initialised token that has all the attributes of the URI.
//
// Errors: ErrNotFound, unless it may be in a slot that cannot be read, and ErrAmbiguous, listing what is there.
func findToken(m module, u URI) (token, error) {
	list, err := tokens(m)
	if err != nil {
		return token{}, err
	}
	var there, matching []token
	notFound := ErrNotFound
	for _, t := range list {
		if t.err != nil {
			notFound = t.err
		} else if !t.initialized() {
			continue
		}
		there = append(there, t)
		if t.initialized() && t.matches(u) {
			matching = append(matching, t)
		}
	}
	switch len(matching) {
	case 1:
		return matching[0], nil
	case 0:
		return token{}, fmt.Errorf("token with %s: %w; %s", u.tokenAttributes(), notFound, present("initialised tokens", there))
	}
	return token{}, fmt.Errorf("token with %s: %w, add serial or slot-id to the URI; %s", u.tokenAttributes(), ErrAmbiguous, present("matching tokens", matching))
}

// tokenAttributes shows what the URI says of the token.
func (u URI) tokenAttributes() string {
	only := URI{Token: u.Token, Manufacturer: u.Manufacturer, Model: u.Model, Serial: u.Serial, SlotID: u.SlotID}.String()
	if only == uriScheme {
		return "any attributes"
	}
	return strings.TrimPrefix(only, uriScheme)
}

// present lists what an operator can choose from.
func present[T fmt.Stringer](what string, list []T) string {
	if len(list) == 0 {
		return "there are no " + what
	}
	items := make([]string, len(list))
	for i, item := range list {
		items[i] = "[" + item.String() + "]"
	}
	return what + ": " + strings.Join(items, ", ")
}

// login logs the user in, for all sessions of the process (PKCS#11 v2.40 base, section 5.6), where the token or
// the URI asks for it.
//
// Errors: ErrPIN where the token refused the PIN, and where one more wrong one would lock it.
func login(m module, h pkcs11.SessionHandle, t token, u URI, log *slog.Logger) error {
	flags := t.info.Flags
	needed := flags&pkcs11.CKF_LOGIN_REQUIRED != 0
	keypad := flags&pkcs11.CKF_PROTECTED_AUTHENTICATION_PATH != 0
	if u.PINSource == "" && !needed {
		return nil
	}
	if err := checkPINFlags(flags); err != nil {
		return fmt.Errorf("log in: %w", err)
	}
	if flags&pkcs11.CKF_USER_PIN_COUNT_LOW != 0 {
		log.Warn("a wrong PIN was tried on the token since the last login", "token", t.info.Label)
	}
	var pin string
	var err error
	switch {
	case u.PINSource != "":
		pin, err = u.readPIN()
	case !keypad:
		err = errors.New("the token requires a login: add pin-source=file:/path to the URI")
	}
	if err != nil {
		return fmt.Errorf("log in: %w", err)
	}
	err = m.Login(h, pkcs11.CKU_USER, pin)
	if rvOf(err) == pkcs11.CKR_USER_ALREADY_LOGGED_IN {
		return nil
	}
	if err != nil {
		return fmt.Errorf("log in: %w", pinError(failed("C_Login", err)))
	}
	return nil
}

// checkPINFlags refuses to log in where a PIN that turned out wrong would cost the token.
func checkPINFlags(flags uint) error {
	switch {
	case flags&pkcs11.CKF_USER_PIN_LOCKED != 0:
		return &refusedPIN{remedy: "CKF_USER_PIN_LOCKED: the token has locked the user PIN; its security officer must set a new one"}
	case flags&pkcs11.CKF_USER_PIN_FINAL_TRY != 0:
		return &refusedPIN{remedy: "CKF_USER_PIN_FINAL_TRY: one more wrong PIN locks the token, so it is not tried; " +
			"log in once by hand with the token's own tool to reset the count, then restart"}
	}
	return nil
}

// loggedIn says whether the session's token has its user logged in.
func loggedIn(m module, h pkcs11.SessionHandle) (bool, error) {
	state, err := m.GetSessionInfo(h)
	if err != nil {
		return false, failed("C_GetSessionInfo", err)
	}
	return state.State == pkcs11.CKS_RO_USER_FUNCTIONS || state.State == pkcs11.CKS_RW_USER_FUNCTIONS, nil
}
