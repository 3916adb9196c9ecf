package follower

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/attestd/attestd/appliance/index"
)

func TestReadingGoesOnBehindThePageWithoutLosingRowsOfOneSortOrder(t *testing.T) {
	for name, c := range map[string]struct {
		orders []string
		want   string
	}{
		"different ones":            {[]string{"c", "b", "a"}, "b"},
		"the last two alike":        {[]string{"c", "b", "b"}, "c"},
		"all alike":                 {[]string{"b", "b"}, "b"},
		"one row":                   {[]string{"b"}, "b"},
		"not ordered as text":       {[]string{"10", "9", "x"}, "9"},
		"the first like the last":   {[]string{"a", "b", "a"}, "b"},
		"empty text is a cursor to": {[]string{"a", ""}, "a"},
	} {
		if got := resume(c.orders); got != c.want {
			t.Errorf("%s: resumes at %q, want %q", name, got, c.want)
		}
	}
}

// pagesOf serves pages of sort_orders as an upstream does: descending, strictly below the cursor.
func pagesOf(all []string, cursor string, limit int) (page []string) {
	for _, order := range all {
		if (cursor == "" || order < cursor) && len(page) < limit {
			page = append(page, order)
		}
	}
	return page
}

func TestTheBackfillReadsEveryRowAndEnds(t *testing.T) {
	for name, all := range map[string][]string{
		"none":                        {},
		"one":                         {"a"},
		"exactly a page":              {"c", "b", "a"},
		"pairs across the page's end": {"g", "f", "e", "e", "d", "c", "c", "b", "a", "a"},
	} {
		s := stream{t: index.PacketType}
		first := pagesOf(all, "", 3)
		s.begin(first)
		read := slices.Clone(first)
		for requests := 0; !s.ended; requests++ {
			if requests > 20 {
				t.Fatalf("%s: does not end", name)
			}
			page := pagesOf(all, s.back, 3)
			read = append(read, page...)
			s.older(page)
		}
		for _, order := range all {
			if !slices.Contains(read, order) {
				t.Errorf("%s: %q was not read", name, order)
			}
		}
		if len(all) > 0 && s.live != all[0] {
			t.Errorf("%s: goes on forwards from %q, want %q", name, s.live, all[0])
		}
	}
}

func TestAStreamGoesForwardsFromTheHighestRow(t *testing.T) {
	s := stream{live: "a"}
	s.newer(nil, false)
	if s.live != "a" {
		t.Errorf("an empty page moves the cursor to %q", s.live)
	}
	s.newer([]string{"b", "c", "c"}, true)
	if s.live != "b" {
		t.Errorf("behind a full page it goes on from %q, which may leave out rows with the last one's sort_order",
			s.live)
	}
	s.newer([]string{"c", "c", "d"}, false)
	if s.live != "d" {
		t.Errorf("behind the last page it goes on from %q", s.live)
	}
}

// packetRow returns a packet that has or has not ended.
func packetRow(t *testing.T, hash string, sent time.Time, ended bool) index.Row {
	t.Helper()
	p := index.Packet{SortOrder: hash, PacketHash: hash, SourceUniversalChainID: "a.1", DestUniversalChainID: "b.1",
		SendTimestamp: &sent}
	if ended {
		p.AckTimestamp = &sent
	}
	row, err := index.NewRow(p)
	if err != nil {
		t.Fatal(err)
	}
	return row
}

func TestAPacketIsWatchedUntilItHasEndedAndOnceMore(t *testing.T) {
	now := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	w := watches{by: make(map[string]*watch)}
	w.note("0x01", packetRow(t, "0x01", now, true), nil, false, time.Second, now)
	if len(w.by) != 0 {
		t.Error("a packet that came as it had ended is watched")
	}
	w.note("0x02", packetRow(t, "0x02", now, false), nil, false, time.Second, now)
	if due := w.due(); due.Before(now.Add(time.Second)) || due.After(now.Add(1500*time.Millisecond)) {
		t.Errorf("it is looked up after %s, want a second and up to half of that more", due.Sub(now))
	}
	ended := packetRow(t, "0x02", now, true)
	w.note("0x02", ended, nil, false, time.Second, now)
	if len(w.by) != 1 || !w.by["0x02"].whole() {
		t.Error("a packet that has just ended is not looked up once more, with its transfers")
	}
	w.note("0x02", ended, nil, false, time.Second, now)
	if len(w.by) != 0 || len(w.heap) != 0 {
		t.Error("it is watched on after that")
	}
}

func TestWhatDoesNotVerifyIsLookedUpEverMoreRarely(t *testing.T) {
	now := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	w := watches{by: make(map[string]*watch)}
	row := packetRow(t, "0x01", now, true)
	var last time.Duration
	for range 5 {
		w.note("0x01", row, []index.RowID{row.ID()}, true, time.Second, now)
		if got := w.by["0x01"].interval; got <= last {
			t.Fatalf("the interval is %s after %s", got, last)
		} else {
			last = got
		}
	}
	w.note("0x01", row, nil, true, time.Second, now)
	w.note("0x01", row, nil, true, time.Second, now)
	if len(w.by) != 0 {
		t.Error("a packet that verifies by now, and has ended, is watched on")
	}
}

func TestWhatIsWantedIsLookedUpAtOnceAndCounted(t *testing.T) {
	now := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	w := watches{by: make(map[string]*watch)}
	for _, hash := range []string{"0x01", "0x02", "0x03"} {
		w.note(hash, packetRow(t, hash, now, false), nil, false, time.Hour, now)
	}
	w.call("0x02", now)
	w.call("0x09", now)
	w.call("0x09", now)
	if !w.wanted() || w.wanting != 2 {
		t.Errorf("%d are wanted, want 2", w.wanting)
	}
	due := w.popDue(10, now)
	if len(due) != 2 || len(w.heap) != 4 {
		t.Fatalf("%d are due of %d, want 2 of 4", len(due), len(w.heap))
	}
	for _, e := range due {
		w.note(e.hash, packetRow(t, e.hash, now, false), nil, false, time.Hour, now)
	}
	if w.wanted() || len(w.popDue(10, now)) != 0 {
		t.Error("what has come is wanted still")
	}
}

func TestRowsThatStayMissingAreSoughtBehindTheEndOfTheBackfillThenEverywhere(t *testing.T) {
	f := New(Options{})
	f.watched.by = make(map[string]*watch)
	f.packets = stream{t: index.PacketType, live: "b", back: "a", ended: true}
	f.transfers = f.packets
	upstream := counts{packets: 9, transfers: 9}
	for range manyPolls {
		if !f.packets.ended || f.sweep.wanted {
			t.Error("it is sought too soon: rows may just be coming")
		}
		f.suspect(5, 0, upstream)
	}
	if f.packets.ended || f.transfers.ended || f.due.backfill.Equal(never) || f.sweep.wanted {
		t.Errorf("the backfill does not go on: %+v", f.packets)
	}
	f.packets.ended, f.transfers.ended = true, true // the reopened backfill found no rows
	f.suspect(5, 0, upstream)
	if !f.packets.ended || !f.sweep.wanted {
		t.Error("rows that came late are not sought everywhere")
	}
	f.sweep = sweep{exhausted: true}
	f.suspect(5, 0, upstream)
	if f.missing.explained != 5 || f.sweep.wanted {
		t.Errorf("what was sought in vain is sought again: %+v", f.missing)
	}
	f.suspect(0, 0, upstream)
	if f.missing != (missing{}) {
		t.Errorf("all is here: %+v", f.missing)
	}
}

func TestWatchesAreBounded(t *testing.T) {
	now := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	hash := func(i, length int) string { return fmt.Sprintf("%0*x", length, i) }
	apart := func(hash string, n int) (ids []index.RowID) {
		for i := range n {
			ids = append(ids, index.RowID{Type: index.TransferType, Key: hash + "/" + strconv.Itoa(i)})
		}
		return ids
	}
	for name, c := range map[string]struct {
		add            func(w *watches, i int)
		tried, watched int // lower bounds
	}{
		"packets that are missing": {func(w *watches, i int) { w.call(hash(i, 66), now) }, 300_000, 200_000},
		"long hashes":              {func(w *watches, i int) { w.call(hash(i, 100_000), now) }, 1000, 500},
		"many transfers do not verify": {func(w *watches, i int) {
			h := hash(i, 66)
			w.note(h, index.Row{}, apart(h, 1000), true, 0, now)
		}, 1000, 400},
		"the packet is the same, always": {func(w *watches, i int) {
			w.note(hash(0, 66), index.Row{}, apart(hash(i, 66), 100_000), false, 0, now)
		}, 6, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := watches{by: make(map[string]*watch)}
			for i := range c.tried {
				if c.add(&w, i); w.size > maxWatched || len(w.by) != len(w.heap) {
					t.Fatalf("%d bytes of at most %d; %d are watched, %d of them looked up", w.size, maxWatched,
						len(w.by), len(w.heap))
				}
			}
			if len(w.by) < c.watched || len(w.by) >= c.tried || w.wanting > len(w.by) {
				t.Errorf("%d are watched, %d wanted; of %d, at least %d", len(w.by), w.wanting, c.tried, c.watched)
			}
			for len(w.heap) > 0 {
				w.remove(w.heap[0])
			}
			if w.size != 0 || len(w.by) != 0 || w.wanting != 0 {
				t.Errorf("none is left, but %d bytes, %d and %d wanted are counted", w.size, len(w.by), w.wanting)
			}
		})
	}
}

func TestADefectWhileReadingAheadIsAnError(t *testing.T) {
	f := New(Options{})
	f.back.packets = stream{t: index.PacketType, live: "b", back: "a"}
	for range 2 { // the second request can only be made if the first released the gate
		// A reader without Discover panics.
		if _, err := f.nextPage(t.Context()); err == nil || !strings.HasPrefix(err.Error(), "read ahead: panic: ") {
			t.Errorf("%v", err)
		}
	}
}
