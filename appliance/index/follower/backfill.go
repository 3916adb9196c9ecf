package follower

import (
	"context"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/attestd/attestd/appliance/index"
)

// backfill is how far rows have been read backwards. It is ahead of the positions on disk.
type backfill struct {
	packets, transfers stream
	next               chan page // receives the page that is read while the page before it is written
	stop               context.CancelFunc
	// held are transfers whose packets have not arrived yet: packets have separate cursors and may lag behind. While
	// transfers are held, only packets are read, and the position of transfers does not move.
	held  []index.Row
	pages int // pages of packets read for the held transfers
	// Rows read of each kind, including the page from which the backfill started.
	readPackets, readTransfers int
}

// page is the result of one backfill request.
type page struct {
	packets, transfers answer
	withPackets        bool
	withTransfers      bool
	counts             counts
	err                error
}

const (
	batchTime = time.Second // a batch is written after this time however few rows it has
	// maxHeldPages is how many pages of packets are read for held transfers before their packets are looked up by hash.
	maxHeldPages = 30
	// Up to fewHeld packets are looked up at once, since one request suffices.
	fewHeld = maxParts
)

// backfillDue returns when the backfill continues: now, or never if it has ended or has not begun.
func (f *Follower) backfillDue() time.Time {
	if f.packets.live == "" && f.transfers.live == "" || f.packets.ended && f.transfers.ended {
		return never
	}
	return f.o.Now()
}

// backfillOn reads some pages backwards and writes them as one batch. If a page fails, the pages before it are written.
func (f *Follower) backfillOn(ctx context.Context) error {
	in := f.newIngest()
	began := f.o.Now()
	var failed error
	for failed == nil && !in.full() && f.o.Now().Sub(began) < batchTime && !f.back.done() {
		if failed = f.readPage(ctx, in); failed == nil {
			f.back.finish(f)
		}
	}
	f.noteBackfilled()
	in.batch.Positions = f.positions()
	if err := in.write(ctx); err != nil {
		return err
	}
	f.due.backfill = f.backfillDue()
	if failed != nil {
		f.shrink()
		f.due.backfill = f.o.Now().Add(f.o.PollInterval)
	}
	return failed
}

// readPage reads the next page into the ingest.
func (f *Follower) readPage(ctx context.Context, in *ingest) error {
	p, err := f.nextPage(ctx)
	if err != nil {
		return err
	}
	f.grow()
	f.noteCounts(p.counts)
	return f.back.ingestPage(ctx, in, p)
}

// finish moves the follower's streams past the rows in the ingest. After a crash, held transfers are read again.
func (b *backfill) finish(f *Follower) {
	f.packets.back, f.packets.final, f.packets.ended = b.packets.back, b.packets.final, b.packets.ended
	if len(b.held) == 0 {
		f.transfers.back, f.transfers.final, f.transfers.ended = b.transfers.back, b.transfers.final, b.transfers.ended
	}
}

// noteBackfilled records whether, and when, the oldest rows of both kinds have been read.
func (f *Follower) noteBackfilled() {
	ended := f.packets.ended && f.transfers.ended
	f.update(func(s *Status) {
		switch {
		case !ended:
			s.Backfilled = time.Time{}
		case s.Backfilled.IsZero():
			s.Backfilled = f.o.Now()
			f.o.Log.Info("all rows of the upstream have been read", "upstream", f.o.Address)
		}
	})
}

// reopen makes the backfill read past its end, because the upstream itself may be filled backwards.
func (f *Follower) reopen() {
	for _, s := range []*stream{&f.packets, &f.transfers} {
		s.ended, s.final = s.back == "", ""
	}
	f.drop()
	f.back = backfill{packets: f.packets, transfers: f.transfers}
	f.due.backfill = f.backfillDue()
}

// done reports whether the backfill has ended and all its rows are in the ingest.
func (b *backfill) done() bool {
	return b.packets.ended && b.transfers.ended && len(b.held) == 0
}

// nextPage returns the page that was read ahead, or reads one, and starts to read the page after it.
func (f *Follower) nextPage(ctx context.Context) (page, error) {
	if f.back.next == nil {
		f.readAhead(ctx)
	}
	p := <-f.back.next
	f.back.next = nil
	f.back.stop()
	if p.err != nil {
		return page{}, p.err
	}
	if p.withPackets {
		f.back.packets.older(p.packets.orders)
		f.back.readPackets += p.packets.count
	}
	if p.withTransfers {
		f.back.transfers.older(p.transfers.orders)
		f.back.readTransfers += p.transfers.count
	}
	if !f.back.packets.ended || !f.back.transfers.ended {
		f.readAhead(ctx)
	}
	return p, nil
}

// readAhead requests the next page of packets and, unless transfers are held, the next page of transfers.
func (f *Follower) readAhead(ctx context.Context) {
	var parts []part
	p := page{withPackets: !f.back.packets.ended, withTransfers: !f.back.transfers.ended &&
		(len(f.back.held) == 0 || f.back.packets.ended)}
	packets, transfers := f.limits()
	if p.withPackets {
		parts = append(parts, f.back.packets.below(packets))
	}
	if p.withTransfers {
		parts = append(parts, f.back.transfers.below(transfers))
	}
	ctx, f.back.stop = context.WithCancel(ctx)
	next := make(chan page, 1)
	f.back.next = next
	go func() { next <- f.readPageOf(ctx, p, parts) }()
}

// packetsAhead is how many packets are read ahead of their transfers. It evens out parts of the history in which
// packets have more or fewer transfers than the average.
const packetsAhead = 20

// limits returns how many packets and transfers a request asks for. It matches packets to transfers by the upstream's
// counts and the rows read so far. An answer then has most texts twice and compresses well. While transfers are held,
// both limits are a whole page.
func (f *Follower) limits() (packets, transfers int) {
	b, s := &f.back, f.Status()
	all := s.Rows[index.TransferType.Name].Upstream
	if all == 0 || len(b.held) > 0 || b.packets.ended || b.transfers.ended {
		return f.limit, f.limit
	}
	each := float64(s.Rows[index.PacketType.Name].Upstream) / float64(all) // packets per transfer
	packets, transfers = f.limit, f.limit
	if ahead := float64(b.readPackets) - each*float64(b.readTransfers); each <= 1 {
		packets = int(each*float64(transfers) - ahead + packetsAhead)
	} else {
		transfers = int((float64(packets) + ahead - packetsAhead) / each)
	}
	bounded := func(n int) int { return min(max(n, minLimit), f.limit) }
	return bounded(packets), bounded(transfers)
}

// readPageOf reads a page. It runs in a separate goroutine, which the recover around Run does not cover. It recovers
// from panics itself, because the same process also signs.
func (f *Follower) readPageOf(ctx context.Context, asked page, parts []part) (p page) {
	p = asked
	defer func() {
		if cause := recover(); cause != nil {
			p.err = fmt.Errorf("read ahead: panic: %v\n%s", cause, debug.Stack())
		}
	}()
	var answers []answer
	answers, p.counts, p.err = f.query(ctx, parts...)
	if p.err != nil {
		return p
	}
	if p.withPackets {
		p.packets, answers = answers[0], answers[1:]
	}
	if p.withTransfers {
		p.transfers = answers[0]
	}
	return p
}

// below is the part that asks for older rows.
func (s *stream) below(limit int) part {
	return part{t: s.t, cursor: s.back, direction: index.Older, limit: limit}
}

// ingestPage adds a page to the ingest. Transfers are held while their packets may still arrive.
func (b *backfill) ingestPage(ctx context.Context, in *ingest, p page) error {
	if err := in.addPackets(ctx, p.packets.rows); err != nil {
		return err
	}
	b.held = append(b.held, p.transfers.rows...)
	orphans, err := in.addTransfers(ctx, b.held)
	if err != nil {
		return err
	}
	b.pages++
	held := 0
	for _, row := range orphans {
		held += len(row.Bytes())
	}
	if len(orphans) > fewHeld && b.pages < maxHeldPages && held < batchBytes && !b.packets.ended {
		b.held = orphans
		return nil
	}
	b.held, b.pages = nil, 0
	return in.addOrphans(ctx, orphans)
}

// drop discards the state that is ahead of the disk, and waits for the request in flight.
func (f *Follower) drop() {
	if f.back.next != nil {
		f.back.stop()
		<-f.back.next
	}
	f.back = backfill{}
}
