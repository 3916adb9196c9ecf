package indexer

import (
	"context"

	"github.com/ethereum/go-ethereum/common"

	"github.com/attestd/attestd/appliance/index"
)

// compare returns why a row does not agree with its packet's commitment.
func compare(row index.Row, c Commitment, id string) *Unproven {
	claimed := index.ProgressOf(row)
	if claimed.TimedOut && claimed.Received {
		return contradicted("it cannot have been received and have timed out")
	}
	switch c.Value {
	case CommitmentDone:
		return nil
	case common.Hash{}:
		return contradicted("the core contract of %s does not know it in block %d", id, c.Block.Number)
	case CommitmentSent:
	default:
		return contradicted("the core contract of %s has %s for it in block %d", id, c.Value, c.Block.Number)
	}
	if !claimed.Acknowledged && !claimed.TimedOut {
		return nil
	}
	if height, late := isLate(row, c.Block, ackHeightColumn, timeoutHeightColumn); late {
		return unchecked("it ended in block %d, and block %d of %s is the newest that can be proved", height,
			c.Block.Number, id)
	}
	return contradicted("it is neither acknowledged nor timed out in block %d of %s", c.Block.Number, id)
}

// isLate reports whether one of the heights in a row is above a block.
func isLate(row index.Row, block ProvenBlock, columns ...int) (height uint64, late bool) {
	for _, column := range columns {
		if height, err := numberIn(row, column); err == nil && height > block.Number {
			return height, true
		}
	}
	return 0, false
}

// checkReceipts compares packets without a result with their destinations. Destinations that are no EVM chains of
// indexer.chains are believed.
func (v *Verifier) checkReceipts(ctx context.Context, rows []index.Row, results []*Unproven) {
	asked, slots := make(map[string][]int), make(map[string][]common.Hash) // by destination
	for i, row := range rows {
		claimed := index.ProgressOf(row)
		id, _ := row.Text(index.PacketDestinationChainColumn)
		if results[i] != nil || v.chains[id] == nil || !claimed.Received && !claimed.TimedOut {
			continue
		}
		hash, err := hashIn(row)
		if err != nil {
			results[i] = contradicted("%v", err)
			continue
		}
		asked[id], slots[id] = append(asked[id], i), append(slots[id], ReceiptSlot(hash))
	}
	for id, positions := range asked {
		found, err := v.chains[id].commitments(ctx, slots[id])
		v.note(id, err)
		for i, at := range positions {
			if err != nil {
				results[at] = unchecked("its destination %s cannot be read: %v", id, err)
			} else {
				results[at] = compareReceipt(rows[at], found[i], id)
			}
		}
	}
}

// compareReceipt returns why a row does not agree with its packet's receipt.
func compareReceipt(row index.Row, c Commitment, id string) *Unproven {
	claimed, received := index.ProgressOf(row), c.Value != common.Hash{}
	if !claimed.Received {
		if received {
			return contradicted("it cannot have timed out: %s has received it", id)
		}
		return nil
	}
	if height, late := isLate(row, c.Block, recvHeightColumn, writeAckHeightColumn); late {
		return unchecked("it was received or acknowledged in block %d, and block %d of %s is the newest that can be "+
			"proved", height, c.Block.Number, id)
	}
	switch {
	case !received:
		return contradicted("%s has not received it in block %d", id, c.Block.Number)
	case !claimed.Written:
		return nil
	case c.Value == ReceiptOnly:
		return contradicted("%s has not acknowledged it in block %d", id, c.Block.Number)
	}
	text, ok := row.Text(acknowledgementColumn)
	if !ok {
		return nil
	}
	if ack, err := decodeHex(text); err != nil || CommitmentOfAck(ack) != c.Value {
		return contradicted("its acknowledgement is not the one that %s has written", id)
	}
	version, _ := row.Text(index.PacketChannelVersionColumn)
	success, ok := successIn(version, text)
	if says, claims := row.Bool(index.PacketSuccessColumn); ok && claims && says != success {
		return contradicted("success is %t, but its acknowledgement says %t", says, success)
	}
	return nil
}
