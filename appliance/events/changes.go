package events

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/attestd/attestd/appliance/index"
	"github.com/attestd/attestd/appliance/sinks"
)

// Changes is the log of changes in a replica. Package store/replica implements it.
type Changes interface {
	// Changed returns the numbers of the oldest change in the log and of the next one to come, and index.Status.ID.
	Changed(ctx context.Context) (id string, oldest, next int64, err error)
	// ReadChanges calls yield with the changes from a number on, in order. The row of a change is as it is now, and zero
	// if it was removed; it is valid only until yield returns. An error of yield ends the read and is returned.
	ReadChanges(ctx context.Context, from int64, yield func(index.Change) error) error
	// ChangedSince returns the number of the first change at or after a time. reaches means that the log has all changes
	// since then.
	ChangedSince(ctx context.Context, at time.Time) (number int64, reaches bool, err error)
}

// otherReplica is how long before the last change that a client saw a stream from another replica begins, because two
// replicas learn of a change at different times.
const otherReplica = 10 * time.Minute

// changes is the source of the replica's changes.
type changes struct {
	log    Changes
	origin string
}

func (c changes) end(ctx context.Context) (sinks.Cursor, error) {
	id, _, next, err := c.log.Changed(ctx)
	return sinks.Cursor{Log: id, Next: next}, err
}

func (c changes) read(ctx context.Context, from, to sinks.Cursor,
	yield func(Event, sinks.Cursor) error) (sinks.Cursor, error) {
	at := from
	if from.Next >= to.Next {
		return at, nil
	}
	err := c.log.ReadChanges(ctx, from.Next, func(change index.Change) error {
		if change.Number >= to.Next {
			return sinks.ErrEnough
		}
		next := sinks.Cursor{Log: at.Log, Next: change.Number + 1}
		if !change.Row.IsZero() {
			event, err := fromChange(c.origin, change)
			if err != nil {
				return err
			}
			if err := yield(event, next); err != nil {
				return err
			}
		}
		at = next
		return nil
	})
	if errors.Is(err, sinks.ErrEnough) {
		err = nil
	}
	return at, err
}

func (c changes) resume(ctx context.Context, p Position) (from sinks.Cursor, gap bool, err error) {
	id, oldest, next, err := c.log.Changed(ctx)
	at := p.Changes
	switch {
	case err != nil || at.Log == "":
		return sinks.Cursor{Log: id, Next: next}, false, err
	case at.Log != id:
		number, reaches, err := c.log.ChangedSince(ctx, p.Seen.Add(-otherReplica))
		return sinks.Cursor{Log: id, Next: number}, !reaches, err
	case at.Next > next: // a forged id
		return sinks.Cursor{Log: id, Next: next}, true, nil
	}
	return sinks.Cursor{Log: id, Next: max(at.Next, oldest)}, at.Next < oldest, nil
}

func (c changes) place(p *Position, at sinks.Cursor, last Event) {
	p.Changes = at
	switch {
	case !last.Time.IsZero():
		p.Seen = last.Time
	case p.Seen.UnixMilli() <= 0:
		p.Seen = time.Now().UTC()
	}
}

// changed is the data of an event of a packet or a transfer, by the names of GraphQL.
type changed struct {
	PacketHash      string  `json:"packet_hash"`
	TransferIndex   *int32  `json:"transfer_index,omitempty"`
	Status          string  `json:"status"`
	SortOrder       string  `json:"sort_order"`
	Source          string  `json:"source_universal_chain_id"`
	Destination     string  `json:"destination_universal_chain_id"`
	TransactionHash *string `json:"send_transaction_hash"`
	Success         *bool   `json:"success"`
	Sender          *string `json:"sender_canonical,omitempty"`
	Receiver        *string `json:"receiver_canonical,omitempty"`
	BaseToken       *string `json:"base_token,omitempty"`
	BaseAmount      *string `json:"base_amount,omitempty"`
	QuoteToken      *string `json:"quote_token,omitempty"`
	QuoteAmount     *string `json:"quote_amount,omitempty"`
}

// fromChange returns the event of a change. Its id is the same at every replica.
func fromChange(origin string, change index.Change) (Event, error) {
	e := Event{ID: change.Row.Key() + "/" + change.Status, Source: origin, Type: PacketUpdated, Time: change.Time,
		Index: -1}
	data := changed{Status: change.Status}
	if change.Type == index.TransferType {
		var t index.Transfer
		if err := change.Row.Decode(&t); err != nil {
			return Event{}, err
		}
		e.Type = TransferUpdated
		data.PacketHash, data.TransferIndex, data.SortOrder = t.PacketHash, &t.TransferIndex, t.SortOrder
		data.Source, data.Destination = t.SourceUniversalChainID, t.DestUniversalChainID
		data.TransactionHash, data.Success = t.SendTransactionHash, t.Success
		data.Sender, data.Receiver = t.SenderCanonical, t.ReceiverCanonical
		data.BaseToken, data.BaseAmount = t.BaseToken, t.BaseAmount
		data.QuoteToken, data.QuoteAmount = t.QuoteToken, t.QuoteAmount
		for _, address := range []*string{t.SenderCanonical, t.ReceiverCanonical} {
			if address != nil {
				e.Addresses = append(e.Addresses, lower(*address))
			}
		}
	} else {
		var p index.Packet
		if err := change.Row.Decode(&p); err != nil {
			return Event{}, err
		}
		data.PacketHash, data.SortOrder = p.PacketHash, p.SortOrder
		data.Source, data.Destination = p.SourceUniversalChainID, p.DestUniversalChainID
		data.TransactionHash, data.Success = p.SendTransactionHash, p.Success
	}
	e.Subject, e.Chains = lower(data.PacketHash), []string{data.Source, data.Destination}
	var err error
	e.Data, err = json.Marshal(data)
	return e, err
}
