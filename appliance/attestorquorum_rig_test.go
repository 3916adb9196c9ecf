package appliance_test

import (
	"bytes"
	"crypto/ecdsa"
	"encoding/json"
	"math/big"
	"os"
	"slices"
	"strconv"
	"testing"

	"github.com/ethereum/go-ethereum/accounts/abi"
	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/core/state"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/core/vm"
	"github.com/ethereum/go-ethereum/core/vm/program"
	"github.com/ethereum/go-ethereum/core/vm/runtime"
	"github.com/ethereum/go-ethereum/crypto"

	"github.com/attestd/attestd/appliance"
)

var (
	owner    = common.Address{19: 1}
	stranger = common.Address{19: 2}
	// transferContract is the address of the verifier in each attestorQuorum's EVM.
	transferContract = common.Address{18: 1}
)

// attestorQuorum runs docs/contracts/AttestorQuorum.sol, from its compiled form, in go-ethereum's EVM.
type attestorQuorum struct {
	testing.TB
	abi     abi.ABI
	state   *state.StateDB
	address common.Address
}

// newAttestorQuorum deploys the contract. The error is the constructor's.
func newAttestorQuorum(
	t testing.TB, owner common.Address, threshold int, members ...common.Address,
) (*attestorQuorum, error) {
	t.Helper()
	var compiled struct {
		ABI      json.RawMessage
		Bytecode hexutil.Bytes
	}
	text, err := os.ReadFile("../docs/contracts/AttestorQuorum.json")
	if err == nil {
		err = json.Unmarshal(text, &compiled)
	}
	if err != nil {
		t.Fatal(err)
	}
	q := &attestorQuorum{TB: t}
	if q.abi, err = abi.JSON(bytes.NewReader(compiled.ABI)); err != nil {
		t.Fatal(err)
	}
	if q.state, err = state.New(types.EmptyRootHash, state.NewDatabaseForTesting()); err != nil {
		t.Fatal(err)
	}
	arguments, err := q.abi.Pack("", owner, members, big.NewInt(int64(threshold)))
	if err != nil {
		t.Fatal(err)
	}
	deployer := &runtime.Config{State: q.state, Origin: owner}
	_, q.address, _, err = runtime.Create(append(compiled.Bytecode, arguments...), deployer)
	q.state.SetCode(transferContract, contractVerifier(q.address), 0)
	return q, err
}

// deployQuorum deploys the contract with threshold of the keys' addresses.
func deployQuorum(t testing.TB, threshold int, keys ...*ecdsa.PrivateKey) *attestorQuorum {
	t.Helper()
	members := make([]common.Address, len(keys))
	for i, key := range keys {
		members[i] = memberAddress(key)
	}
	q, err := newAttestorQuorum(t, owner, threshold, members...)
	if err != nil {
		t.Fatal(err)
	}
	return q
}

// contractVerifier is the deciding part of a transfer contract whose attestor is a contract. It takes the call data of
// isValidSignature (ERC-1271), passes it to the attestor, and stops if the hash is below the order of BN254's scalar
// field and the attestor answers with the magic value. Otherwise it reverts.
func contractVerifier(attestor common.Address) []byte {
	magic := common.RightPadBytes(hexutil.MustDecode("0x1626ba7e"), 32)
	p := program.New()
	p.Op(vm.CALLDATASIZE).Push0().Push0().Op(vm.CALLDATACOPY)
	// mload(4) < r
	p.Push(appliance.BN254R().Bytes()).Push(4).Op(vm.MLOAD, vm.LT)
	// staticcall(gas, attestor, 0, calldatasize, 0, 32) && returndatasize > 31 && mload(0) == magic
	p.Push(32).Push0().Op(vm.CALLDATASIZE).Push0().Push(attestor).Op(vm.GAS, vm.STATICCALL, vm.AND)
	p.Push(31).Op(vm.RETURNDATASIZE, vm.GT, vm.AND)
	p.Push(magic).Push0().Op(vm.MLOAD, vm.EQ, vm.AND)
	accepted := p.Size() + 6
	p.Push(accepted).Op(vm.JUMPI).Push0().Push0().Op(vm.REVERT)
	p.Op(vm.JUMPDEST, vm.STOP)
	return p.Bytes()
}

// call runs a call and undoes its effects, unless keep is set. It returns the answer and the gas of its execution.
func (q *attestorQuorum) call(by, to common.Address, input []byte, keep bool) (answer []byte, gas uint64, err error) {
	const limit = 10_000_000
	before := q.state.Snapshot()
	answer, left, err := runtime.Call(to, input, &runtime.Config{State: q.state, Origin: by, GasLimit: limit})
	if !keep {
		q.state.RevertToSnapshot(before)
	}
	return answer, limit - left, err
}

// does calls a function that changes state. It returns whether the contract accepted the call, and the names of its
// events.
func (q *attestorQuorum) does(by common.Address, function string, arguments ...any) (events []string, accepted bool) {
	q.Helper()
	input, err := q.abi.Pack(function, arguments...)
	if err != nil {
		q.Fatal(err)
	}
	before := len(q.state.Logs())
	_, _, err = q.call(by, q.address, input, true)
	logs := q.state.Logs()
	slices.SortFunc(logs, func(a, b *types.Log) int { return int(a.Index) - int(b.Index) })
	for _, log := range logs[before:] {
		event, err := q.abi.EventByID(log.Topics[0])
		if err != nil {
			q.Fatal(err)
		}
		events = append(events, event.Name)
	}
	return events, err == nil
}

func (q *attestorQuorum) isValidCall(hash appliance.Digest, signatures []byte) []byte {
	q.Helper()
	input, err := q.abi.Pack("isValidSignature", [32]byte(hash), signatures)
	if err != nil {
		q.Fatal(err)
	}
	return input
}

// accepts asks the contract directly, and lets the transfer contract ask it. Both results must be the same. For bad
// signatures, the contract must answer 0xffffffff and not revert.
func (q *attestorQuorum) accepts(hash appliance.Digest, signatures ...[]byte) bool {
	q.Helper()
	input := q.isValidCall(hash, slices.Concat(signatures...))
	answer, _, err := q.call(stranger, q.address, input, false)
	if err != nil || len(answer) != 32 {
		q.Fatalf("isValidSignature: %x, %v", answer, err)
	}
	_, _, refused := q.call(stranger, transferContract, input, false)
	switch word := hexutil.Encode(bytes.TrimRight(answer, "\x00")); {
	case word == "0x1626ba7e" && refused == nil:
		return true
	case word == "0xffffffff" && refused != nil:
		return false
	}
	q.Fatalf("isValidSignature: %x, but the transfer contract: %v", answer, refused)
	return false
}

// quorumKeys returns n keys in ascending order of their addresses. They are the same in each run.
func quorumKeys(t testing.TB, n int) []*ecdsa.PrivateKey {
	t.Helper()
	keys := make([]*ecdsa.PrivateKey, n)
	for i := range keys {
		var err error
		if keys[i], err = crypto.ToECDSA(crypto.Keccak256([]byte("member " + strconv.Itoa(i)))); err != nil {
			t.Fatal(err)
		}
	}
	slices.SortFunc(keys, func(a, b *ecdsa.PrivateKey) int { return memberAddress(a).Cmp(memberAddress(b)) })
	return keys
}

func memberAddress(key *ecdsa.PrivateKey) common.Address {
	return crypto.PubkeyToAddress(key.PublicKey)
}

// signedBy returns the signature.bytes of an attestation by the key.
func signedBy(t testing.TB, key *ecdsa.PrivateKey, d appliance.Digest) []byte {
	t.Helper()
	signature, err := crypto.Sign(d[:], key) // s is in the lower half
	if err != nil {
		t.Fatal(err)
	}
	signature[64] += 27
	return signature
}

// allSignedBy returns one signature of each key, in the order of the keys.
func allSignedBy(t testing.TB, keys []*ecdsa.PrivateKey, d appliance.Digest) [][]byte {
	t.Helper()
	all := make([][]byte, len(keys))
	for i, key := range keys {
		all[i] = signedBy(t, key, d)
	}
	return all
}

// malleable returns the second form of a signature, with s in the upper half.
func malleable(signature []byte) []byte {
	b := slices.Clone(signature)
	s := new(big.Int).Sub(crypto.S256().Params().N, new(big.Int).SetBytes(b[32:64]))
	s.FillBytes(b[32:64])
	b[64] = 27 + 28 - b[64]
	return b
}

// choose calls f with each choice of k of n numbers.
func choose(n, k int, f func([]int)) {
	var extend func(chosen []int, from int)
	extend = func(chosen []int, from int) {
		if len(chosen) == k {
			f(chosen)
			return
		}
		for i := from; i < n; i++ {
			extend(append(slices.Clone(chosen), i), i+1)
		}
	}
	extend(nil, 0)
}
