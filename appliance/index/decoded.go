package index

// appendDecoded appends decoded or decoded_flattened of a packet whose row does not have it: made from its data, where
// its channel's version is one that can be read; else null.
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
