package index

import "strings"

// Progress is how far a packet or a transfer has come, as its row says in any of its fields.
type Progress struct {
	Received     bool
	Written      bool // the destination has written the acknowledgement
	Acknowledged bool // on the source
	TimedOut     bool
}

// ProgressOf returns the progress that a row of PacketType or TransferType claims: with a time, a height, a hash, a
// maker, a trace or the status.
func ProgressOf(row Row) (p Progress) {
	for number, field := range row.Type().Fields {
		if row.IsNull(number) {
			continue
		}
		switch name := strings.TrimPrefix(strings.TrimPrefix(field.Name, "packet_"), "transfer_"); {
		case strings.HasPrefix(name, "recv_"):
			p.Received = true
		case strings.HasPrefix(name, "write_ack_"), name == "acknowledgement":
			p.Written = true
		case strings.HasPrefix(name, "ack_"):
			p.Acknowledged = true
		case strings.HasPrefix(name, "timeout_") && name != field.Name: // timeout_height is the deadline
			p.TimedOut = true
		case name == "status":
			status, _ := row.Text(number)
			p.reach(status)
		case name == "traces":
			for trace := range row.List(number) {
				if kind, _ := trace.Text(traceKindColumn); happened(trace) {
					p.reach(kind)
				}
			}
		}
	}
	p.Written = p.Written || p.Acknowledged
	p.Received = p.Received || p.Written
	return p
}

var traceKindColumn = TraceType.column("type")

// happened reports whether a trace has anything beyond its type and its chain.
func happened(trace Row) bool {
	for number, field := range TraceType.Fields {
		if field.Name != "type" && field.Name != "universal_chain_id" && !trace.IsNull(number) {
			return true
		}
	}
	return false
}

// reach adds a status, or the type of a trace that has happened.
func (p *Progress) reach(status string) {
	switch {
	case status == StatusTimeout:
		p.TimedOut = true
	case status == TracePacketAck:
		p.Acknowledged = true
	case status == TraceWriteAck, strings.HasPrefix(status, TraceAckUpdate):
		p.Written = true
	case status == TracePacketRecv:
		p.Received = true
	}
}

// Within reports whether other claims all that p claims.
func (p Progress) Within(other Progress) bool {
	return (!p.Received || other.Received) && (!p.Written || other.Written) &&
		(!p.Acknowledged || other.Acknowledged) && (!p.TimedOut || other.TimedOut)
}
