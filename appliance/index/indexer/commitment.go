package indexer

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/crypto"
	"github.com/ethereum/go-ethereum/ethdb/memorydb"
	"github.com/ethereum/go-ethereum/rlp"
	"github.com/ethereum/go-ethereum/trie"
)

func keccak(parts ...[]byte) []byte { return crypto.Keccak256(parts...) }

// packetKey is the first word of the key of a packet's commitment in the core contract.
const packetKey = 4

// PacketSlot returns the storage slot in which an EVM core contract has the commitment of a packet that was sent. The
// contract's mapping of commitments is its first variable.
func PacketSlot(packet common.Hash) common.Hash {
	key := keccak(common.LeftPadBytes([]byte{packetKey}, 32), packet[:])
	return common.BytesToHash(keccak(key, make([]byte, 32)))
}

// The commitments of a packet in PacketSlot.
var (
	CommitmentSent = common.Hash{0x01} // sent, and neither acknowledged nor timed out
	CommitmentDone = common.Hash{0x02} // acknowledged or timed out
)

// Proof is an answer of eth_getProof (EIP-1186) for one slot.
type Proof struct {
	Account []hexBytes `json:"accountProof"`
	Storage []struct {
		Key   string     `json:"key"`
		Proof []hexBytes `json:"proof"`
	} `json:"storageProof"`
}

// hexBytes is 0x-hex in JSON.
type hexBytes []byte

// UnmarshalText implements encoding.TextUnmarshaler.
func (b *hexBytes) UnmarshalText(text []byte) error {
	raw, err := decodeHex(string(text))
	*b = raw
	return err
}

// Verify checks the proof of a contract's slot against the state root of a block, and returns the slot's value, which
// is zero if the proof shows that the slot is empty.
func (p Proof) Verify(stateRoot common.Hash, contract common.Address, slot common.Hash) (value common.Hash, err error) {
	leaf, err := prove(stateRoot, keccak(contract[:]), p.Account)
	if err != nil {
		return value, fmt.Errorf("the account proof of %s: %w", contract, err)
	}
	if len(leaf) == 0 {
		return value, fmt.Errorf("there is no account %s in the state %s", contract, stateRoot)
	}
	var account types.StateAccount
	if err := rlp.DecodeBytes(leaf, &account); err != nil {
		return value, fmt.Errorf("the account %s: %w", contract, err)
	}
	if len(p.Storage) != 1 {
		return value, fmt.Errorf("%d storage proofs instead of one", len(p.Storage))
	}
	if account.Root == types.EmptyRootHash {
		return value, nil
	}
	leaf, err = prove(account.Root, keccak(slot[:]), p.Storage[0].Proof)
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
func prove(root common.Hash, key []byte, nodes []hexBytes) ([]byte, error) {
	set := memorydb.New()
	for _, node := range nodes {
		if err := set.Put(keccak(node), bytes.Clone(node)); err != nil {
			return nil, err
		}
	}
	return trie.VerifyProof(root, key, set)
}
