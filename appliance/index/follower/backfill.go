package follower

import (
	"context"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/attestd/attestd/appliance/index"
)

// backfill is how far rows are being read backwards, which is ahead of what is written.
type backfill struct {
	packets, transfers stream
	next               chan page // a page that is being read while the one before is written
	stop               context.CancelFunc
	// held are transfers whose packets have not come yet: packets have cursors of their own, and may lag behind. While there
	// are such, only packets are read, and the position of transfers stays where it is.
	held  []index.Row
	pages int // of packets that were read for those held
	// How many rows were read, of each kind, with those of the page from which the backfill goes on.
	readPackets, readTransfers int
}

// page is what one request of the backfill has brought.
type page struct {
	packets, transfers answer
	withPackets        bool
	withTransfers      bool
	counts             counts
	err                error
}

const (
	batchTime = time.Second // after which a batch is written however few it has
	// maxHeldPages is how many pages of packets are read for transfers that are held before their packets are looked up.
	maxHeldPages = 30
	// fewHeld are looked up at once: it takes one request.
	fewHeld = maxParts
)

// backfillDue is when the backfill goes on: as soon as nothing else was due before.
func (f *Follower) backfillDue() time.Time {
	if f.packets.live == "" && f.transfers.live == "" || f.packets.ended && f.transfers.ended {
		return never
	}
	return f.o.Now()
}

// backfillOn reads some pages backwards, and writes them as one batch: also when one fails, those before it.
func (f *Follower) backfillOn(ctx context.Context) error {
	in := f.intake()
	began := f.o.Now()
	var failed error
	for failed == nil && !in.full() && f.o.Now().Sub(began) < batchTime && !f.back.done() {
		if failed = f.readPage(ctx, in); failed == nil {
			f.back.settle(f)
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

// readPage takes in the next page.
func (f *Follower) readPage(ctx context.Context, in *intake) error {
	p, err := f.nextPage(ctx)
	if err != nil {
		return err
	}
	f.grow()
	f.noteCounts(p.counts)
	return f.back.take(ctx, in, p)
}

// settle moves the follower's own streams behind what has been taken in. Transfers that are held are read again after a crash.
func (b *backfill) settle(f *Follower) {
	f.packets.back, f.packets.final, f.packets.ended = b.packets.back, b.packets.final, b.packets.ended
	if len(b.held) == 0 {
		f.transfers.back, f.transfers.final, f.transfers.ended = b.transfers.back, b.transfers.final, b.transfers.ended
	}
}

// noteBackfilled notes whether the oldest rows of both kinds have been read, and when.
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

// reopen has the backfill look behind its end: an upstream may be filled backwards itself.
func (f *Follower) reopen() {
	for _, s := range []*stream{&f.packets, &f.transfers} {
		s.ended, s.final = s.back == "", ""
	}
	f.drop()
	f.back = backfill{packets: f.packets, transfers: f.transfers}
	f.due.backfill = f.backfillDue()
}

// done tells that nothing is left to read.
func (b *backfill) done() bool {
	return b.packets.ended && b.transfers.ended && len(b.held) == 0
}

// nextPage returns the page that was being read, or one that it reads, and begins to read the one after.
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

// readAhead asks for the next page of packets and, unless transfers are held for theirs, of transfers.
func (f *Follower) readAhead(ctx context.Context) {
	var parts []part
	p := page{withPackets: !f.back.packets.ended, withTransfers: !f.back.transfers.ended && (len(f.back.held) == 0 || f.back.packets.ended)}
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

// packetsAhead is how many packets are read before their transfers: in no two places are there as many transfers of a packet.
const packetsAhead = 20

// limits are how many packets and transfers a request asks for: those packets that these transfers have, going by the upstream's counts
// and by what has been read, so that an answer has most texts twice, which compresses them. While transfers wait for their packets, it is
// a whole page of these.
func (f *Follower) limits() (packets, transfers int) {
	b, s := &f.back, f.Status()
	all := s.Rows[index.TransferType.Name].Upstream
	if all == 0 || len(b.held) > 0 || b.packets.ended || b.transfers.ended {
		return f.limit, f.limit
	}
	each := float64(s.Rows[index.PacketType.Name].Upstream) / float64(all) // packets of a transfer
	packets, transfers = f.limit, f.limit
	if ahead := float64(b.readPackets) - each*float64(b.readTransfers); each <= 1 {
		packets = int(each*float64(transfers) - ahead + packetsAhead)
	} else {
		transfers = int((float64(packets) + ahead - packetsAhead) / each)
	}
	bounded := func(n int) int { return min(max(n, minLimit), f.limit) }
	return bounded(packets), bounded(transfers)
}

// readPageOf reads a page. It runs in a goroutine of its own, out of reach of whoever guards Run: a defect must not take
// the process down, which also signs.
func (f *Follower) readPageOf(ctx context.Context, asked page, parts []part) (p page) {
	p = asked
	defer func() {
		if cause := recover(); cause != nil {
			p.err = fmt.Errorf("read ahead: panic: %v\n%s", cause, debug.Stack())
		}
	}()
	var answers []answer
	answers, p.counts, p.err = f.ask(ctx, parts...)
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

// below is the part that asks for what is older.
func (s *stream) below(limit int) part {
	return part{t: s.t, cursor: s.back, direction: index.Older, limit: limit}
}

// take adds a page to what is written next. Transfers wait for their packets as long as those may still come.
func (b *backfill) take(ctx context.Context, in *intake, p page) error {
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

// drop forgets what is ahead of what is written, and waits for the request that is under way.
func (f *Follower) drop() {
	if f.back.next != nil {
		f.back.stop()
		<-f.back.next
	}
	f.back = backfill{}
}
