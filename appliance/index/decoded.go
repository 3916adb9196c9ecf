package index

// appendDecoded computes decoded or decoded_flattened from a packet's data and appends it. It appends null if the data
// cannot be decoded or the channel has another version than zkgm.ChannelVersion.
func appendDecoded(dst []byte, packet Row, field int) []byte {
	decoded, ok := zkgmOf(packet)
	switch {
	case !ok:
		return append(dst, "null"...)
	case field == PacketDecodedFlattenedColumn:
		return decoded.AppendFlatJSON(dst)
	}
	return decoded.AppendJSON(dst)
}
