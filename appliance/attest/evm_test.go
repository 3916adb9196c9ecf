package attest_test

import (
	"errors"
	"math/big"
	"testing"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/vm"
	"github.com/ethereum/go-ethereum/core/vm/program"
	"github.com/ethereum/go-ethereum/core/vm/runtime"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/secp256k1"
)

// verifier is the deciding part of a transfer contract. It takes (digest, v, r, s, attestor) as five words and calls
// ecrecover (precompile 1) on the digest itself, without an EIP-191 prefix. It stops if the digest is below the order
// of BN254's scalar field and the recovered address is the attestor. Otherwise it reverts.
func verifier(modulus *big.Int) []byte {
	const callDataWords, ecrecoverWords = 5, 4
	p := program.New()
	p.Push(callDataWords * 32).Push0().Push0().Op(vm.CALLDATACOPY)
	// mload(0) < r
	p.Push(modulus.Bytes()).Push0().Op(vm.MLOAD, vm.LT)
	// staticcall(gas, 1, 0, 128, 160, 32): the output goes behind the input, so a failed recovery leaves it zero
	p.Push(32).Push(callDataWords*32).Push(ecrecoverWords*32).Push0().Push(1).Op(vm.GAS, vm.STATICCALL)
	p.Op(vm.AND)
	// mload(160) == attestor
	p.Push(callDataWords*32).Op(vm.MLOAD).Push(ecrecoverWords*32).Op(vm.MLOAD, vm.EQ, vm.AND)
	// jumpi to the stop; otherwise revert
	accepted := p.Size() + 6
	p.Push(accepted).Op(vm.JUMPI).Push0().Push0().Op(vm.REVERT)
	p.Op(vm.JUMPDEST, vm.STOP)
	return p.Bytes()
}

// wouldAccept runs the contract in go-ethereum's EVM.
func wouldAccept(t *testing.T, a appliance.Attestation, attestor appliance.Address) bool {
	t.Helper()
	var input []byte
	input = append(input, a.Hash[:]...)
	input = append(input, common.LeftPadBytes([]byte{a.Signature.V}, 32)...)
	input = append(input, a.Signature.R[:]...)
	input = append(input, a.Signature.S[:]...)
	input = append(input, common.LeftPadBytes(attestor[:], 32)...)
	_, _, err := runtime.Execute(verifier(appliance.BN254R()), input, nil)
	if err != nil && !errors.Is(err, vm.ErrExecutionReverted) {
		t.Fatalf("the contract failed instead of deciding: %v", err)
	}
	return err == nil
}

func TestTheContractRefusesWhatIsNotTheAttestors(t *testing.T) {
	key, public, address := newTestKey(t)
	_, _, stranger := newTestKey(t)
	digest := scheme(t, appliance.SchemeKeccak256BN254, nil).Digest(request)
	signature, err := secp256k1.NewSignature(digest, signRaw(t, key, digest, true), public)
	if err != nil {
		t.Fatal(err)
	}
	good := appliance.Attestation{Hash: digest, Signature: signature, SignerAddress: address}
	if !wouldAccept(t, good, address) {
		t.Fatal("a good attestation is refused")
	}
	otherHash, otherV, badR := good, good, good
	otherHash.Hash[31] ^= 1
	otherV.Signature.V = 27 + 28 - good.Signature.V
	badR.Signature.R = [32]byte{}
	large := good
	large.Hash = appliance.Digest(appliance.BN254R().FillBytes(make([]byte, 32)))
	if large.Signature, err = secp256k1.NewSignature(large.Hash, signRaw(t, key, large.Hash, false),
		public); err != nil {
		t.Fatal(err)
	}
	for name, a := range map[string]appliance.Attestation{"another hash": otherHash, "the other v": otherV,
		"no r": badR, "a digest of r": large} {
		if wouldAccept(t, a, address) {
			t.Errorf("%s: accepted", name)
		}
	}
	if wouldAccept(t, good, stranger) {
		t.Error("another attestor: accepted")
	}
}
