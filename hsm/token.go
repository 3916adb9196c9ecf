package hsm

import (
	"fmt"
	"strings"

	"github.com/miekg/pkcs11"
)

// token is a slot with a token in it.
type token struct {
	slot uint
	info pkcs11.TokenInfo
	err  error // of C_GetTokenInfo; info is then empty
}

func (t token) initialized() bool { return t.info.Flags&pkcs11.CKF_TOKEN_INITIALIZED != 0 }

func (t token) String() string {
	if t.err != nil {
		return fmt.Sprintf("slot-id=%d unreadable: %s", t.slot, t.err)
	}
	return fmt.Sprintf("token=%q serial=%q slot-id=%d", t.info.Label, t.info.SerialNumber, t.slot)
}

// matches reports whether the token has all attributes of the URI.
func (t token) matches(u URI) bool {
	same := func(want, has string) bool { return want == "" || want == has }
	return same(u.Token, t.info.Label) && same(u.Serial, t.info.SerialNumber) &&
		same(u.Manufacturer, t.info.ManufacturerID) &&
		same(u.Model, t.info.Model) && (u.SlotID == nil || *u.SlotID == t.slot)
}

// tokens lists the tokens that are present, including uninitialised ones. A slot that cannot be read is listed with its
// error, because it may hold a token that is not ours.
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

// findToken returns the one initialised token that has all attributes of the URI.
//
// Errors, which list the existing tokens: ErrAmbiguous; ErrNotFound, also with ErrNoToken; the error of an unreadable
// slot, which may hold the token.
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
		if len(list) == 0 {
			notFound = fmt.Errorf("%w: %w", ErrNotFound, ErrNoToken)
		}
		return token{},
			fmt.Errorf("token with %s: %w; %s", u.tokenAttributes(), notFound, present("initialised tokens", there))
	}
	return token{}, fmt.Errorf("token with %s: %w, add serial or slot-id to the URI; %s", u.tokenAttributes(),
		ErrAmbiguous, present("matching tokens", matching))
}

// tokenAttributes returns the part of the URI that names the token.
func (u URI) tokenAttributes() string {
	only := URI{Token: u.Token, Manufacturer: u.Manufacturer, Model: u.Model, Serial: u.Serial,
		SlotID: u.SlotID}.String()
	if only == uriScheme {
		return "any attributes"
	}
	return strings.TrimPrefix(only, uriScheme)
}

// present lists an operator's choices, for errors.
func present[T fmt.Stringer](what string, list []T) string {
	if len(list) == 0 {
		return "the module shows no " + what
	}
	items := make([]string, len(list))
	for i, item := range list {
		items[i] = "[" + item.String() + "]"
	}
	return what + ": " + strings.Join(items, ", ")
}
