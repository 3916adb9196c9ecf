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

// ingest checks the rows of one or more requests and gathers them into a batch. Packets must be added before their
// transfers.
type ingest struct {
	f       *Follower
	batch   index.Batch
	packets map[string]*packet       // by hash: packets of this ingest, and packets that it read from the index
	doubted map[string][]index.RowID // quarantined rows, by the hash of their packet
	all     map[string]bool          // hashes of packets with all transfers read
	bytes   int                      // size of the batch's rows
}

// packet is a packet that transfers are checked against.
type packet struct {
	row    index.Row
	fault  error   // why it does not verify; nil if it does
	waits  bool    // fault is only that its chain could not confirm it yet
	came   bool    // arrived with this ingest rather than from the index
	orders *orders // decoded for the first transfer that is checked
}

func (f *Follower) newIngest() *ingest {
	return &ingest{f: f, packets: make(map[string]*packet), doubted: make(map[string][]index.RowID)}
}

// Limits of one batch. In memory a batch takes several times its size.
const (
	batchRows = 2000 // packets and transfers; the last page may exceed it
	// the last page may exceed it; 2,000 usual rows have 2 MB, but an upstream may send larger ones
	batchBytes = 8 << 20
)

// full reports whether the batch is large enough to be written.
func (in *ingest) full() bool {
	return len(in.batch.Rows)+len(in.batch.Unverified) >= batchRows || in.bytes >= batchBytes
}

// add takes packets and transfers of one answer, and fetches the packets that the answer lacks.
func (in *ingest) add(ctx context.Context, packets, transfers []index.Row) error {
	if err := in.addPackets(ctx, packets); err != nil {
		return err
	}
	orphans, err := in.addTransfers(ctx, transfers)
	if err != nil {
		return err
	}
	return in.addOrphans(ctx, orphans)
}

// addPackets takes packets from a page. Packets of other protocols are also fetched by hash, because only a lookup
// returns the upstream's decoded fields, which cannot be computed here.
func (in *ingest) addPackets(ctx context.Context, rows []index.Row) error {
	var foreign []string
	for _, row := range rows {
		if version, ok := row.Text(index.PacketChannelVersionColumn); ok && version != zkgm.ChannelVersion {
			foreign = append(foreign, row.Key())
		}
	}
	if err := in.addAll(ctx, rows); err != nil {
		return err
	}
	return in.fetchPackets(ctx, foreign)
}

func (in *ingest) addPacket(p *packet) {
	in.packets[p.row.Key()] = p
	if p.fault != nil {
		in.quarantine(p.row, p.row.Key(), p.reason())
		return
	}
	in.store(p.row)
}

// reason returns why the packet is quarantined.
func (p *packet) reason() string {
	if p.waits {
		return reasonWaits + p.fault.Error()
	}
	return p.fault.Error()
}

func (in *ingest) store(row index.Row) {
	in.batch.Rows = append(in.batch.Rows, row)
	in.bytes += len(row.Bytes())
}

// quarantine quarantines a row. hash is the hash of its packet.
func (in *ingest) quarantine(row index.Row, hash, reason string) {
	in.batch.Unverified = append(in.batch.Unverified, index.Unverified{Row: row, Reason: reason})
	in.doubted[hash] = append(in.doubted[hash], row.ID())
	in.bytes += len(row.Bytes())
}

// fetchPackets asks the upstream for packets by hash and adds the packets that it returns.
func (in *ingest) fetchPackets(ctx context.Context, hashes []string) error {
	if len(hashes) == 0 {
		return nil
	}
	parts := make([]part, len(hashes))
	for i, hash := range hashes {
		parts[i] = part{t: index.PacketType, hash: hash, limit: 1}
	}
	for len(parts) > 0 {
		n := min(len(parts), maxParts)
		answers, c, err := in.f.query(ctx, parts[:n]...)
		if err != nil {
			return err
		}
		in.f.noteCounts(c)
		for _, a := range answers {
			if err := in.addAll(ctx, a.rows); err != nil {
				return err
			}
		}
		parts = parts[n:]
	}
	return nil
}

// addTransfers adds transfers whose packets are in this ingest or in the index, and returns the others. If packets are
// checked against their chains, it also returns transfers that are ahead of their packet in the index.
func (in *ingest) addTransfers(ctx context.Context, rows []index.Row) (orphans []index.Row, err error) {
	if err := in.loadPackets(ctx, rows); err != nil {
		return nil, err
	}
	for _, row := range rows {
		p := in.packets[hashOf(row)]
		if p == nil || in.f.o.Chains != nil && !p.came && checkEnd(row, p.row) != nil {
			orphans = append(orphans, row)
			continue
		}
		if err := in.addTransfer(row, p); err != nil {
			return nil, err
		}
	}
	return orphans, nil
}

func (in *ingest) addTransfer(row index.Row, p *packet) error {
	reason := p.contradicts(row)
	if reason == "" && in.f.o.Chains != nil {
		if err := checkEnd(row, p.row); err != nil {
			reason = err.Error()
		}
	}
	if reason != "" {
		in.quarantine(row, hashOf(row), reason)
		return nil
	}
	if status, ok := p.row.Text(index.PacketStatusColumn); ok && row.IsNull(index.TransferStatusColumn) {
		var err error
		if row, err = row.WithText(index.TransferStatusColumn, status); err != nil {
			return fmt.Errorf("transfer %s: %w", row.Key(), err)
		}
	}
	in.store(row)
	return nil
}

// contradicts returns why a transfer of the packet does not verify; empty if it verifies.
func (p *packet) contradicts(transfer index.Row) string {
	if p.waits {
		return reasonWaits + "its packet: " + p.fault.Error()
	}
	if p.fault != nil {
		return "the packet does not verify: " + p.fault.Error()
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

// loadPackets reads the packets of transfers from the index.
func (in *ingest) loadPackets(ctx context.Context, transfers []index.Row) error {
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
				// Packets are checked again: an index that serves unverified rows may return one here.
				row = row.Clone()
				in.packets[hash] = &packet{row: row, fault: checkPacket(row)}
			}
		}
		return nil
	})
}

// addOrphans fetches the packets of transfers that arrived without them. If the upstream has no packet for a transfer,
// the transfer is quarantined, because it cannot be verified.
func (in *ingest) addOrphans(ctx context.Context, orphans []index.Row) error {
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
			in.quarantine(row, hashOf(row), "the upstream does not have the packet")
			continue
		}
		if err := in.addTransfer(row, p); err != nil {
			return err
		}
	}
	return nil
}

// write writes the batch, and schedules lookups of packets that are unfinished or quarantined.
func (in *ingest) write(ctx context.Context) error {
	if err := in.f.write(ctx, in.batch); err != nil {
		return err
	}
	if in.batch.Positions != nil {
		in.f.saved = in.f.o.Now()
	}
	now := in.f.o.Now()
	for hash, p := range in.packets {
		if p.came {
			first := in.f.firstLookup(p.row, now)
			in.f.watched.note(hash, p.row, in.doubted[hash], in.all[hash], first, now)
			if p.waits {
				in.f.watched.wait(hash, first, now)
			}
		}
	}
	for hash, apart := range in.doubted {
		if p := in.packets[hash]; p == nil || !p.came {
			in.f.watched.note(hash, index.Row{}, apart, in.all[hash], in.f.firstLookup(index.Row{}, now), now)
		}
	}
	return nil
}

// withdraw withdraws quarantined rows that the upstream no longer returns. It considers only packets whose transfers
// were all read.
func (in *ingest) withdraw(due []*watch, answers []answer) {
	claimed := make(map[index.RowID]bool)
	for _, u := range in.batch.Unverified {
		claimed[u.Row.ID()] = true
	}
	for i, e := range due {
		for _, id := range e.quarantined {
			if !claimed[id] && in.all[e.hash] && len(answers[i].bad) == 0 {
				in.batch.Withdrawn = append(in.batch.Withdrawn, id)
			}
		}
	}
}

// unfinished reports whether a packet is neither acknowledged nor timed out.
func unfinished(packet index.Row) bool {
	return packet.IsNull(index.PacketAckedColumn) && packet.IsNull(index.PacketTimedOutColumn)
}

// firstLookup returns the time until a packet's first lookup: a tenth of its age, because old packets change less
// often.
func (f *Follower) firstLookup(packet index.Row, now time.Time) time.Duration {
	age := time.Duration(0)
	if !packet.IsZero() {
		if sent, ok := packet.Time(index.PacketSentColumn); ok {
			age = now.Sub(sent)
		}
	}
	return f.clampLookup(age / 10)
}

// clampLookup bounds the time between lookups of a packet.
func (f *Follower) clampLookup(d time.Duration) time.Duration {
	return min(max(d, min(5*f.o.PollInterval, f.o.LookupInterval)), f.o.LookupInterval)
}
