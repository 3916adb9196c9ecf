package chaintest

import (
	"encoding/binary"
	"slices"

	"github.com/ethereum/go-ethereum/core/vm"
	"github.com/ethereum/go-ethereum/crypto"
)

// assembler writes EVM bytecode with labels as jump targets.
type assembler struct {
	code   []byte
	labels map[string]int
	jumps  map[int]string // label by the position of its jump target in code
}

// put appends operations (vm.OpCode) and PUSH instructions for numbers (int) and bytes ([]byte).
func (a *assembler) put(parts ...any) *assembler {
	for _, part := range parts {
		switch p := part.(type) {
		case vm.OpCode:
			a.code = append(a.code, byte(p))
		case int:
			a.code = append(a.code, byte(vm.PUSH2), byte(p>>8), byte(p))
		case []byte:
			a.code = append(append(a.code, byte(vm.PUSH1)+byte(len(p)-1)), p...)
		}
	}
	return a
}

func (a *assembler) label(name string) *assembler {
	if a.labels == nil {
		a.labels = make(map[string]int)
	}
	a.labels[name] = len(a.code)
	return a.put(vm.JUMPDEST)
}

// jumpIf jumps to a label if the top of the stack is not zero.
func (a *assembler) jumpIf(name string) *assembler {
	if a.jumps == nil {
		a.jumps = make(map[int]string)
	}
	a.jumps[len(a.code)+1] = name
	return a.put(0, vm.JUMPI)
}

func (a *assembler) bytes() []byte {
	code := slices.Clone(a.code)
	for at, name := range a.jumps {
		binary.BigEndian.PutUint16(code[at:], uint16(a.labels[name]))
	}
	return code
}

func selector(signature string) []byte { return crypto.Keccak256([]byte(signature))[:4] }

// The selectors of the contracts' functions.
var (
	callAttestor    = selector("attestor()")
	callSetAttestor = selector("setAttestor(address)")
	callRedeem      = selector("redeem(uint256,uint256,address,bytes32,uint8,bytes32,bytes32)")
	callIsValid     = selector("isValidSignature(bytes32,bytes)")
	callAllow       = selector("allow(address,bool)")
)

// word returns the offset of an argument in the call data.
func word(n int) int { return 4 + 32*n }

// load pushes an argument of the call.
func (a *assembler) load(n int) *assembler { return a.put(word(n), vm.CALLDATALOAD) }

// store copies an argument to memory.
func (a *assembler) store(at, argument int) *assembler { return a.load(argument).put(at, vm.MSTORE) }

// dispatch jumps to a label if the call data has the selector call.
func (a *assembler) dispatch(call []byte, name string) *assembler {
	return a.put(0, vm.CALLDATALOAD, 224, vm.SHR, call, vm.EQ).jumpIf(name)
}

// contract returns the part of a verifying contract that the watchtower sees. The holder of an attestor's signature
// over a message can redeem with it. The attestor is in storage slot 0, and everyone may set it.
func contract() []byte {
	const message, v, r, s = 3, 4, 5, 6 // arguments of redeem, after nullifier, amount and beneficiary
	a := new(assembler).dispatch(callAttestor, "attestor").dispatch(callSetAttestor, "set").dispatch(callRedeem,
		"redeem")
	a.label("refuse").put(0, 0, vm.REVERT)
	a.label("attestor").put(0, vm.SLOAD, 0, vm.MSTORE, 32, 0, vm.RETURN)
	a.label("set").load(0).put(0, vm.SSTORE, vm.STOP)
	a.label("redeem").put(0, vm.SLOAD, vm.EXTCODESIZE).jumpIf("contract")
	// ecrecover(message, v, r, s) is the attestor
	a.store(0, message).store(32, v).store(64, r).store(96, s)
	a.put(32, 128, 128, 0, 1, vm.GAS, vm.STATICCALL, vm.POP, 128, vm.MLOAD, 0, vm.SLOAD, vm.EQ).jumpIf("emit").put(0, 0,
		vm.REVERT)
	// attestor.isValidSignature(message, r ‖ s ‖ v) is its selector (ERC-1271)
	a.label("contract").put(append(slices.Clone(callIsValid), make([]byte, 28)...), 0, vm.MSTORE)
	a.store(word(0), message).put(64, word(1), vm.MSTORE, 65, word(2), vm.MSTORE).store(word(3), r).store(word(4), s)
	a.load(v).put(word(5), vm.MSTORE8)
	a.put(32, 256, word(6), 0, 0, vm.SLOAD, vm.GAS, vm.STATICCALL, vm.ISZERO).jumpIf("refuse")
	a.put(256, vm.MLOAD, 224, vm.SHR, callIsValid, vm.EQ).jumpIf("emit").put(0, 0, vm.REVERT)
	// Redeemed(nullifier, amount, beneficiary) and Attested(message, amount)
	a.label("emit").load(2).load(1).load(0).put(crypto.Keccak256([]byte("Redeemed(uint256,uint256,address)")), 0, 0,
		vm.LOG4)
	a.load(1).load(message).put(crypto.Keccak256([]byte("Attested(bytes32,uint256)")), 0, 0, vm.LOG3, vm.STOP)
	return a.bytes()
}

// attestorContract returns an attestor with several keys (ERC-1271). It accepts a signature of any allowed key.
// Everyone may allow a key.
func attestorContract() []byte {
	a := new(assembler).dispatch(callIsValid, "valid").dispatch(callAllow, "allow").put(0, 0, vm.REVERT)
	a.label("allow").load(1).load(0).put(vm.SSTORE, vm.STOP)
	a.label("valid").store(0, 0).store(64, 3).store(96, 4).load(5).put(0, vm.BYTE, 32, vm.MSTORE)
	a.put(32, 128, 128, 0, 1, vm.GAS, vm.STATICCALL, vm.POP, 128, vm.MLOAD, vm.SLOAD).jumpIf("yes")
	a.put(32, 160, vm.RETURN) // 32 zero bytes
	a.label("yes").put(append(slices.Clone(callIsValid), make([]byte, 28)...), 0, vm.MSTORE, 32, 0, vm.RETURN)
	return a.bytes()
}
