package index

import "github.com/attestd/attestd/appliance/index/zkgm"

// appendDecoded appends decoded or decoded_flattened of a packet whose row does not have it: made from its data, where
// its channel's version is one that can be read; else null.
func appendDecoded(dst []byte, packet Row, field int) []byte {
	var version [32]byte
	if string(packet.AppendText(version[:0], PacketChannelVersionColumn)) != zkgm.ChannelVersion {
		return append(dst, "null"...)
	}
	text := packet.AppendText(nil, PacketDataColumn)
	if !isHex(text) {
		return append(dst, "null"...)
	}
	data, _ := appendUnhex(make([]byte, 0, len(text)/2), text[2:])
	decoded, err := zkgm.Decode(data)
	switch {
	case err != nil:
		return append(dst, "null"...)
	case field == PacketDecodedFlattenedColumn:
		return decoded.AppendFlatJSON(dst)
	}
	return decoded.AppendJSON(dst)
}
