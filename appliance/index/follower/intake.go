package follower

import (
	"context"
	"fmt"
	"time"

	"github.com/attestd/attestd/appliance/index"
	"github.com/attestd/attestd/appliance/index/zkgm"
)

// transferPacket is the key of a transfer's packet.
var transferPacket = []int{index.TransferPacketColumn}

// intake checks the rows of one or more requests, and gathers them into a batch. Packets come before their transfers.
type intake struct {
	f       *Follower
	batch   index.Batch
	packets map[string]*packet       // by hash: of this intake, and those of the index that it has looked at
	doubted map[string][]index.RowID // what is kept apart, by the hash of its packet
	all     map[string]bool          // hashes of packets of which all has come
	bytes   int                      // of the batch's rows
}

// packet is a packet that transfers are checked against.
type packet struct {
	row    index.Row
	fault  error   // why it does not verify
	came   bool    // with this intake
	orders *orders // decoded when the first transfer asks for them
}

func (f *Follower) intake() *intake {
	return &intake{f: f, packets: make(map[string]*packet), doubted: make(map[string][]index.RowID)}
}

// What is written at once: in memory it takes some times that.
const (
	batchRows  = 2000    // of packets and transfers, of a page more at most
	batchBytes = 8 << 20 // the same; as many rows as batchRows have 2 MB, but an upstream may send any
)

// full tells that the batch is large enough to be written.
func (in *intake) full() bool {
	return len(in.batch.Rows)+len(in.batch.Unverified) >= batchRows || in.bytes >= batchBytes
}

// add takes packets and transfers that came together, and looks up packets that did not.
func (in *intake) add(ctx context.Context, packets, transfers []index.Row) error {
	if err := in.addPackets(ctx, packets); err != nil {
		return err
	}
	orphans, err := in.addTransfers(ctx, transfers)
	if err != nil {
		return err
	}
	return in.addOrphans(ctx, orphans)
}

// addPackets takes packets as pages have them. Those of other protocols are looked up first: only then do they come with what
// the upstream has decoded of them, which cannot be made here.
func (in *intake) addPackets(ctx context.Context, rows []index.Row) error {
	var foreign []string
	for _, row := range rows {
		if version, ok := row.Text(index.PacketChannelVersionColumn); ok && version != zkgm.ChannelVersion {
			foreign = append(foreign, row.Key())
		}
		in.addPacket(row)
	}
	return in.fetchPackets(ctx, foreign)
}

func (in *intake) addPacket(row index.Row) {
	p := &packet{row: row, fault: checkPacket(row), came: true}
	in.packets[row.Key()] = p
	if p.fault != nil {
		in.keepApart(row, row.Key(), p.fault.Error())
		return
	}
	in.take(row)
}

func (in *intake) take(row index.Row) {
	in.batch.Rows = append(in.batch.Rows, row)
	in.bytes += len(row.Bytes())
}

// keepApart keeps a row of a packet apart.
func (in *intake) keepApart(row index.Row, hash, reason string) {
	in.batch.Unverified = append(in.batch.Unverified, index.Unverified{Row: row, Reason: reason})
	in.doubted[hash] = append(in.doubted[hash], row.ID())
	in.bytes += len(row.Bytes())
}

// fetchPackets asks the upstream for packets by hash, and takes those that it has.
func (in *intake) fetchPackets(ctx context.Context, hashes []string) error {
	if len(hashes) == 0 {
		return nil
	}
	parts := make([]part, len(hashes))
	for i, hash := range hashes {
		parts[i] = part{t: index.PacketType, hash: hash, limit: 1}
	}
	for len(parts) > 0 {
		n := min(len(parts), maxParts)
		answers, c, err := in.f.ask(ctx, parts[:n]...)
		if err != nil {
			return err
		}
		in.f.noteCounts(c)
		for _, a := range answers {
			for _, row := range a.rows {
				in.addPacket(row)
			}
		}
		parts = parts[n:]
	}
	return nil
}

// addTransfers takes transfers whose packets are in this intake or in the index, and returns the others.
func (in *intake) addTransfers(ctx context.Context, rows []index.Row) (orphans []index.Row, err error) {
	if err := in.loadPackets(ctx, rows); err != nil {
		return nil, err
	}
	for _, row := range rows {
		p := in.packets[hashOf(row)]
		if p == nil {
			orphans = append(orphans, row)
			continue
		}
		if err := in.addTransfer(row, p); err != nil {
			return nil, err
		}
	}
	return orphans, nil
}

func (in *intake) addTransfer(row index.Row, p *packet) error {
	if reason := p.contradicts(row); reason != "" {
		in.keepApart(row, hashOf(row), reason)
		return nil
	}
	if status, ok := p.row.Text(index.PacketStatusColumn); ok && row.IsNull(index.TransferStatusColumn) {
		var err error
		if row, err = row.WithText(index.TransferStatusColumn, status); err != nil {
			return fmt.Errorf("transfer %s: %w", row.Key(), err)
		}
	}
	in.take(row)
	return nil
}

// contradicts says why a transfer of the packet does not verify; empty where it does.
func (p *packet) contradicts(transfer index.Row) string {
	if p.fault != nil {
		return "its packet does not verify: " + p.fault.Error()
	}
	if p.orders == nil {
		p.orders = decodeOrders(p.row)
	}
	if err := checkTransfer(transfer, p.row, p.orders); err != nil {
		return err.Error()
	}
	return ""
}

func hashOf(transfer index.Row) string {
	return string(transfer.AppendKey(nil, transferPacket))
}

// loadPackets finds the packets of transfers in the index.
func (in *intake) loadPackets(ctx context.Context, transfers []index.Row) error {
	var unknown []string
	for _, row := range transfers {
		if hash := hashOf(row); in.packets[hash] == nil {
			unknown = append(unknown, hash)
		}
	}
	if len(unknown) == 0 {
		return nil
	}
	return view(ctx, in.f.o.Index, func(snap snapshot) error {
		for _, hash := range unknown {
			row, err := packetOf(ctx, snap, hash)
			if err != nil {
				return err
			}
			if !row.IsZero() && in.packets[hash] == nil {
				// Those that do not verify are in the index where they are served, too.
				row = row.Clone()
				in.packets[hash] = &packet{row: row, fault: checkPacket(row)}
			}
		}
		return nil
	})
}

// addOrphans looks up the packets of transfers that came without them. A transfer of which the upstream has no packet is kept
// apart: nothing shows that it is true.
func (in *intake) addOrphans(ctx context.Context, orphans []index.Row) error {
	if len(orphans) == 0 {
		return nil
	}
	asked := make(map[string]bool)
	var hashes []string
	for _, row := range orphans {
		if hash := hashOf(row); !asked[hash] {
			asked[hash] = true
			hashes = append(hashes, hash)
		}
	}
	if err := in.fetchPackets(ctx, hashes); err != nil {
		return err
	}
	for _, row := range orphans {
		p := in.packets[hashOf(row)]
		if p == nil {
			in.keepApart(row, hashOf(row), "the upstream does not have its packet")
			continue
		}
		if err := in.addTransfer(row, p); err != nil {
			return err
		}
	}
	return nil
}

// write writes the batch, and has watched what is not finished or does not verify.
func (in *intake) write(ctx context.Context) error {
	if err := in.f.write(ctx, in.batch); err != nil {
		return err
	}
	if in.batch.Positions != nil {
		in.f.saved = in.f.o.Now()
	}
	now := in.f.o.Now()
	for hash, p := range in.packets {
		if p.came {
			in.f.watched.note(hash, p.row, in.doubted[hash], in.all[hash], in.f.firstLookup(p.row, now), now)
		}
	}
	for hash, apart := range in.doubted {
		if p := in.packets[hash]; p == nil || !p.came {
			in.f.watched.note(hash, index.Row{}, apart, in.all[hash], in.f.firstLookup(index.Row{}, now), now)
		}
	}
	return nil
}

// withdraw ends what is kept apart of packets of which all has come, and that is not among it: the upstream does not claim it any
// more.
func (in *intake) withdraw(due []*watch, answers []answer) {
	claimed := make(map[index.RowID]bool)
	for _, u := range in.batch.Unverified {
		claimed[u.Row.ID()] = true
	}
	for i, e := range due {
		for _, id := range e.apart {
			if !claimed[id] && in.all[e.hash] && len(answers[i].bad) == 0 {
				in.batch.Withdrawn = append(in.batch.Withdrawn, id)
			}
		}
	}
}

// unfinished tells that more will happen to a packet.
func unfinished(packet index.Row) bool {
	return packet.IsNull(index.PacketAckedColumn) && packet.IsNull(index.PacketTimedOutColumn)
}

// firstLookup is after how long a packet is first looked up again: the longer it has been under way, the less is likely to
// happen soon.
func (f *Follower) firstLookup(packet index.Row, now time.Time) time.Duration {
	age := time.Duration(0)
	if !packet.IsZero() {
		if sent, ok := packet.Time(index.PacketSentColumn); ok {
			age = now.Sub(sent)
		}
	}
	return f.clampLookup(age / 10)
}

// clampLookup keeps the time between look-ups of a packet within bounds.
func (f *Follower) clampLookup(d time.Duration) time.Duration {
	return min(max(d, min(5*f.o.PollInterval, f.o.LookupInterval)), f.o.LookupInterval)
}
