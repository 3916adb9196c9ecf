package hsm

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"

	"github.com/miekg/pkcs11"

	"github.com/attestd/attestd/appliance"
)

// InitOptions configure Init.
type InitOptions struct {
	// URI must have token, object (the label of the key) and pin-source (the file of the user PIN). slot-id or serial
	// selects one of several uninitialised tokens.
	URI URI
	// SOPIN is the PIN of the security officer. Init sets it on a token that it initialises, and uses it to log in to a
	// token that lacks only the user PIN. It may be nil if the token has both.
	SOPIN []byte
	// Logger logs each action, and never a PIN. Nil means no log.
	Logger *slog.Logger

	load func(path string) (module, error) // nil means loadModule
}

// InitResult describes the token and the key after Init.
type InitResult struct {
	TokenCreated bool    `json:"tokenCreated"` // the token was initialised
	Created      bool    `json:"created"`      // the key was generated
	Token        string  `json:"token"`        // label
	Serial       string  `json:"serial"`
	Key          KeyInfo `json:"key"`
}

// KeyInfo describes a key.
type KeyInfo struct {
	Label   string            `json:"label"`
	ID      string            `json:"id"`               // hex
	Address appliance.Address `json:"address,omitzero"` // zero for an Ed25519 key
	// 0x and hex: 65 bytes, SEC 1 uncompressed, or 32 bytes of an Ed25519 key
	PublicKey string `json:"publicKey"`
}

// Init makes sure that the token and the key of the URI exist. If the token does not exist, Init initialises an
// uninitialised one (C_InitToken, C_InitPIN). If the key does not exist, Init generates a secp256k1 key that is
// sensitive and not extractable. Init never reinitialises a token, since that would destroy its keys.
//
// Errors: ErrNotFound if no uninitialised token is left, ErrAmbiguous, ErrPIN.
func Init(ctx context.Context, options InitOptions) (InitResult, error) {
	shared := Options{URI: options.URI, Logger: options.Logger, load: options.load}.withDefaults()
	return await(ctx, func() (InitResult, error) { return provision(shared, options.SOPIN) }, nil)
}

func provision(options Options, soPIN []byte) (result InitResult, err error) {
	u := options.URI
	if u.Token == "" || u.Object == "" || u.PINSource == "" {
		return result, errors.New("initialise a token: the pkcs11 URI must have token, object and pin-source")
	}
	if err := checkLabel("token", u.Token); err != nil {
		return result, err
	}
	_, m, err := options.openModule()
	if err != nil {
		return result, err
	}
	defer func() { _ = m.Finalize() }()
	t, created, err := makeToken(m, u, soPIN)
	if err != nil {
		return result, fmt.Errorf("initialise token %q: %w", u.Token, err)
	}
	result = InitResult{TokenCreated: created, Token: t.info.Label, Serial: t.info.SerialNumber}
	result.Key, result.Created, err = makeKey(m, t, options, false)
	if err != nil {
		return result, fmt.Errorf("open token %q: %w", u.Token, err)
	}
	return result, nil
}

// checkLabel rejects a label that does not fit into CK_TOKEN_INFO. The binding would truncate it.
func checkLabel(what, label string) error {
	const most = 32
	if len(label) == 0 || len(label) > most {
		return fmt.Errorf("the label of a %s must have 1 to %d bytes, not %d", what, most, len(label))
	}
	return nil
}

// makeToken returns the token of the URI. If necessary, it initialises the token and its user PIN.
func makeToken(m module, u URI, soPIN []byte) (t token, created bool, err error) {
	t, err = findToken(m, u)
	if errors.Is(err, ErrNotFound) {
		if t, err = initToken(m, u, soPIN); err != nil {
			return t, false, err
		}
		created = true
	}
	if err != nil || t.info.Flags&pkcs11.CKF_USER_PIN_INITIALIZED != 0 {
		return t, created, err
	}
	// An earlier run may have ended between C_InitToken and C_InitPIN.
	if err := initUserPIN(m, t, u, soPIN); err != nil {
		return t, created, err
	}
	t.info, err = m.GetTokenInfo(t.slot)
	return t, created, failed("C_GetTokenInfo", err)
}

func initToken(m module, u URI, soPIN []byte) (token, error) {
	// Check the PIN file before changing the token: an unreadable file must not leave the token half initialised.
	pin, err := u.ReadPIN()
	if err != nil {
		return token{}, err
	}
	pin.Wipe()
	blank, err := findBlank(m, u)
	if err != nil {
		return token{}, err
	}
	if len(soPIN) == 0 {
		return token{}, errors.New("the token is not initialised, and initialising it needs the security officer's PIN")
	}
	if err := m.InitToken(blank.slot, string(soPIN), u.Token); err != nil {
		return token{}, soError(failed("C_InitToken", err))
	}
	slot := blank.slot
	made, err := findToken(m, URI{Token: u.Token, SlotID: &slot})
	if errors.Is(err, ErrNotFound) { // some modules move the token to a different slot
		made, err = findToken(m, URI{Token: u.Token})
	}
	return made, err
}

// findBlank returns the one uninitialised token that has the attributes of the URI other than the label.
func findBlank(m module, u URI) (token, error) {
	list, err := tokens(m)
	if err != nil {
		return token{}, err
	}
	unlabelled := u
	unlabelled.Token = ""
	var blank []token
	for _, t := range list {
		if t.err == nil && !t.initialized() && t.matches(unlabelled) {
			blank = append(blank, t)
		}
	}
	switch len(blank) {
	case 1:
		return blank[0], nil
	case 0:
		return token{}, fmt.Errorf("uninitialised token: %w; %s", ErrNotFound, present("tokens", list))
	}
	return token{}, fmt.Errorf("uninitialised token: %w, add slot-id to the URI; %s", ErrAmbiguous,
		present("uninitialised tokens", blank))
}

func initUserPIN(m module, t token, u URI, soPIN []byte) error {
	pin, err := u.ReadPIN()
	if err != nil {
		return err
	}
	defer pin.Wipe()
	if len(soPIN) == 0 {
		return errors.New("the token's user PIN is not set, and setting it needs the security officer's PIN")
	}
	h, err := m.OpenSession(t.slot, pkcs11.CKF_SERIAL_SESSION|pkcs11.CKF_RW_SESSION)
	if err != nil {
		return failed("C_OpenSession", err)
	}
	defer func() { _ = m.CloseSession(h) }()
	if err := m.Login(h, pkcs11.CKU_SO, string(soPIN)); err != nil {
		return soError(failed("C_Login", err))
	}
	defer func() { _ = m.Logout(h) }()
	return failed("C_InitPIN", m.InitPIN(h, pin.text()))
}

// Keygen generates another key, with that label, in the token of the URI. It ignores object and id of the URI.
//
// Errors: ErrExists if the token has a key with that label, ErrNotFound, ErrAmbiguous, ErrPIN.
func Keygen(ctx context.Context, options Options, label string) (KeyInfo, error) {
	options = options.withDefaults()
	options.URI.Object, options.URI.ID = label, nil
	return await(ctx, func() (KeyInfo, error) { return keygen(options) }, nil)
}

func keygen(options Options) (KeyInfo, error) {
	if err := checkLabel("key", options.URI.Object); err != nil {
		return KeyInfo{}, err
	}
	_, m, err := options.openModule()
	if err != nil {
		return KeyInfo{}, err
	}
	defer func() { _ = m.Finalize() }()
	t, err := findToken(m, options.URI)
	if err != nil {
		return KeyInfo{}, err
	}
	made, _, err := makeKey(m, t, options, true)
	if err != nil {
		return KeyInfo{}, fmt.Errorf("open token %q: %w", t.info.Label, err)
	}
	return made, nil
}

// makeKey returns the key of the URI. If the key does not exist, makeKey generates it. If mustBeNew is set, an existing
// key is ErrExists. A trial signature must verify, because some tokens generate keys that they cannot use.
func makeKey(m module, t token, options Options, mustBeNew bool) (info KeyInfo, created bool, err error) {
	h, err := m.OpenSession(t.slot, pkcs11.CKF_SERIAL_SESSION|pkcs11.CKF_RW_SESSION)
	if err != nil {
		return info, false, failed("C_OpenSession", err)
	}
	defer func() { _ = m.CloseSession(h) }()
	if err := login(m, h, t, options); err != nil {
		return info, false, err
	}
	k, err := findKey(m, h, options)
	switch {
	case mustBeNew && (err == nil || errors.Is(err, ErrAmbiguous)):
		return info, false, fmt.Errorf("key %q: %w", options.URI.Object, ErrExists)
	case errors.Is(err, ErrNotFound):
		if err := generate(m, h, options); err != nil {
			return info, false, fmt.Errorf("generate key %q: %w", options.URI.Object, err)
		}
		created = true
		k, err = findKey(m, h, options)
	}
	if err != nil {
		return info, created, err
	}
	if err := k.check(options.AllowExtractable); err != nil {
		return info, created, err
	}
	if info, err = describeKeyInfo(m, h, k); err != nil && created {
		err = fmt.Errorf("the token generated key %q but cannot sign with it; remove the key with the vendor's tool, "+
			"and ask the vendor for %s: %w", options.URI.Object, options.Algorithm.name(), err)
	}
	return info, created, err
}

// generate generates a key pair: CKM_EC_KEY_PAIR_GEN (PKCS#11 v2.40 mechanisms, section 2.3.5), or
// CKM_EC_EDWARDS_KEY_PAIR_GEN for Ed25519 (PKCS#11 v3.0). Both keys get the id of the URI, or a random one.
func generate(m module, h pkcs11.SessionHandle, o Options) error {
	u, keyType := o.URI, o.Algorithm.keyType()
	id := u.ID
	if len(id) == 0 {
		id = make([]byte, 16)
		rand.Read(id) // never fails (Go 1.24)
	}
	public := []*pkcs11.Attribute{
		pkcs11.NewAttribute(pkcs11.CKA_CLASS, pkcs11.CKO_PUBLIC_KEY),
		pkcs11.NewAttribute(pkcs11.CKA_KEY_TYPE, keyType),
		pkcs11.NewAttribute(pkcs11.CKA_TOKEN, true),
		pkcs11.NewAttribute(pkcs11.CKA_PRIVATE, false),
		pkcs11.NewAttribute(pkcs11.CKA_VERIFY, true),
		pkcs11.NewAttribute(pkcs11.CKA_EC_PARAMS, o.Algorithm.params()[0]),
		pkcs11.NewAttribute(pkcs11.CKA_LABEL, u.Object),
		pkcs11.NewAttribute(pkcs11.CKA_ID, id),
	}
	private := []*pkcs11.Attribute{
		pkcs11.NewAttribute(pkcs11.CKA_CLASS, pkcs11.CKO_PRIVATE_KEY),
		pkcs11.NewAttribute(pkcs11.CKA_KEY_TYPE, keyType),
		pkcs11.NewAttribute(pkcs11.CKA_TOKEN, true),
		pkcs11.NewAttribute(pkcs11.CKA_PRIVATE, true),
		pkcs11.NewAttribute(pkcs11.CKA_SENSITIVE, true),
		pkcs11.NewAttribute(pkcs11.CKA_EXTRACTABLE, false),
		pkcs11.NewAttribute(pkcs11.CKA_SIGN, true),
		pkcs11.NewAttribute(pkcs11.CKA_LABEL, u.Object),
		pkcs11.NewAttribute(pkcs11.CKA_ID, id),
	}
	mechanism := []*pkcs11.Mechanism{pkcs11.NewMechanism(o.Algorithm.keyPairGen(), nil)}
	_, _, err := m.GenerateKeyPair(h, mechanism, public, private)
	return failed("C_GenerateKeyPair", err)
}

func describeKeyInfo(m module, h pkcs11.SessionHandle, k privateKey) (KeyInfo, error) {
	publicKey, err := publicKeyOf(m, h, k)
	if err != nil {
		return KeyInfo{}, err
	}
	info := KeyInfo{Label: k.label, ID: hex.EncodeToString(k.id), PublicKey: "0x" + hex.EncodeToString(publicKey)}
	if k.algorithm == Secp256k1 {
		info.Address, err = appliance.AddressOf(publicKey)
	}
	return info, err
}
