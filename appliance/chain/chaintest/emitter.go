package chaintest

import (
	"math/big"
	"testing"

	"github.com/ethereum/go-ethereum/accounts/abi"
	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/core/vm"
	"github.com/ethereum/go-ethereum/crypto"

	"github.com/attestd/attestd/appliance"
)

// Emitter is a contract that every Node has. It emits the events that its caller asks for.
var Emitter = appliance.Address(common.HexToAddress("0x00000000000000000000000000000000000E3177"))

// Emission is an event to emit: one to four topics, and data of whole words of 32 bytes. With Store, the two topics are
// a storage slot and the value to write there.
type Emission struct {
	Topics []common.Hash
	Data   []byte
	Store  bool
}

const (
	wordSize  = 32
	storeKind = 5 // in place of the number of topics
	// entryHead is the size of the fixed part of an entry: kind, size of the data, four topics
	entryHead = 6 * wordSize
)

// emitter returns a contract that reads entries from its call data and emits each.
func emitter() []byte {
	a := new(assembler).put(0) // the stack is: position
	a.label("loop").put(vm.DUP1, vm.CALLDATASIZE, vm.GT).jumpIf("entry").put(vm.STOP)
	a.label("entry").put(vm.DUP1, wordSize, vm.ADD, vm.CALLDATALOAD) // position, size
	a.put(vm.DUP1, vm.DUP3, entryHead, vm.ADD, 0, vm.CALLDATACOPY)
	names := []string{"", "log1", "log2", "log3", "log4", "store"}
	for kind := 1; kind <= storeKind; kind++ {
		a.put(vm.DUP2, vm.CALLDATALOAD, kind, vm.EQ).jumpIf(names[kind])
	}
	a.put(0, 0, vm.REVERT)
	topic := func(i, pushed int) { // pushes topic i, from 1, on top of the values pushed since position and size
		a.put(vm.DUP2+vm.OpCode(pushed), wordSize*(1+i), vm.ADD, vm.CALLDATALOAD)
	}
	for n := 1; n <= 4; n++ {
		a.label(names[n])
		for pushed := range n {
			topic(n-pushed, pushed)
		}
		a.put(vm.DUP1+vm.OpCode(n), 0, vm.LOG0+vm.OpCode(n), 1).jumpIf("next")
	}
	a.label("store")
	topic(2, 0)
	topic(1, 1)
	a.put(vm.SSTORE)
	a.label("next").put(vm.ADD, entryHead, vm.ADD, 1).jumpIf("loop").put(vm.STOP)
	return a.bytes()
}

// Emit emits events in one new block.
func (n *Node) Emit(t testing.TB, events ...Emission) *types.Receipt {
	t.Helper()
	return n.send(t, Emitter, callOf(events))
}

func callOf(events []Emission) (call []byte) {
	word := func(n int) {
		call = append(call, common.LeftPadBytes([]byte{byte(n >> 16), byte(n >> 8), byte(n)}, wordSize)...)
	}
	for _, e := range events {
		kind := len(e.Topics)
		if e.Store {
			kind = storeKind
		}
		word(kind)
		word(len(e.Data))
		for i := range 4 {
			if i < len(e.Topics) {
				call = append(call, e.Topics[i][:]...)
			} else {
				word(0)
			}
		}
		call = append(call, e.Data...)
	}
	return call
}

// Argument is a parameter of an event that is not indexed: its Solidity type, and its value as go-ethereum's package
// abi takes it.
type Argument struct {
	Type  string
	Value any
}

// Event returns the emission of a Solidity event. topics are the indexed parameters.
func Event(signature string, topics []common.Hash, data ...Argument) Emission {
	var arguments abi.Arguments
	var values []any
	for _, a := range data {
		solidity, err := abi.NewType(a.Type, "", nil)
		if err != nil {
			panic(err)
		}
		arguments, values = append(arguments, abi.Argument{Type: solidity}), append(values, a.Value)
	}
	packed, err := arguments.Pack(values...)
	if err != nil {
		panic(err)
	}
	return Emission{Topics: append([]common.Hash{crypto.Keccak256Hash([]byte(signature))}, topics...), Data: packed}
}

// Word returns a number as a topic.
func Word(n uint32) common.Hash { return common.BigToHash(new(big.Int).SetUint64(uint64(n))) }
