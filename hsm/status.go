package hsm

import (
	"context"
	"encoding/hex"
	"fmt"
	"slices"
	"time"

	"github.com/miekg/pkcs11"

	"github.com/attestd/attestd/appliance"
)

// Status describes the HSM to an operator. It holds no secrets.
type Status struct {
	Module  ModuleStatus  `json:"module"`
	Token   TokenStatus   `json:"token"`
	Key     KeyStatus     `json:"key"`
	Session SessionStatus `json:"sessions"`

	Ready           bool   `json:"ready"`           // no fault is known
	Signatures      uint64 `json:"signatures"`      // made and checked since the start
	WrongSignatures uint64 `json:"wrongSignatures"` // returned by the token and withheld by Sign
	Repairs         uint64 `json:"repairs"`         // including reopened sessions
	Restarts        uint64 `json:"restarts"`        // workers started to replace another
	// process id of the worker; 0 if this process has loaded the module itself
	Worker        int       `json:"worker,omitempty"`
	LastError     string    `json:"lastError,omitempty"`
	LastErrorTime time.Time `json:"lastErrorTime,omitzero"`

	// set with several tokens; the fields above then describe the token that signs, and the counts cover all tokens
	Tokens []Standing `json:"tokens,omitempty"`
	// set if attestor keys have names; the fields above then describe the default key
	Keys []NamedStatus `json:"keys,omitempty"`
}

// NamedStatus is the status of a named attestor key.
type NamedStatus struct {
	Name    string `json:"name"`
	State   string `json:"state"`   // active or retiring
	Default bool   `json:"default"` // it signs for API keys that are not bound to a key
	Status
}

// ModuleStatus describes the PKCS#11 library (CK_INFO).
type ModuleStatus struct {
	Path         string `json:"path"`
	Description  string `json:"description"`
	Manufacturer string `json:"manufacturer"`
	Version      string `json:"version"`
	Cryptoki     string `json:"cryptoki"` // the version of PKCS#11
}

// TokenStatus describes the token (CK_TOKEN_INFO).
type TokenStatus struct {
	Label        string   `json:"label"`
	Serial       string   `json:"serial"`
	Manufacturer string   `json:"manufacturer"`
	Model        string   `json:"model"`
	Slot         uint     `json:"slot"`
	PINCountLow  bool     `json:"pinCountLow"` // a wrong PIN was tried since the last login
	PINFinalTry  bool     `json:"pinFinalTry"` // one more wrong PIN locks the token
	PINLocked    bool     `json:"pinLocked"`
	Mechanisms   []string `json:"mechanisms"` // those of CKM_ECDSA and CKM_EC_KEY_PAIR_GEN that the token has
}

// KeyStatus describes the private key object.
type KeyStatus struct {
	Label       string             `json:"label"`
	ID          string             `json:"id"`    // hex
	Curve       string             `json:"curve"` // "secp256k1" or "ed25519", or CKA_EC_PARAMS in hex
	Sensitive   bool               `json:"sensitive"`
	Extractable bool               `json:"extractable"`
	Sign        bool               `json:"sign"`
	Address     *appliance.Address `json:"address,omitempty"`
	// 0x and hex: 65 bytes, SEC 1 uncompressed, or 32 bytes of an Ed25519 key
	PublicKey string `json:"publicKey,omitempty"`
}

// SessionStatus counts the sessions of this process.
type SessionStatus struct {
	InUse int  `json:"inUse"`
	Open  int  `json:"open"`
	Most  int  `json:"most"` // largest size of the pool
	Auto  bool `json:"auto"` // the pool adapts to the HSM
	Max   uint `json:"max"`  // the maximum of the token; 0 if unknown or unlimited
}

// Status returns the status of the signer. It asks the token for the token's part. If the token does not answer before
// ctx ends, Ready is false and this part is as of the last answer.
func (s *Signer) Status(ctx context.Context) (Status, error) {
	s.mu.Lock()
	status := s.snapshot
	s.mu.Unlock()
	fault := s.fault()
	status.Ready = fault == nil
	if fault == nil {
		fresh, err := use(ctx, s, func(*session) (token, error) { return findToken(s.module, s.options.URI) })
		if err == nil {
			status.Token = describeToken(s.module, fresh, status.Token.Mechanisms)
		}
		status.Ready = err == nil
	}
	status.Module.Path = s.path
	status.Key.PublicKey = "0x" + hex.EncodeToString(s.publicKey)
	if s.options.Algorithm == Secp256k1 {
		status.Key.Address = &s.address
	}
	usage := s.Usage()
	status.Session.Open, status.Session.InUse, status.Session.Most = usage.Sessions, usage.InUse, usage.MostSessions
	status.Session.Auto = s.options.Sessions == 0
	status.Signatures, status.WrongSignatures, status.Repairs = usage.Signatures, usage.WrongSignatures, usage.Repairs
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lastError != nil {
		status.LastError, status.LastErrorTime = s.lastError.Error(), s.lastFault.UTC()
	}
	if fault != nil {
		status.LastError = fault.Error() // the lasting fault, rather than the last observed one
	}
	return status, nil
}

// Usage are the counts of a Signer that do not require the token.
type Usage struct {
	Ready           bool   // no fault is known
	Signatures      uint64 // made and checked since the start
	WrongSignatures uint64 // returned by the token and withheld by Sign
	// SignTime is the total time of Sign for the Signatures, with the wait for a session. Only package worker counts it.
	SignTime        time.Duration
	Repairs         uint64 // including reopened sessions
	Restarts        uint64 // workers started to replace another
	InUse, Sessions int    // sessions inside a call, and all sessions
	MostSessions    int    // largest size of the pool
	AtOnce          int    // concurrent calls of Sign that keep all sessions busy
}

// Usage returns the counts. It never waits.
func (s *Signer) Usage() Usage {
	return Usage{
		Ready: s.fault() == nil, Signatures: s.signatures.Load(), WrongSignatures: s.wrong.Load(),
		Repairs: s.repaired.Load(),
		InUse:   max(0, s.sessions()-len(s.idle)), Sessions: s.sessions(), MostSessions: cap(s.idle),
		AtOnce: 2 * s.sessions(),
	}
}

// Inspect describes the module, the token and the key without a Signer. If it fails, it also returns the parts found
// before the error.
func Inspect(ctx context.Context, options Options) (Status, error) {
	options = options.withDefaults()
	type partial struct {
		status Status
		err    error
	}
	p, err := await(ctx, func() (partial, error) {
		status, err := inspect(options)
		return partial{status, err}, nil
	}, nil)
	if err != nil {
		return Status{}, err
	}
	if p.err != nil {
		p.status.LastError = p.err.Error()
	}
	p.status.Ready = p.err == nil
	return p.status, p.err
}

func inspect(options Options) (Status, error) {
	path, m, err := options.openModule()
	if err != nil {
		return Status{}, err
	}
	defer func() { _ = m.Finalize() }()
	status := describe(m, token{}, privateKey{})
	status.Module.Path = path
	t, err := findToken(m, options.URI)
	if err != nil {
		return status, err
	}
	status = describe(m, t, privateKey{})
	status.Module.Path = path
	k, publicKey, err := inspectKey(m, t, options)
	if k.handle != 0 {
		status.Key = describeKeyStatus(k)
	}
	if err != nil {
		return status, fmt.Errorf("open token %q: %w", t.info.Label, err)
	}
	status.Key.PublicKey = "0x" + hex.EncodeToString(publicKey)
	if options.Algorithm == Ed25519 {
		return status, nil
	}
	address, err := appliance.AddressOf(publicKey)
	status.Key.Address = &address
	return status, err
}

func inspectKey(m module, t token, options Options) (privateKey, []byte, error) {
	h, err := m.OpenSession(t.slot, pkcs11.CKF_SERIAL_SESSION)
	if err != nil {
		return privateKey{}, nil, failed("C_OpenSession", err)
	}
	if err := login(m, h, t, options); err != nil {
		return privateKey{}, nil, err
	}
	k, err := findKey(m, h, options)
	if err != nil {
		return privateKey{}, nil, err
	}
	if err := k.check(options.AllowExtractable); err != nil {
		return k, nil, err
	}
	publicKey, err := publicKeyOf(m, h, k)
	return k, publicKey, err
}

// describe leaves unreadable parts empty.
func describe(m module, t token, k privateKey) Status {
	var status Status
	if info, err := m.GetInfo(); err == nil {
		status.Module = ModuleStatus{
			Description: info.LibraryDescription, Manufacturer: info.ManufacturerID,
			Version:  fmt.Sprintf("%d.%d", info.LibraryVersion.Major, info.LibraryVersion.Minor),
			Cryptoki: fmt.Sprintf("%d.%d", info.CryptokiVersion.Major, info.CryptokiVersion.Minor),
		}
	}
	if t.initialized() {
		status.Token = describeToken(m, t, nil)
		if t.info.MaxSessionCount != pkcs11.CK_UNAVAILABLE_INFORMATION {
			status.Session.Max = t.info.MaxSessionCount
		}
	}
	status.Key = describeKeyStatus(k)
	return status
}

// describeToken reads the mechanisms from the token unless they are given.
func describeToken(m module, t token, mechanisms []string) TokenStatus {
	has := func(flag uint) bool { return t.info.Flags&flag != 0 }
	if mechanisms == nil {
		mechanisms = mechanismNames(m, t.slot)
	}
	return TokenStatus{
		Label: t.info.Label, Serial: t.info.SerialNumber, Manufacturer: t.info.ManufacturerID, Model: t.info.Model,
		Slot:        t.slot,
		PINCountLow: has(pkcs11.CKF_USER_PIN_COUNT_LOW), PINFinalTry: has(pkcs11.CKF_USER_PIN_FINAL_TRY),
		PINLocked:  has(pkcs11.CKF_USER_PIN_LOCKED),
		Mechanisms: mechanisms,
	}
}

func mechanismNames(m module, slot uint) []string {
	list, err := m.GetMechanismList(slot)
	if err != nil {
		return nil
	}
	names := []string{}
	for _, known := range []struct {
		mechanism uint
		name      string
	}{{pkcs11.CKM_ECDSA, "CKM_ECDSA"}, {pkcs11.CKM_EC_KEY_PAIR_GEN, "CKM_EC_KEY_PAIR_GEN"}} {
		if slices.ContainsFunc(list, func(m *pkcs11.Mechanism) bool { return m.Mechanism == known.mechanism }) {
			names = append(names, known.name)
		}
	}
	return names
}

func describeKeyStatus(k privateKey) KeyStatus {
	curve := hexOr(k.params, "")
	if k.isOnCurve() {
		curve = k.algorithm.name()
	}
	return KeyStatus{
		Label: k.label, ID: hex.EncodeToString(k.id), Curve: curve,
		Sensitive: k.sensitive, Extractable: k.extractable, Sign: k.canSign,
	}
}
