package appliance_test

import (
	"crypto/ecdsa"
	"encoding/json"
	"fmt"
	"math/big"
	"strings"
	"testing"

	"github.com/ethereum/go-ethereum/crypto"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/secp256k1"
)

// signRaw signs like an HSM: it returns r ‖ s. high selects the upper half for s.
func signRaw(t *testing.T, key *ecdsa.PrivateKey, d appliance.Digest, high bool) (rs [64]byte) {
	t.Helper()
	sig, err := crypto.Sign(d[:], key)
	if err != nil {
		t.Fatal(err)
	}
	copy(rs[:], sig[:64])
	if high {
		s := new(big.Int).SetBytes(rs[32:])
		new(big.Int).Sub(crypto.S256().Params().N, s).FillBytes(rs[32:])
	}
	return rs
}

func newTestKey(t *testing.T) (*ecdsa.PrivateKey, []byte, appliance.Address) {
	t.Helper()
	key, err := crypto.GenerateKey()
	if err != nil {
		t.Fatal(err)
	}
	return key, crypto.FromECDSAPub(&key.PublicKey), appliance.Address(crypto.PubkeyToAddress(key.PublicKey))
}

func TestSignaturesOfEitherHalfBecomeTheSameLowOne(t *testing.T) {
	key, public, address := newTestKey(t)
	forRandomRequests(func(r appliance.Request) {
		d := scheme(t, appliance.SchemeKeccak256BN254, nil).Digest(r)
		low, err := secp256k1.NewSignature(d, signRaw(t, key, d, false), public)
		if err != nil {
			t.Fatal(err)
		}
		high, err := secp256k1.NewSignature(d, signRaw(t, key, d, true), public)
		if err != nil {
			t.Fatal(err)
		}
		if low != high {
			t.Fatalf("%+v and %+v differ", low, high)
		}
		if got, err := low.Recover(d); err != nil || got != address {
			t.Fatalf("recovered %s, %v, want %s", got, err, address)
		}
	})
}

func TestSignaturesThatAreNotTheKeysOwnNeverLeave(t *testing.T) {
	key, public, _ := newTestKey(t)
	_, otherPublic, _ := newTestKey(t)
	d := scheme(t, appliance.SchemeKeccak256, nil).Digest(request)
	good := signRaw(t, key, d, false)
	n := crypto.S256().Params().N.FillBytes(make([]byte, 32))
	changed := func(change func(*[64]byte)) [64]byte { c := good; change(&c); return c }
	for name, c := range map[string]struct {
		digest appliance.Digest
		rs     [64]byte
		public []byte
	}{
		"of another key":     {d, good, otherPublic},
		"of another digest":  {appliance.Digest{1}, good, public},
		"r is zero":          {d, changed(func(b *[64]byte) { clear(b[:32]) }), public},
		"s is zero":          {d, changed(func(b *[64]byte) { clear(b[32:]) }), public},
		"r is n":             {d, changed(func(b *[64]byte) { copy(b[:32], n) }), public},
		"s is n":             {d, changed(func(b *[64]byte) { copy(b[32:], n) }), public},
		"a bit of r changed": {d, changed(func(b *[64]byte) { b[7] ^= 1 }), public},
		"a bit of s changed": {d, changed(func(b *[64]byte) { b[40] ^= 1 }), public},
	} {
		if sig, err := secp256k1.NewSignature(c.digest, c.rs, c.public); err == nil {
			t.Errorf("%s: accepted as %+v", name, sig)
		}
	}
}

func TestRecoverRefusesWhatAContractWould(t *testing.T) {
	key, public, _ := newTestKey(t)
	d := scheme(t, appliance.SchemeKeccak256, nil).Digest(request)
	good, err := secp256k1.NewSignature(d, signRaw(t, key, d, false), public)
	if err != nil {
		t.Fatal(err)
	}
	high := good
	high.S = [32]byte(signRawHigh(good.S))
	v29, v0, noR := good, good, good
	v29.V, v0.V, noR.R = 29, 0, [32]byte{}
	for name, sig := range map[string]appliance.Signature{"high s": high, "v 29": v29, "v 0": v0, "r zero": noR} {
		if _, err := sig.Recover(d); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func signRawHigh(s [32]byte) []byte {
	return new(big.Int).Sub(crypto.S256().Params().N, new(big.Int).SetBytes(s[:])).FillBytes(make([]byte, 32))
}

func TestAttestationsHaveTheInterfacesJSON(t *testing.T) {
	key, public, address := newTestKey(t)
	d := scheme(t, appliance.SchemeKeccak256BN254, nil).Digest(request)
	sig, err := secp256k1.NewSignature(d, signRaw(t, key, d, true), public)
	if err != nil {
		t.Fatal(err)
	}
	want := appliance.Attestation{Hash: d, Signature: sig, SignerAddress: address}
	text, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	var generic map[string]any
	if err := json.Unmarshal(text, &generic); err != nil {
		t.Fatal(err)
	}
	signature := generic["signature"].(map[string]any)
	for name, value := range map[string]any{"hash": generic["hash"], "r": signature["r"], "s": signature["s"]} {
		if s, ok := value.(string); !ok || len(s) != 66 || !strings.HasPrefix(s, "0x") || s != strings.ToLower(s) {
			t.Errorf("%s is %v", name, value)
		}
	}
	if v, ok := signature["v"].(float64); !ok || v != 27 && v != 28 {
		t.Errorf("v is %v", signature["v"])
	}
	if want := fmt.Sprintf("%s%s%02x", signature["r"], signature["s"].(string)[2:],
		int(signature["v"].(float64))); signature["bytes"] != want {
		t.Errorf("bytes is %v, not %s", signature["bytes"], want)
	}
	if len(generic) != 4 || len(signature) != 4 || generic["signerAddress"] != address.String() {
		t.Errorf("not the interface's members: %s", text)
	}
	var back appliance.Attestation
	if err := json.Unmarshal(text, &back); err != nil || back != want {
		t.Errorf("read back as %+v, %v", back, err)
	}
	if err := back.Verify(); err != nil {
		t.Error(err)
	}
	other := strings.Replace(string(text), fmt.Sprintf("%x", sig.Bytes()), strings.Repeat("1b", 65), 1)
	if err := json.Unmarshal([]byte(other), &back); err == nil {
		t.Errorf("a contract and a verifier would see two signatures in %s", other)
	}
	back.SignerAddress[3]++
	if back.Verify() == nil {
		t.Error("verified under another signer")
	}
}
