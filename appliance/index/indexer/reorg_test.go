package indexer_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/attestd/attestd/appliance/chain/chaintest"
	"github.com/attestd/attestd/appliance/index"
	"github.com/attestd/attestd/appliance/index/indexer"
)

// sameAsAnew compares all rows of a replica with those of a replica that is made anew.
func sameAsAnew(t *testing.T, idx index.Index, sides ...*side) {
	t.Helper()
	anew := openIndex(t)
	x := newIndexer(t, anew, chainsOf(sides...))
	stop := run(t, x)
	caughtUp(t, x, sides...)
	stop()
	sameRows(t, rowsOf(t, idx, index.RowTypes...), rowsOf(t, anew, index.RowTypes...))
}

// settled waits until the indexer's last blocks are those of the chains.
func settled(t testing.TB, idx index.Index, x *indexer.Indexer, sides ...*side) {
	t.Helper()
	eventually(t, "the newest blocks are indexed", func() bool {
		for i, s := range sides {
			if status := x.Status()[i]; status.Indexed != s.Head(t) || lastHash(t, idx, s) != s.Hash(t) {
				return false
			}
		}
		return true
	})
}

// lastHash returns the hash of the last block of a chain that is indexed.
func lastHash(t testing.TB, idx index.Index, s *side) (hash string) {
	t.Helper()
	err := idx.View(t.Context(), func(snap index.Snapshot) error {
		text, _, err := snap.Position(t.Context(), "indexer progress "+s.id)
		if _, after, found := strings.Cut(text, `"Hash":"`); found {
			hash, _, _ = strings.Cut(after, `"`)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return hash
}

// TestReorganisationsAreUndone has three reorganisations. One removes a transfer that was received, one moves it to
// another block, and one changes the time of its block. The receipt on the other chain stays.
func TestReorganisationsAreUndone(t *testing.T) {
	t.Parallel()
	a, b := newWorld(t)
	all := exchange(t, a, b, 20)
	idx := openIndex(t)
	x := newIndexer(t, idx, chainsOf(a, b))
	run(t, x)
	settled(t, idx, x, a, b)
	p := newParcel(a)
	p.started(a.emit(t, p.send())[0])
	receipt := b.emit(t, p.receive())[0]
	p.received(receipt)
	settled(t, idx, x, a, b)
	sameRows(t, rowsOf(t, idx, index.PacketType, index.TransferType), expected(t, append(all, p)))

	a.Reorganise(t, 1)
	settled(t, idx, x, a, b)
	sameRows(t, rowsOf(t, idx, index.PacketType, index.TransferType), expected(t, all))
	sameAsAnew(t, idx, a, b)

	for _, blocks := range []uint64{0, 1} { // moved to another block, then the same block with another time
		before := *p.row.SendTimestamp
		a.Rewind(t, blocks)
		row := p.row
		p.started(a.emit(t, p.send())[0])
		if !p.row.SendTimestamp.After(before) {
			t.Fatal("the time is the same")
		}
		p.received(receipt)
		p.row.Traces[1] = row.Traces[1]
		settled(t, idx, x, a, b)
		sameRows(t, rowsOf(t, idx, index.PacketType, index.TransferType), expected(t, append(all, p)))
		sameAsAnew(t, idx, a, b)
	}
	if s := x.Status()[0]; s.Undone != 2 || s.Error != "" {
		t.Errorf("the status is %+v", s)
	}
}

// story emits random events of packets on two chains. It knows which are on the chains.
type story struct {
	random  *rand.Rand
	sides   []*side
	parcels []*parcel
	on      map[string]uint64 // the block of each event that is on a chain, by side, packet and kind
}

func (s *story) key(on *side, p *parcel, kind string) string {
	return fmt.Sprint(on.id, " ", p.from.id, " ", p.number, " ", kind)
}

// next returns an event that may follow on a side, and its key.
func (s *story) next(on *side) (e emission, key string) {
	if s.random.IntN(4) == 0 {
		return on.updateClient(), ""
	}
	if s.random.IntN(3) == 0 {
		s.parcels = append(s.parcels, newParcel(on))
	}
	for range 20 {
		if len(s.parcels) == 0 {
			break
		}
		p := s.parcels[s.random.IntN(len(s.parcels))]
		success := p.number%3 > 0
		has := func(kind string) bool { _, is := s.on[s.key(on, p, kind)]; return is }
		switch {
		case p.from == on && !has("send"):
			return p.send(), s.key(on, p, "send")
		case p.from == on && !has("end") && p.number%5 == 0:
			return p.timeOut(), s.key(on, p, "end")
		case p.from == on && !has("end"):
			return p.acknowledge(success), s.key(on, p, "end")
		case p.from != on && !has("receive"):
			return p.receive(), s.key(on, p, "receive")
		case p.from != on && !has("write"):
			return p.writeAck(success), s.key(on, p, "write")
		}
	}
	return on.updateClient(), ""
}

// add adds a block with some events.
func (s *story) add(t *testing.T, on *side) {
	t.Helper()
	var events []emission
	block := on.Head(t) + 1
	for range 1 + s.random.IntN(4) {
		e, key := s.next(on)
		events = append(events, e)
		if key != "" {
			s.on[key] = block
		}
	}
	on.emit(t, events...)
}

// reorganise removes some blocks of a side, and adds others.
func (s *story) reorganise(t *testing.T, on *side) {
	t.Helper()
	const built = 3 // blocks of a client, a connection and a channel
	head := on.Head(t)
	blocks := 1 + s.random.Uint64N(min(head-built, 12))
	on.Rewind(t, blocks)
	for key, block := range s.on {
		if strings.HasPrefix(key, on.id+" ") && block > head-blocks {
			delete(s.on, key)
		}
	}
	for range int(blocks) + s.random.IntN(2) {
		if s.random.IntN(2) == 0 {
			on.Mine(1)
		} else {
			s.add(t, on)
		}
	}
}

func newStory(a, b *side, seed uint64) *story {
	return &story{random: rand.New(rand.NewPCG(seed, 1)), sides: []*side{a, b}, on: make(map[string]uint64)}
}

// TestRandomReorganisationsAreUndone reorganises two chains again and again, while the indexer reads them and is killed
// at random. The replica equals one that is made anew each time.
func TestRandomReorganisationsAreUndone(t *testing.T) {
	t.Parallel()
	for seed := range uint64(3) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			a, b := newWorld(t)
			s := newStory(a, b, seed)
			idx := openIndex(t)
			for range 8 {
				x := newIndexer(t, &failing{Index: idx, random: rand.New(rand.NewPCG(seed, 2))}, chainsOf(a, b))
				stop := run(t, x)
				for range 6 {
					s.add(t, s.sides[s.random.IntN(2)])
				}
				s.reorganise(t, s.sides[s.random.IntN(2)])
				stop()
				x = newIndexer(t, idx, chainsOf(a, b))
				stop = run(t, x)
				settled(t, idx, x, a, b)
				stop()
				sameAsAnew(t, idx, a, b)
			}
		})
	}
}

// mortal is an index that fails after some writes.
type mortal struct {
	index.Index
	mu    sync.Mutex
	left  int  // writes that succeed
	after bool // the write that fails is on disk
}

func (m *mortal) Write(ctx context.Context, b index.Batch) (index.Written, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.left--; m.left >= 0 {
		return m.Index.Write(ctx, b)
	}
	if m.left == -1 && m.after {
		_, _ = m.Index.Write(ctx, b)
	}
	return index.Written{}, errors.New("killed")
}

func (m *mortal) dead() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.left < 0
}

// TestAKillBetweenTwoUndosLosesNothing reorganises several indexed ranges, and kills the indexer after each write.
func TestAKillBetweenTwoUndosLosesNothing(t *testing.T) {
	t.Parallel()
	a, b := newWorld(t)
	s := newStory(a, b, 7)
	idx := openIndex(t)
	x := newIndexer(t, idx, chainsOf(a, b))
	stop := run(t, x)
	const ranges = 6
	for range ranges { // each block is a range of its own
		s.add(t, a)
		s.add(t, b)
		settled(t, idx, x, a, b)
	}
	stop()
	a.Rewind(t, ranges)
	a.Mine(ranges + 2)
	undone := uint64(0)
	for n := range 2 * ranges {
		m := &mortal{Index: idx, left: n % 2, after: n%3 == 0}
		x = newIndexer(t, m, chainsOf(a, b))
		stop = run(t, x)
		eventually(t, "the indexer is killed or done", func() bool {
			return m.dead() || lastHash(t, idx, a) == a.Hash(t)
		})
		stop()
		undone += x.Status()[0].Undone
	}
	if undone == 0 || undone > ranges {
		t.Errorf("%d ranges were undone in sight of the kills", undone)
	}
	x = newIndexer(t, idx, chainsOf(a, b))
	run(t, x)
	settled(t, idx, x, a, b)
	sameAsAnew(t, idx, a, b)
}

// TestADeepReorganisationStopsOneChainOnly replaces more blocks than can be undone. A rescan from before them repairs
// the rows.
func TestADeepReorganisationStopsOneChainOnly(t *testing.T) {
	t.Parallel()
	a, b := newWorld(t)
	built := a.Head(t)
	all := exchange(t, a, b, 10)
	a.Mine(300)
	idx := openIndex(t)
	x := newIndexer(t, idx, chainsOf(a, b))
	run(t, x)
	settled(t, idx, x, a, b)
	a.Reorganise(t, a.Head(t)-built)
	eventually(t, "the reorganisation is shown", func() bool {
		s := x.Status()[0]
		return s.Code == indexer.CodeReorganised && strings.Contains(s.Remedy, "attestd indexer rescan --chain "+a.id) &&
			strings.Contains(s.Error, "the chain was reorganised below the 256 newest blocks")
	})
	b.Mine(1)
	eventually(t, "the other chain is read", func() bool { return x.Status()[1].Indexed == b.Head(t) })
	at := x.Status()[0].Indexed
	if err := x.Rescan(t.Context(), a.id, indexer.Range{From: built + 1, To: at}); err != nil {
		t.Fatal(err)
	}
	settled(t, idx, x, a, b)
	if s := x.Status()[0]; s.Error != "" || s.Code != "" || s.Rescan != nil {
		t.Errorf("the status is %+v", s)
	}
	sent := slices.DeleteFunc(slices.Clone(all), func(p *parcel) bool { return p.from == a })
	if got := len(rowsOf(t, idx, index.PacketType)); got != len(sent) {
		t.Errorf("%d packets, want %d", got, len(sent))
	}
	sameAsAnew(t, idx, a, b)
}

// TestARangeReadAcrossAReorganisationIsDiscarded reorganises the chain after its head was read, and before the events
// above the last block are.
func TestARangeReadAcrossAReorganisationIsDiscarded(t *testing.T) {
	t.Parallel()
	a, b := newWorld(t)
	proxy := chaintest.NewProxy(t, a.URL)
	chains := chainsOf(a, b)
	chains[0].RPCs = []string{proxy.URL}
	idx := openIndex(t)
	x := newIndexer(t, idx, chains)
	run(t, x)
	p := newParcel(a)
	a.emit(t, p.send())
	settled(t, idx, x, a, b)
	next := fmt.Sprintf(`"%#x"`, a.Head(t)+1)
	var once sync.Once
	proxy.Answer(func(q chaintest.Request) *chaintest.Reply {
		if q.Method == "eth_getBlockByNumber" && string(q.Params[0]) == next {
			once.Do(func() { a.Reorganise(t, 2) })
		}
		return nil
	})
	a.Mine(1)
	settled(t, idx, x, a, b)
	once.Do(func() { t.Error("the chain was not reorganised") })
	sameRows(t, rowsOf(t, idx, index.PacketType), nil)
	sameAsAnew(t, idx, a, b)
}

// TestAnRPCThatServesAnotherChainUndoesNothing has an RPC whose chain changes. Its blocks have other hashes.
func TestAnRPCThatServesAnotherChainUndoesNothing(t *testing.T) {
	t.Parallel()
	a, b := newWorld(t)
	exchange(t, a, b, 10)
	b.Mine(10)
	proxy, other := chaintest.NewProxy(t, a.URL), chaintest.NewProxy(t, b.URL)
	chains := chainsOf(a)
	chains[0].RPCs = []string{proxy.URL}
	idx := openIndex(t)
	x := newIndexer(t, idx, chains)
	run(t, x)
	settled(t, idx, x, a)
	proxy.Answer(func(q chaintest.Request) *chaintest.Reply { return &chaintest.Reply{Result: other.Get(q)} })
	eventually(t, "the other chain is seen", func() bool {
		return strings.Contains(x.Status()[0].Error, "the RPC serves chain 1002, not 1001")
	})
	if undone := x.Status()[0].Undone; undone != 0 {
		t.Errorf("%d ranges were undone", undone)
	}
	sameAsAnew(t, idx, a)
}
