package appliance_test

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"math/big"
	"os"
	"strings"
	"testing"

	"github.com/ethereum/go-ethereum/accounts/abi"
	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/core/state"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/core/vm/runtime"
	"github.com/ethereum/go-ethereum/crypto"

	"github.com/attestd/attestd/appliance"
)

const attestorsABI = `[
	{"type":"constructor","inputs":[{"name":"owner_","type":"address"},{"name":"signers","type":"address[]"}]},
	{"type":"function","name":"addSigner","inputs":[{"name":"signer","type":"address"}],"outputs":[]},
	{"type":"function","name":"removeSigner","inputs":[{"name":"signer","type":"address"}],"outputs":[]},
	{"type":"function","name":"transferOwnership","inputs":[{"name":"to","type":"address"}],"outputs":[]},
	{"type":"function","name":"acceptOwnership","inputs":[],"outputs":[]},
	{"type":"function","name":"isValidSignature","inputs":[{"name":"hash","type":"bytes32"},{"name":"signature","type":"bytes"}],"outputs":[{"name":"","type":"bytes4"}]}]`

var (
	owner    = common.Address{19: 1}
	stranger = common.Address{19: 2}
)

// attestors runs docs/contracts/Attestors.sol, from its compiled form, in go-ethereum's EVM.
type attestors struct {
	*testing.T
	abi     abi.ABI
	state   *state.StateDB
	address common.Address
}

func deployAttestors(t *testing.T, signers ...appliance.Address) *attestors {
	t.Helper()
	var built struct{ SourceSHA256, Bytecode string }
	text, err := os.ReadFile("../docs/contracts/Attestors.json")
	if err == nil {
		err = json.Unmarshal(text, &built)
	}
	if err != nil {
		t.Fatal(err)
	}
	a := &attestors{T: t}
	a.state, err = state.New(types.EmptyRootHash, state.NewDatabaseForTesting())
	if err == nil {
		a.abi, err = abi.JSON(strings.NewReader(attestorsABI))
	}
	if err != nil {
		t.Fatal(err)
	}
	first := make([]common.Address, len(signers))
	for i, s := range signers {
		first[i] = common.Address(s)
	}
	arguments, err := a.abi.Pack("", owner, first)
	if err != nil {
		t.Fatal(err)
	}
	_, a.address, _, err = runtime.Create(append(hexutil.MustDecode(built.Bytecode), arguments...), &runtime.Config{State: a.state, Origin: owner})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// does calls a function that changes state, and reports whether the contract accepted the call.
func (a *attestors) does(by common.Address, function string, arguments ...any) bool {
	a.Helper()
	input, err := a.abi.Pack(function, arguments...)
	if err != nil {
		a.Fatal(err)
	}
	_, _, err = runtime.Call(a.address, input, &runtime.Config{State: a.state, Origin: by})
	return err == nil
}

// accepts asks the contract as a transfer contract does (ERC-1271). The contract must answer for a bad signature, and
// not revert.
func (a *attestors) accepts(hash appliance.Digest, signature []byte) bool {
	a.Helper()
	input, err := a.abi.Pack("isValidSignature", [32]byte(hash), signature)
	if err != nil {
		a.Fatal(err)
	}
	answer, _, err := runtime.Call(a.address, input, &runtime.Config{State: a.state, Origin: stranger})
	if err != nil || len(answer) != 32 {
		a.Fatalf("isValidSignature: %x, %v", answer, err)
	}
	return hex.EncodeToString(answer) == "1626ba7e"+strings.Repeat("0", 56)
}

// signedBy returns the signature.bytes of an attestation.
func signedBy(t *testing.T, s *keySigner, d appliance.Digest) []byte {
	t.Helper()
	signature, err := s.Sign(t.Context(), d)
	if err != nil {
		t.Fatal(err)
	}
	b := signature.Bytes()
	return b[:]
}

func TestTheAttestorContractAcceptsBothKeysWhileOneTakesTheOthersPlace(t *testing.T) {
	t.Parallel()
	old, next := newKeySigner(t), newKeySigner(t)
	digest := scheme(t, appliance.SchemeKeccak256BN254, nil).Digest(request)
	byOld, byNext := signedBy(t, old, digest), signedBy(t, next, digest)
	a := deployAttestors(t, old.Address())
	expect := func(when string, oldIsGood, nextIsGood bool) {
		t.Helper()
		if a.accepts(digest, byOld) != oldIsGood || a.accepts(digest, byNext) != nextIsGood {
			t.Errorf("%s: old accepted %v, new accepted %v", when, !oldIsGood, !nextIsGood)
		}
	}
	expect("before", true, false)
	if !a.does(owner, "addSigner", common.Address(next.Address())) {
		t.Fatal("the owner cannot add a signer")
	}
	expect("meanwhile", true, true)
	if !a.does(owner, "removeSigner", common.Address(old.Address())) {
		t.Fatal("the owner cannot remove a signer")
	}
	expect("after", false, true)
}

func TestTheAttestorContractRefusesWhatIsNoSignatureOfASigner(t *testing.T) {
	t.Parallel()
	key := newKeySigner(t)
	digest := scheme(t, appliance.SchemeKeccak256BN254, nil).Digest(request)
	good := signedBy(t, key, digest)
	a := deployAttestors(t, key.Address())
	compact := append([]byte(nil), good[:64]...) // EIP-2098
	compact[32] |= (good[64] - 27) << 7
	if !a.accepts(digest, good) || !a.accepts(digest, compact) {
		t.Error("a good signature is refused")
	}
	changed := func(change func(b []byte) []byte) []byte { return change(append([]byte(nil), good...)) }
	upperS := changed(func(b []byte) []byte {
		s := new(big.Int).Sub(crypto.S256().Params().N, new(big.Int).SetBytes(b[32:64]))
		s.FillBytes(b[32:64])
		b[64] = 27 + 28 - b[64]
		return b
	})
	if recovered, err := crypto.Ecrecover(digest[:], append(append([]byte(nil), upperS[:64]...), upperS[64]-27)); err != nil || string(recovered) != string(key.public) {
		t.Fatalf("the malleable form is not one: %v", err)
	}
	other := digest
	other[31] ^= 1
	for name, test := range map[string]struct {
		hash      appliance.Digest
		signature []byte
	}{
		"another key's":                     {digest, signedBy(t, newKeySigner(t), digest)},
		"of another hash":                   {other, good},
		"s in the upper half":               {digest, upperS},
		"the other v":                       {digest, changed(func(b []byte) []byte { b[64] = 27 + 28 - b[64]; return b })},
		"v 0 or 1":                          {digest, changed(func(b []byte) []byte { b[64] -= 27; return b })},
		"v 29":                              {digest, changed(func(b []byte) []byte { b[64] = 29; return b })},
		"no r: ecrecover answers zero":      {digest, changed(func(b []byte) []byte { clear(b[:32]); return b })},
		"nothing but zeros":                 {digest, make([]byte, 65)},
		"66 bytes":                          {digest, append(append([]byte(nil), good...), 0)},
		"63 bytes":                          {digest, good[:63]},
		"no bytes":                          {digest, nil},
		"compact, with the other parity":    {digest, changed(func([]byte) []byte { c := append([]byte(nil), compact...); c[32] ^= 0x80; return c })},
		"compact, of a s in the upper half": {digest, upperS[:64]},
	} {
		if a.accepts(test.hash, test.signature) {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestTheAttestorContractIsChangedByItsOwnerAlone(t *testing.T) {
	t.Parallel()
	signer := common.Address(newKeySigner(t).Address())
	a := deployAttestors(t)
	for _, step := range []struct {
		name     string
		by       common.Address
		function string
		argument any
		lets     bool
	}{
		{"a stranger adds", stranger, "addSigner", signer, false},
		{"nobody is added", owner, "addSigner", common.Address{}, false},
		{"the owner adds", owner, "addSigner", signer, true},
		{"twice", owner, "addSigner", signer, false},
		{"a stranger removes", stranger, "removeSigner", signer, false},
		{"a stranger takes over", stranger, "acceptOwnership", nil, false},
		{"a stranger hands over", stranger, "transferOwnership", stranger, false},
		{"the owner hands over", owner, "transferOwnership", stranger, true},
		{"the owner is it until the other accepts", owner, "removeSigner", signer, true},
		{"one that is not there", owner, "removeSigner", signer, false},
		{"the other accepts", stranger, "acceptOwnership", nil, true},
		{"the owner of before adds", owner, "addSigner", signer, false},
		{"the new one adds", stranger, "addSigner", signer, true},
	} {
		var arguments []any
		if step.argument != nil {
			arguments = append(arguments, step.argument)
		}
		if a.does(step.by, step.function, arguments...) != step.lets {
			t.Errorf("%s: allowed %v", step.name, !step.lets)
		}
	}
}

// The compiled contract that these tests run belongs to the source.
func TestTheAttestorContractIsCompiledFromItsSource(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile("../docs/contracts/Attestors.sol")
	if err != nil {
		t.Fatal(err)
	}
	built, err := os.ReadFile("../docs/contracts/Attestors.json")
	if sum := sha256.Sum256(source); err != nil || !strings.Contains(string(built), `"`+hex.EncodeToString(sum[:])+`"`) {
		t.Errorf("Attestors.json is of another source, %v: compile it again, with the settings that stand there", err)
	}
}
