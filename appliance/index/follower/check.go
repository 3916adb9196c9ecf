package follower

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"math/big"
	"strconv"
	"strings"

	"github.com/btcsuite/btcd/btcutil/bech32"

	"github.com/attestd/attestd/appliance/index"
	"github.com/attestd/attestd/appliance/index/zkgm"
)

// checkPacket checks that a packet's hash matches its channels, data and timeouts, as UCS-03 defines it. The error
// names the mismatch or the missing field.
func checkPacket(packet index.Row) error {
	source, err := channelID(packet, index.PacketSourceChannelColumn)
	if err != nil {
		return err
	}
	destination, err := channelID(packet, index.PacketDestinationChannelColumn)
	if err != nil {
		return err
	}
	data, err := packetData(packet)
	if err != nil {
		return err
	}
	height, err := decimal(packet, index.PacketTimeoutHeightColumn)
	if err != nil {
		return err
	}
	timestamp, err := decimal(packet, index.PacketTimeoutTimestampColumn)
	if err != nil {
		return err
	}
	hash := zkgm.PacketHash(source, destination, data, height, timestamp)
	if claimed, _ := packet.Text(index.PacketHashColumn); !hexFact(hash[:]).agrees(claimed) {
		return fmt.Errorf("packet_hash is %s, but channels, data and timeouts give %s", show(claimed), hexFact(hash[:]))
	}
	return nil
}

func channelID(packet index.Row, column int) (uint32, error) {
	n, ok := packet.Int(column)
	field := packet.Type().Fields[column].Name
	switch {
	case !ok:
		return 0, missingMember(field)
	case n < 0:
		return 0, fmt.Errorf("%s is %d, which is not a channel", field, n)
	}
	return uint32(n), nil
}

func decimal(packet index.Row, column int) (uint64, error) {
	text, ok := packet.Text(column)
	field := packet.Type().Fields[column].Name
	if !ok {
		return 0, missingMember(field)
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%s is %s, which is not a 64-bit decimal number", field, show(text))
	}
	return n, nil
}

// packetData returns the bytes of a packet's data.
func packetData(packet index.Row) ([]byte, error) {
	if packet.IsNull(index.PacketDataColumn) {
		return nil, missingMember("data")
	}
	const usual = 4 << 10
	text := packet.AppendText(make([]byte, 0, usual), index.PacketDataColumn)
	if len(text) < 2 || text[0] != '0' || text[1]|0x20 != 'x' {
		return nil, errors.New("data must begin with 0x")
	}
	n, err := hex.Decode(text, text[2:])
	if err != nil {
		return nil, fmt.Errorf("data is not hex: %w", err)
	}
	return text[:n], nil
}

func missingMember(field string) error {
	return fmt.Errorf("%s is missing, so the row cannot be checked", field)
}

// checkTransfer checks a transfer against its packet and the packet's token order at transfer_index: sender, receiver,
// tokens and amounts. o is the result of decodeOrders for the packet. A null token-order field passes. The error names
// the mismatch.
func checkTransfer(transfer, packet index.Row, o *orders) error {
	for _, same := range transferOfPacket {
		if o.carried && same.packet == index.PacketDestinationChainColumn {
			continue
		}
		claimed, _ := transfer.Text(same.transfer)
		if truth, _ := packet.Text(same.packet); claimed != truth &&
			(same.packet != index.PacketHashColumn || !strings.EqualFold(claimed, truth)) {
			return fmt.Errorf("%s is %s, but the packet's is %s", transfer.Type().Fields[same.transfer].Name,
				show(claimed), show(truth))
		}
	}
	if o.err != nil {
		return o.err
	}
	number, _ := transfer.Int(index.TransferIndexColumn)
	if number < 0 || int(number) >= len(o.list) {
		return fmt.Errorf("transfer_index is %d, but the packet's data has %d orders", number, len(o.list))
	}
	for i, fact := range o.list[number].facts() {
		field := transferFacts[i]
		if claimed, ok := transfer.Text(field); ok && !fact.agrees(claimed) {
			return fmt.Errorf("%s is %s, but the packet's data has %s", transfer.Type().Fields[field].Name,
				show(claimed), show(fact.String()))
		}
	}
	return nil
}

var (
	// transferOfPacket lists the columns that a transfer shares with its packet.
	transferOfPacket = [...]struct{ transfer, packet int }{
		{index.TransferPacketColumn, index.PacketHashColumn},
		{index.TransferSourceChainColumn, index.PacketSourceChainColumn},
		{index.TransferDestinationChainColumn, index.PacketDestinationChainColumn},
	}
	// transferFacts lists the columns that order.facts returns, in the same order.
	transferFacts = [...]int{
		index.TransferSenderZkgmColumn,
		index.TransferSenderCanonicalColumn,
		index.TransferSenderDisplayColumn,
		index.TransferReceiverZkgmColumn,
		index.TransferReceiverCanonicalColumn,
		index.TransferReceiverDisplayColumn,
		index.TransferBaseTokenColumn,
		index.TransferBaseAmountColumn,
		index.TransferQuoteTokenColumn,
		index.TransferQuoteAmountColumn,
	}
)

// facts returns the expected values of the transferFacts columns.
func (o *order) facts() [len(transferFacts)]fact {
	return [...]fact{
		hexFact(o.sender), canonicalFact(o.sender), displayFact(o.sender),
		hexFact(o.receiver), canonicalFact(o.receiver), displayFact(o.receiver),
		hexFact(o.baseToken), amountFact{o.baseAmount}, hexFact(o.quoteToken), amountFact{o.quoteAmount},
	}
}

// fact is the expected value of a text column.
type fact interface {
	agrees(text string) bool
	String() string
}

// hexFact is a byte string that is written as 0x-hex.
type hexFact []byte

func (f hexFact) agrees(text string) bool {
	return len(text) == 2+2*len(f) && strings.EqualFold(text, f.String())
}

func (f hexFact) String() string { return "0x" + hex.EncodeToString(f) }

// amountFact is a decimal number.
type amountFact struct{ *big.Int }

func (f amountFact) agrees(text string) bool {
	digits := strings.TrimLeft(text, "0")
	if digits == "" && text != "" {
		digits = "0"
	}
	return digits == f.String()
}

// canonicalFact is the canonical form (UCS-05) of an address. It is held as the bytes in the protocol: either the
// canonical bytes or, as on Cosmos chains, the text of a bech32 address.
type canonicalFact []byte

func (f canonicalFact) agrees(text string) bool {
	if hexFact(f).agrees(text) {
		return true
	}
	address, ok := bech32Bytes(string(f))
	return ok && hexFact(address).agrees(text)
}

func (f canonicalFact) String() string {
	if address, ok := bech32Bytes(string(f)); ok {
		return hexFact(address).String()
	}
	return hexFact(f).String()
}

// displayFact is an address as its chain displays it. It is held as the bytes in the protocol. It agrees with the same
// text, with the canonical bytes as hex (leading zeros may be missing), and with their bech32 form.
type displayFact []byte

func (f displayFact) agrees(text string) bool {
	if text == string(f) || sameNumber(text, hexFact(f).String()) {
		return true
	}
	carried, isText := bech32Bytes(string(f))
	if isText && sameNumber(text, hexFact(carried).String()) {
		return true
	}
	shown, ok := bech32Bytes(text)
	return ok && (bytes.Equal(shown, f) || isText && bytes.Equal(shown, carried))
}

func (f displayFact) String() string {
	if _, ok := bech32Bytes(string(f)); ok {
		return string(f)
	}
	return hexFact(f).String()
}

// sameNumber reports whether two 0x-hex texts are the same number.
func sameNumber(a, b string) bool {
	digits := func(text string) (string, bool) {
		if len(text) < 2 || !strings.EqualFold(text[:2], "0x") {
			return "", false
		}
		return strings.TrimLeft(text[2:], "0"), true
	}
	x, ok := digits(a)
	y, also := digits(b)
	return ok && also && strings.EqualFold(x, y)
}

// bech32Bytes returns the bytes of an address in bech32 (BIP-173).
func bech32Bytes(text string) ([]byte, bool) {
	_, b, err := bech32.DecodeToBase256(text)
	return b, err == nil
}

// show formats a text of the upstream for an error. It shortens the text and escapes control characters, which a
// terminal or a log might interpret.
func show(text string) string {
	const most = 200
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "…"
	}
	quoted := strconv.Quote(text)
	return quoted[1 : len(quoted)-1]
}
