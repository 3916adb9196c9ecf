package index

import "time"

// Change is a new status of a packet or a transfer, or a new row, as an index logged it.
type Change struct {
	Number int64     // from 1, in the order in which the rows were written
	Time   time.Time // UTC; when the row was written
	Type   *Type     // PacketType or TransferType
	Status string    // the status that the row got
	Row    Row
}
