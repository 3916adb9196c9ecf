package follower

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/attestd/attestd/appliance/index"
)

// Chains checks packets against the chains that they were sent on. *indexer.Verifier implements it.
type Chains interface {
	// Check returns for each packet nil if its chain confirms it, otherwise why not. An error with a method Temporary()
	// bool that returns true does not contradict the packet: a later check may confirm it.
	Check(ctx context.Context, packets []index.Row) []error
	// Failure returns why chains cannot be read; empty if they can.
	Failure() string
}

// reasonWaits is the beginning of the reason of a row that waits for a check against its chain.
const reasonWaits = "not checked yet: "

// waits reports whether a row is in quarantine only until its chain can be asked.
func waits(u index.Unverified) bool { return strings.HasPrefix(u.Reason, reasonWaits) }

// addAll checks packets against their chains, if Options.Chains is set, and adds them.
func (in *ingest) addAll(ctx context.Context, rows []index.Row) error {
	packets := make([]*packet, len(rows))
	for i, row := range rows {
		packets[i] = &packet{row: row, fault: checkPacket(row), came: true}
	}
	if in.f.o.Chains != nil {
		if err := in.askChains(ctx, packets); err != nil {
			return err
		}
	}
	for _, p := range packets {
		in.addPacket(p)
	}
	return nil
}

// askChains sets the faults of packets that their chains do not confirm. Packets that the index serves were confirmed
// before; they are checked again if they say something new.
func (in *ingest) askChains(ctx context.Context, packets []*packet) error {
	var asked []*packet
	var rows []index.Row
	err := view(ctx, in.f.o.Index, func(snap snapshot) error {
		for _, p := range packets {
			if p.fault != nil {
				continue
			}
			here, err := packetOf(ctx, snap, p.row.Key())
			if err != nil {
				return err
			}
			if here.IsZero() || !confirms(here, p.row) {
				asked, rows = append(asked, p), append(rows, p.row)
			}
		}
		return nil
	})
	if err != nil || len(rows) == 0 {
		return err
	}
	for i, err := range in.f.o.Chains.Check(ctx, rows) {
		switch {
		case err == nil:
		case isTemporary(err):
			asked[i].fault, asked[i].waits = err, true
		default:
			asked[i].fault = fmt.Errorf("its chain does not confirm it: %w", err)
		}
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	in.f.noteChains()
	return nil
}

// confirms reports whether the check of a packet in the index covers a row: both name the same chains and claim the same
// receipt and end.
func confirms(here, row index.Row) bool {
	for number, field := range index.PacketType.Fields {
		switch {
		case strings.HasPrefix(field.Name, "packet_recv_"), strings.HasPrefix(field.Name, "write_ack_"),
			strings.HasPrefix(field.Name, "packet_ack_"), strings.HasPrefix(field.Name, "packet_timeout_"),
			slices.Contains(checkedFields, field.Name):
			if !bytes.Equal(here.AppendJSON(nil, number), row.AppendJSON(nil, number)) {
				return false
			}
		}
	}
	return true
}

// checkedFields are further fields that confirms compares.
var checkedFields = []string{"source_universal_chain_id", "destination_universal_chain_id", "channel_version", "status",
	"success", "acknowledgement", "traces"}

// checkEnd checks that a transfer says no more about its end than its packet.
func checkEnd(transfer, packet index.Row) error {
	if !index.ProgressOf(transfer).Within(index.ProgressOf(packet)) {
		return errors.New("it has ended or was received, but its packet does not say so")
	}
	claimed, claims := transfer.Bool(transferSuccess)
	if truth, known := packet.Bool(index.PacketSuccessColumn); claims && (!known || claimed != truth) {
		return fmt.Errorf("success is %t, but its packet does not say so", claimed)
	}
	return nil
}

var transferSuccess = index.TransferType.MustField("success").Number

func isTemporary(err error) bool {
	var temporary interface{ Temporary() bool }
	return errors.As(err, &temporary) && temporary.Temporary()
}

// noteChains records whether the chains can be read, and logs a change.
func (f *Follower) noteChains() {
	failure, changed := f.o.Chains.Failure(), false
	f.update(func(s *Status) { changed, s.ChainError = s.ChainError != failure, failure })
	switch {
	case !changed:
	case failure == "":
		f.o.Log.Info("packets are checked against their chains again")
	default:
		f.o.Log.Warn("packets cannot be checked against their chains, and are not served until they are",
			"error", failure, "remedy", "check rpcs in indexer.chains; the checks are retried automatically")
	}
}
