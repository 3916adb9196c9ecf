package indexer

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/crypto"
	"github.com/ethereum/go-ethereum/ethdb/memorydb"
	"github.com/ethereum/go-ethereum/rlp"
	"github.com/ethereum/go-ethereum/trie"
)

func keccak(parts ...[]byte) []byte { return crypto.Keccak256(parts...) }

// The first words of the keys of a packet's commitment and of its receipt in the core contract.
const (
	packetKey  = 4
	receiptKey = 5
)

// PacketSlot returns the storage slot in which an EVM core contract has the commitment of a packet that was sent. The
// contract's mapping of commitments is its first variable.
func PacketSlot(packet common.Hash) common.Hash { return slotOf(packetKey, packet) }

// ReceiptSlot returns the storage slot in which an EVM core contract has the receipt of a packet.
func ReceiptSlot(packet common.Hash) common.Hash { return slotOf(receiptKey, packet) }

func slotOf(kind byte, packet common.Hash) common.Hash {
	key := keccak(common.LeftPadBytes([]byte{kind}, 32), packet[:])
	return common.BytesToHash(keccak(key, make([]byte, 32)))
}

// ReceiptOnly is the value in ReceiptSlot of a packet whose acknowledgement is not written yet.
var ReceiptOnly = common.Hash{0x01}

var acksForm = argumentsOf("bytes[]")

// CommitmentOfAck returns the value in ReceiptSlot of a packet with that acknowledgement.
func CommitmentOfAck(ack []byte) common.Hash {
	packed, err := acksForm.Pack([][]byte{ack})
	if err != nil { // the form above is invalid
		panic(err)
	}
	value := common.BytesToHash(keccak(packed))
	value[0] = 0x01
	return value
}

// The commitments of a packet in PacketSlot.
var (
	CommitmentSent = common.Hash{0x01} // sent, and neither acknowledged nor timed out
	CommitmentDone = common.Hash{0x02} // acknowledged or timed out
)

// proofAnswer is an answer of eth_getProof (EIP-1186).
type proofAnswer struct {
	Account []hexutil.Bytes `json:"accountProof"`
	Storage []struct {
		Key   string          `json:"key"`
		Proof []hexutil.Bytes `json:"proof"`
	} `json:"storageProof"`
}

// proveStorage returns the storage root of a contract that a Merkle-Patricia proof shows under a state root.
func proveStorage(stateRoot common.Hash, contract common.Address, nodes []hexutil.Bytes) (root common.Hash, err error) {
	leaf, err := prove(stateRoot, keccak(contract[:]), nodes)
	if err != nil {
		return root, fmt.Errorf("the account proof of %s: %w", contract, err)
	}
	if len(leaf) == 0 {
		return root, fmt.Errorf("there is no contract %s in the state %s", contract, stateRoot)
	}
	var account types.StateAccount
	if err := rlp.DecodeBytes(leaf, &account); err != nil {
		return root, fmt.Errorf("the account %s: %w", contract, err)
	}
	return account.Root, nil
}

// proveSlot returns the value of a slot that a Merkle-Patricia proof shows under a storage root. It is zero if the
// proof shows that the slot is empty.
func proveSlot(storageRoot, slot common.Hash, nodes []hexutil.Bytes) (value common.Hash, err error) {
	if storageRoot == types.EmptyRootHash {
		return value, nil
	}
	leaf, err := prove(storageRoot, keccak(slot[:]), nodes)
	if err != nil {
		return value, fmt.Errorf("the storage proof of slot %s: %w", slot, err)
	}
	if len(leaf) == 0 {
		return value, nil
	}
	var content []byte
	if err := rlp.DecodeBytes(leaf, &content); err != nil || len(content) > len(value) {
		return value, errors.Join(fmt.Errorf("slot %s is not a word", slot), err)
	}
	return common.BytesToHash(content), nil
}

// prove returns the value that a Merkle-Patricia proof shows for a key; nil if it shows that there is none.
func prove(root common.Hash, key []byte, nodes []hexutil.Bytes) ([]byte, error) {
	set := memorydb.New()
	for _, node := range nodes {
		if err := set.Put(keccak(node), bytes.Clone(node)); err != nil {
			return nil, err
		}
	}
	return trie.VerifyProof(root, key, set)
}
