package indexer

import (
	"bytes"
	"math/big"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/btcsuite/btcd/btcutil/bech32"
	"github.com/ethereum/go-ethereum/accounts/abi"

	"github.com/attestd/attestd/appliance/index"
	"github.com/attestd/attestd/appliance/index/zkgm"
)

// structureOf returns the instructions of a packet as place:opcode/version, in depth-first order.
func structureOf(p zkgm.Packet) string {
	var parts []string
	for _, i := range p.Instructions() {
		parts = append(parts, i.Place+":"+strconv.Itoa(int(i.Opcode))+"/"+strconv.Itoa(int(i.Version)))
	}
	return strings.Join(parts, ",")
}

// order is a token order of either version.
type order struct {
	version                                 uint8
	sender, receiver, baseToken, quoteToken []byte
	baseAmount, quoteAmount                 *big.Int

	basePath     *big.Int // of version 1; nil for version 2
	name, symbol *string  // of the base token; nil if the order does not have them
	decimals     *int32
}

func orderOf(o zkgm.Operation) order {
	switch o := o.(type) {
	case *zkgm.TokenOrderV1:
		return order{
			version: 1, sender: o.Sender, receiver: o.Receiver, baseToken: o.BaseToken, quoteToken: o.QuoteToken,
			baseAmount: o.BaseAmount, quoteAmount: o.QuoteAmount, basePath: o.BaseTokenPath,
			name: new(printable(o.BaseTokenName)), symbol: new(printable(o.BaseTokenSymbol)),
			decimals: new(int32(o.BaseTokenDecimals)),
		}
	case *zkgm.TokenOrderV2:
		one := order{version: 2, sender: o.Sender, receiver: o.Receiver, baseToken: o.BaseToken,
			quoteToken: o.QuoteToken, baseAmount: o.BaseAmount, quoteAmount: o.QuoteAmount}
		if o.Kind != zkgm.OrderSolve {
			one.name, one.symbol, one.decimals = namesIn(o.Metadata)
		}
		return one
	}
	return order{}
}

// printable replaces bytes that are not UTF-8: a sender chooses the text.
func printable(s string) string { return strings.ToValidUTF8(s, "\ufffd") }

// transferOrders returns the order of a packet that is a transfer, and the order that pays its fee, if it has one. ok
// is false for other packets. A packet has at most one transfer.
func transferOrders(p zkgm.Packet) (main order, fee *order, shape string, ok bool) {
	structure := structureOf(p)
	orders := p.Instruction.Orders()
	if len(orders) == 0 {
		return main, nil, "", false
	}
	main = orderOf(orders[0])
	version := strconv.Itoa(int(main.version))
	switch structure {
	case ":3/" + version:
		return main, nil, "transfer_v" + version, true
	case ":2/0,0:3/" + version:
		return main, nil, "batch_v0_transfer_v" + version, true
	case ":2/0,0:3/" + version + ",1:3/" + version:
		if len(orders) == 2 && orderOf(orders[1]).quoteAmount.Sign() == 0 {
			fee = new(orderOf(orders[1]))
			return main, fee, "batch_v0_transfer_v" + version + "_fee", true
		}
	}
	return main, nil, "", false
}

// portOf returns the port of a contract as rows have it, from the contract's address.
func portOf(address string) string {
	if strings.HasPrefix(address, "0x") {
		return strings.ToLower(address)
	}
	return hexOf([]byte(address))
}

// isTransferring reports whether both ends of a packet are contracts for transfers. ports are these by chain.
func isTransferring(p *index.Packet, ports map[string]string) bool {
	is := func(chain string, port *string) bool {
		want := ports[chain]
		return want != "" && port != nil && *port == want
	}
	return is(p.SourceUniversalChainID, p.SourcePortID) && is(p.DestUniversalChainID, p.DestinationPortID)
}

// transferOf returns the transfer of a packet. ok is false if the packet is none. ports are the contracts for transfers
// by chain.
func transferOf(p *index.Packet, ports map[string]string) (t index.Transfer, ok bool) {
	if p.ChannelVersion == nil || *p.ChannelVersion != zkgm.ChannelVersion || p.Data == nil || !isTransferring(p, ports) {
		return t, false
	}
	data, err := decodeHex(*p.Data)
	if err != nil {
		return t, false
	}
	decoded, err := zkgm.Decode(data)
	if err != nil {
		return t, false
	}
	main, fee, shape, ok := transferOrders(decoded)
	if !ok {
		return t, false
	}
	t = index.Transfer{
		SortOrder: p.SortOrder + "-000", PacketHash: p.PacketHash, Status: p.Status, Success: p.Success,
		SourceUniversalChainID: p.SourceUniversalChainID, DestUniversalChainID: p.DestUniversalChainID,
		SendTimestamp: p.SendTimestamp, SendTransactionHash: p.SendTransactionHash,
		RecvTimestamp: p.RecvTimestamp, RecvTransactionHash: p.RecvTransactionHash,
		TimeoutTimestamp: p.PacketTimeoutTimestamp, TimeoutTransactionHash: p.PacketTimeoutTransactionHash,
		PacketShape: new(shape),
		BaseToken:   new(hexOf(main.baseToken)), BaseAmount: new(main.baseAmount.String()),
		QuoteToken: new(hexOf(main.quoteToken)), QuoteAmount: new(main.quoteAmount.String()),
		BaseTokenName: main.name, BaseTokenSymbol: main.symbol, BaseTokenDecimals: main.decimals,
	}
	if main.basePath != nil {
		t.BaseTokenPath = new(main.basePath.String())
	}
	t.SenderCanonical, t.SenderDisplay, t.SenderZkgm = addressForms(main.sender)
	t.ReceiverCanonical, t.ReceiverDisplay, t.ReceiverZkgm = addressForms(main.receiver)
	switch {
	case fee != nil:
		t.FeeType, t.FeeToken, t.FeeAmount = new("instruction"), new(hexOf(fee.baseToken)),
			new(fee.baseAmount.String())
	case main.version == 2: // has no wrap_direction
		t.FeeType = new("swap")
	}
	return t, true
}

// evmAddress is the size of an EVM chain's address in bytes.
const evmAddress = 20

// addressForms returns the three forms of an address (UCS-05) from its bytes in the protocol: EVM chains send the raw
// bytes, Cosmos chains the text.
func addressForms(sent []byte) (canonical, display, protocol *string) {
	raw := hexOf(sent)
	if len(sent) == evmAddress || !utf8.Valid(sent) || bytes.IndexByte(sent, 0) >= 0 || len(sent) == 0 {
		return new(raw), new(raw), new(raw)
	}
	if _, account, err := bech32.DecodeToBase256(string(sent)); err == nil {
		return new(hexOf(account)), new(string(sent)), new(raw)
	}
	return new(raw), new(string(sent)), new(raw)
}

// initialize is the selector of the initializer of a wrapped token on an EVM chain.
var initialize = []byte{0x84, 0x20, 0xce, 0x99}

var (
	metadataForm    = argumentsOf("bytes", "bytes")
	initializerForm = argumentsOf("address", "address", "string", "string", "uint8")
)

func argumentsOf(types ...string) (all abi.Arguments) {
	for _, name := range types {
		all = append(all, abi.Argument{Type: typeOf(name)})
	}
	return all
}

// namesIn returns the name, symbol and decimals of a wrapped token in its metadata: in that of an order, or of the
// event that created it. They are nil if the metadata is not that of an EVM chain's token.
func namesIn(metadata []byte) (name, symbol *string, decimals *int32) {
	parts, err := metadataForm.Unpack(metadata)
	if err != nil {
		return nil, nil, nil
	}
	call := parts[1].([]byte)
	if !bytes.HasPrefix(call, initialize) {
		return nil, nil, nil
	}
	values, err := initializerForm.Unpack(call[len(initialize):])
	if err != nil {
		return nil, nil, nil
	}
	return new(printable(values[2].(string))), new(printable(values[3].(string))), new(int32(values[4].(uint8)))
}
