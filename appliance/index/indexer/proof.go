package indexer

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/rlp"

	"github.com/attestd/attestd/appliance/index"
)

// PacketProof proves the commitment of a packet in the core contract of an EVM chain after a block. As JSON, it is the
// file of 'attestd verify packet', which docs/proofs.md describes.
type PacketProof struct {
	Chain        string          `json:"chain"` // universal chain id
	Core         common.Address  `json:"core"`  // the core contract
	Packet       ProvenPacket    `json:"packet"`
	PacketHash   common.Hash     `json:"packetHash"`
	Slot         common.Hash     `json:"slot"`  // PacketSlot
	Value        common.Hash     `json:"value"` // of the slot
	Block        ProvenBlock     `json:"block"`
	Header       hexutil.Bytes   `json:"header"`       // of the block, in RLP
	AccountProof []hexutil.Bytes `json:"accountProof"` // as eth_getProof returns it (EIP-1186)
	StorageProof []hexutil.Bytes `json:"storageProof"`
}

// ProvenPacket is a Packet in JSON.
type ProvenPacket struct {
	SourceChannel      uint32        `json:"sourceChannelId"`
	DestinationChannel uint32        `json:"destinationChannelId"`
	Data               hexutil.Bytes `json:"data"`
	TimeoutHeight      uint64        `json:"timeoutHeight,string"`
	TimeoutTimestamp   uint64        `json:"timeoutTimestamp,string"` // nanoseconds since 1970
}

// ProvenBlock names a block.
type ProvenBlock struct {
	Number uint64      `json:"number"`
	Hash   common.Hash `json:"hash"`
}

// Fault is the kind of an error in a proof.
type Fault string

// The faults of a proof.
const (
	FaultPacketHash Fault = "wrong packet hash" // the packet's bytes have another hash
	FaultContract   Fault = "wrong contract"    // the core contract is not the expected one
	FaultSlot       Fault = "wrong slot"        // the slot is not the packet's
	FaultBlockHash  Fault = "wrong block hash"  // the header does not have the block's hash
	FaultNode       Fault = "missing node"      // a node of the state is missing, truncated or changed
	FaultValue      Fault = "value differs"     // the state has another value in the slot
)

// ProofError is an error of PacketProof.Verify.
type ProofError struct {
	Fault Fault
	Text  string // the details
}

// Error returns the fault and the details.
func (e *ProofError) Error() string { return string(e.Fault) + ": " + e.Text }

func faulty(fault Fault, format string, args ...any) error {
	return &ProofError{fault, fmt.Sprintf(format, args...)}
}

// ParsePacketProof parses the JSON of a PacketProof.
func ParsePacketProof(text []byte) (*PacketProof, error) {
	p := new(PacketProof)
	if err := json.Unmarshal(text, p); err != nil {
		return nil, fmt.Errorf("not a proof of a packet: %w", err)
	}
	if len(p.Header) == 0 {
		return nil, errors.New("not a proof of a packet: it has no header")
	}
	return p, nil
}

// Verify checks the proof without a server. core is the core contract of the chain. block is the hash of the block,
// from a source that the caller trusts; if it is zero, the hash in the proof is used, and the proof is only consistent
// with itself. A proof of a packet that was never sent is valid, too: its Value is zero.
//
// Errors: *ProofError.
func (p *PacketProof) Verify(core common.Address, block common.Hash) error {
	if hash := p.Packet.packet().Hash(); hash != p.PacketHash {
		return faulty(FaultPacketHash, "the packet has the hash %s, and the proof says %s", hash, p.PacketHash)
	}
	if p.Core != core {
		return faulty(FaultContract, "the proof is about %s, and the core contract is %s", p.Core, core)
	}
	if slot := PacketSlot(p.PacketHash); slot != p.Slot {
		return faulty(FaultSlot, "the packet has the slot %s, and the proof says %s", slot, p.Slot)
	}
	header, err := p.header()
	if err != nil {
		return err
	}
	if block != (common.Hash{}) && block != p.Block.Hash {
		return faulty(FaultBlockHash, "the proof is about block %s, not %s", p.Block.Hash, block)
	}
	root, err := proveStorage(header.Root, p.Core, p.AccountProof)
	if err != nil {
		return faulty(FaultNode, "%v", err)
	}
	value, err := proveSlot(root, p.Slot, p.StorageProof)
	if err != nil {
		return faulty(FaultNode, "%v", err)
	}
	if value != p.Value {
		return faulty(FaultValue, "the state of block %d has %s, and the proof says %s", p.Block.Number, value, p.Value)
	}
	return nil
}

// header decodes the header, which must have the number and the hash of the block.
func (p *PacketProof) header() (*types.Header, error) {
	if hash := common.BytesToHash(keccak(p.Header)); hash != p.Block.Hash {
		return nil, faulty(FaultBlockHash, "the header has the hash %s, and the proof says %s", hash, p.Block.Hash)
	}
	header := new(types.Header)
	if err := rlp.DecodeBytes(p.Header, header); err != nil {
		return nil, faulty(FaultBlockHash, "the header cannot be read: %v", err)
	}
	if !header.Number.IsUint64() || header.Number.Uint64() != p.Block.Number {
		return nil, faulty(FaultBlockHash, "the header is of block %s, and the proof says %d", header.Number,
			p.Block.Number)
	}
	return header, nil
}

func (p *ProvenPacket) packet() *Packet {
	return &Packet{p.SourceChannel, p.DestinationChannel, p.Data, p.TimeoutHeight, p.TimeoutTimestamp}
}

// Columns of packets that only proofs read.
var (
	sendHeightColumn      = index.PacketType.MustField("packet_send_height").Number
	recvHeightColumn      = index.PacketType.MustField("packet_recv_height").Number
	writeAckHeightColumn  = index.PacketType.MustField("write_ack_height").Number
	ackHeightColumn       = index.PacketType.MustField("packet_ack_height").Number
	timeoutHeightColumn   = index.PacketType.MustField("packet_timeout_height").Number
	acknowledgementColumn = index.PacketType.MustField("acknowledgement").Number
)

// provenPacketOf returns the packet of a row, and its hash.
//
// Errors: a field that the hash needs is missing or malformed; the row's packet_hash is another one.
func provenPacketOf(row index.Row) (p ProvenPacket, hash common.Hash, err error) {
	for column, into := range map[int]*uint32{index.PacketSourceChannelColumn: &p.SourceChannel,
		index.PacketDestinationChannelColumn: &p.DestinationChannel} {
		id, ok := row.Int(column)
		if !ok || id < 0 {
			return p, hash, fmt.Errorf("%s is missing or negative", index.PacketType.Fields[column].Name)
		}
		*into = uint32(id)
	}
	for column, into := range map[int]*uint64{index.PacketTimeoutHeightColumn: &p.TimeoutHeight,
		index.PacketTimeoutTimestampColumn: &p.TimeoutTimestamp} {
		if *into, err = numberIn(row, column); err != nil {
			return p, hash, err
		}
	}
	text, _ := row.Text(index.PacketDataColumn)
	if p.Data, err = decodeHex(text); err != nil {
		return p, hash, fmt.Errorf("data: %w", err)
	}
	hash = p.packet().Hash()
	if claimed, err := hashIn(row); err != nil || claimed != hash {
		return p, hash, fmt.Errorf("its fields have the hash %s, and packet_hash is %.80q", hash, row.Key())
	}
	return p, hash, nil
}

func hashIn(row index.Row) (hash common.Hash, err error) {
	text, _ := row.Text(index.PacketHashColumn)
	err = hash.UnmarshalText([]byte(text))
	return hash, err
}

func numberIn(row index.Row, column int) (uint64, error) {
	text, _ := row.Text(column)
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%s is missing or not a number", index.PacketType.Fields[column].Name)
	}
	return n, nil
}
