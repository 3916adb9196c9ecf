package index

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"strconv"
	"strings"
	"time"

	"github.com/btcsuite/btcd/btcutil/bech32"
	"github.com/ethereum/go-ethereum/common"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/index/zkgm"
)

// StakeQuery selects stakes of one kind. Its conditions combine with AND; zero fields do not restrict.
type StakeQuery struct {
	Page
	Kind zkgm.StakeKind
	// Addresses selects stakes with one of these as staker or as receiver of the delivery; as in TransferQuery.
	Addresses        []string
	TransactionHash  string // of the sending transaction
	PacketHash       string
	BlockHash        string // of the block that the packet was sent in
	SourceChain      string // universal chain id
	RemoteChain      string // universal chain id
	DestinationChain string // universal chain id
	Network          Network
}

// stakeTypes are the row types by kind, with the prefix of their step fields and the name of their success field.
var stakeTypes = map[zkgm.StakeKind]struct {
	t             *Type
	prefix, state string
}{
	zkgm.Bond:         {BondType, "bond", "bond_success"},
	zkgm.Unbond:       {UnbondType, "unbond", "success"},
	zkgm.Withdraw:     {WithdrawalType, "withdraw", "withdraw_success"},
	zkgm.DustWithdraw: {DustWithdrawalType, "dust_withdraw", "dust_withdraw_success"},
}

// StakeOf reads a packet as a stake. ok is false for other packets, most of which it rejects without decoding.
func StakeOf(packet Row) (s zkgm.Stake, ok bool) {
	v := packet.value(PacketDataColumn)
	if len(v) == 0 || (v[0] == textHex || v[0] == textSparse) && !bytes.Contains(v, []byte("wasm")) {
		return s, false
	}
	decoded, ok := zkgmOf(packet)
	if !ok {
		return s, false
	}
	return decoded.Stake()
}

// zkgmOf decodes the data of a packet of zkgm.ChannelVersion.
func zkgmOf(packet Row) (p zkgm.Packet, ok bool) {
	var version [32]byte
	if string(packet.AppendText(version[:0], PacketChannelVersionColumn)) != zkgm.ChannelVersion {
		return p, false
	}
	text := packet.AppendText(nil, PacketDataColumn)
	if !isHex(text) {
		return p, false
	}
	data, _ := appendUnhex(make([]byte, 0, len(text)/2), text[2:])
	p, err := zkgm.Decode(data)
	return p, err == nil
}

// Delivers reports whether a stake's proxy sent this packet as its delivery. It ignores the salt, which the contract
// derives anew.
func Delivers(packet Row, d zkgm.Delivery) bool {
	if channel, ok := packet.Int(PacketSourceChannelColumn); !ok || uint32(channel) != d.Channel {
		return false
	}
	sent, ok := zkgmOf(packet)
	return ok && sent.Instruction.Version == d.Instruction.Version && sent.Instruction.Opcode == d.Instruction.Opcode &&
		bytes.Equal(sent.Instruction.Operand, d.Instruction.Operand)
}

// NewStake returns the row of a stake. packet is the stake's packet; delivery is the packet that delivers, or the zero
// Row if it is not known yet. destination is the universal chain id that the delivery goes to; Unbond delivers to no
// chain.
func NewStake(s zkgm.Stake, packet, delivery Row, destination string) (Row, error) {
	of := stakeTypes[s.Kind]
	v := values{}
	for name, column := range map[string]int{
		"sort_order": PacketSortOrderColumn, "packet_hash": PacketHashColumn, "packet_shape": PacketStructureColumn,
		"source_universal_chain_id": PacketSourceChainColumn, "remote_universal_chain_id": PacketDestinationChainColumn,
	} {
		v.text(name, packet, column)
	}
	if _, told := v["packet_shape"]; !told {
		if decoded, ok := zkgmOf(packet); ok {
			v["packet_shape"] = decoded.Instruction.Shape()
		}
	}
	v["destination_universal_chain_id"] = destination
	v.steps(of.prefix, packet, of.state)
	v.address("staker", s.Staker)
	if s.Order != nil {
		v.address("sender", s.Order.Sender)
		v["base_token"], v["base_amount"] = hexOf(s.Order.BaseToken), s.Order.BaseAmount.String()
	}
	if order := s.Delivery.Order; order != nil {
		v.address("receiver", order.Receiver)
		v["quote_token"], v["quote_amount"] = hexOf(order.QuoteToken), order.QuoteAmount.String()
		v["remote_base_token"], v["remote_base_amount"] = hexOf(order.BaseToken), order.BaseAmount.String()
	}
	if s.Kind == zkgm.Bond { // on the hub's chain, the incoming token is the base and the outgoing token the quote
		v["remote_quote_token"], v["remote_quote_amount"] = v["remote_base_token"], v["remote_base_amount"]
		v["remote_base_token"], v["remote_base_amount"] = hexOf(s.Order.QuoteToken), s.Order.QuoteAmount.String()
	}
	if s.Batches != nil {
		v["batches"] = batchesOf(s.Batches)
	}
	if !delivery.IsZero() {
		v.text("delivery_packet_hash", delivery, PacketHashColumn)
		v.steps("delivery", delivery, "delivery_success")
	}
	return v.row(of.t)
}

// batchesOf returns the batches of a withdrawal as an object of nulls, because no packet contains the amount of each.
func batchesOf(ids []uint64) json.RawMessage {
	batches := make(map[string]any, len(ids))
	for _, id := range ids {
		batches[strconv.FormatUint(id, 10)] = nil
	}
	text, err := json.Marshal(batches)
	if err != nil {
		panic(err) // strings and nulls always marshal
	}
	return text
}

// values are the fields of a row to be built, by name. Names that the type lacks are ignored.
type values map[string]any

func (v values) text(name string, from Row, column int) {
	if text, ok := from.Text(column); ok {
		v[name] = text
	}
}

func (v values) time(name string, from Row, column int) {
	if at, ok := from.Time(column); ok {
		v[name] = at
	}
}

// steps sets the step fields from a packet. A packet that timed out has failed.
func (v values) steps(prefix string, packet Row, state string) {
	v.time(prefix+"_send_timestamp", packet, PacketSentColumn)
	v.text(prefix+"_send_transaction_hash", packet, PacketSendTransactionColumn)
	v.time(prefix+"_recv_timestamp", packet, PacketReceivedColumn)
	v.text(prefix+"_recv_transaction_hash", packet, PacketReceiveTransactionColumn)
	v.time(prefix+"_timeout_timestamp", packet, PacketTimedOutColumn)
	v.text(prefix+"_timeout_transaction_hash", packet, PacketTimeoutTransactionColumn)
	if success, ok := packet.Bool(PacketSuccessColumn); ok {
		v[state] = success
	} else if !packet.IsNull(PacketTimedOutColumn) {
		v[state] = false
	}
}

func (v values) address(who string, carried []byte) {
	a := AddressOf(carried)
	v[who+"_canonical"], v[who+"_display"], v[who+"_zkgm"] = a.Canonical, a.Display, a.Zkgm
}

func (v values) row(t *Type) (Row, error) {
	e := encoders.Get().(*encoder)
	defer e.release()
	base, mark := e.begin(t)
	for i := range t.Fields {
		f, start := &t.Fields[i], len(e.buf)
		var err error
		switch value := v[f.Name].(type) {
		case nil:
			continue
		case string:
			err = e.text(f, value)
		case bool:
			e.bool(value)
		case int32:
			e.buf = binary.AppendVarint(e.buf, int64(value))
		case time.Time:
			err = e.time(f, value)
		case json.RawMessage:
			err = e.json(f, value)
		default:
			return Row{}, appliance.Errorf(appliance.CodeInternal, "a %T in a row", value).In(f.Name)
		}
		if err != nil {
			return Row{}, err
		}
		e.set(base+i, start)
	}
	if err := e.finish(t, base, mark); err != nil {
		return Row{}, err
	}
	return Row{t: t, b: bytes.Clone(e.buf)}, nil
}

// Address is an account in its three forms (UCS-05).
type Address struct{ Canonical, Display, Zkgm string }

// AddressOf returns the forms of an address from its bytes in the protocol: text in bech32 (BIP-173), or the raw bytes.
// Raw addresses of 20 bytes are displayed with the checksum of EIP-55.
func AddressOf(carried []byte) Address {
	a := Address{Canonical: hexOf(carried), Zkgm: hexOf(carried)}
	a.Display = a.Canonical
	if _, raw, err := bech32.DecodeToBase256(string(carried)); err == nil {
		a.Canonical, a.Display = hexOf(raw), string(carried)
	} else if len(carried) == common.AddressLength {
		a.Display = common.BytesToAddress(carried).Hex()
	}
	return a
}

// Unhex returns the bytes of hex digits of any case, with or without 0x; nil for any other text.
func Unhex(text string) []byte {
	raw, err := hex.DecodeString(strings.TrimPrefix(strings.ToLower(text), "0x"))
	if err != nil {
		return nil
	}
	return raw
}

func hexOf(b []byte) string { return "0x" + hex.EncodeToString(b) }
