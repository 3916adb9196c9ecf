package indexer_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/attestd/attestd/api/graphql"
	"github.com/attestd/attestd/api/upstream"
	"github.com/attestd/attestd/appliance/chain/chaintest"
	"github.com/attestd/attestd/appliance/index"
	"github.com/attestd/attestd/appliance/index/follower"
	"github.com/attestd/attestd/appliance/index/follower/followertest"
	"github.com/attestd/attestd/appliance/index/indexer"
	"github.com/attestd/attestd/store/replica"
)

// rowsOfParcels returns the packets and their transfers.
func rowsOfParcels(t testing.TB, all ...*parcel) (rows []index.Row) {
	t.Helper()
	for _, p := range all {
		rows = append(rows, rowOf(t, p.row), rowOf(t, p.transfer()))
	}
	return rows
}

// forge returns packets that are consistent with themselves, and that were never sent.
func forge(t testing.TB, s *side, n int) (all []*parcel) {
	t.Helper()
	for i := range n {
		p := newParcel(s)
		p.started(place{block: 1, time: time.Unix(int64(1_780_000_000+i), 0).UTC()})
		all = append(all, p)
	}
	return all
}

// watched is an upstream with rows, behind a lying proxy, and a replica that follows it.
type watched struct {
	upstream *replica.Store
	proxy    *followertest.Proxy
	replica  *replica.Store
}

func newWatched(t *testing.T, rows []index.Row) *watched {
	t.Helper()
	w := &watched{upstream: openIndex(t), replica: openIndex(t)}
	w.add(t, rows)
	w.proxy = followertest.NewProxy(t, followertest.Serve(t, graphql.Options{Index: w.upstream}))
	w.proxy.Compress(false)
	return w
}

func (w *watched) add(t *testing.T, rows []index.Row) {
	t.Helper()
	if _, err := w.upstream.Write(t.Context(), index.Batch{Rows: rows}); err != nil {
		t.Fatal(err)
	}
}

// follow returns a follower of the upstream. chains may be nil.
func (w *watched) follow(t *testing.T, chains follower.Chains) *follower.Follower {
	t.Helper()
	client, err := upstream.New(upstream.Options{URL: w.proxy.URL(), Timeout: 30 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	return follower.New(follower.Options{
		Index: w.replica, Upstream: client, Address: w.proxy.URL(), Chains: chains, PollInterval: 20 * time.Millisecond,
		RefreshInterval: 500 * time.Millisecond, Overlap: 10 * time.Minute, LookupInterval: 100 * time.Millisecond,
	})
}

func (w *watched) sync(t *testing.T, f *follower.Follower) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := f.Sync(ctx); err != nil {
		t.Fatalf("sync: %v; %+v", err, f.Status())
	}
}

// start runs a follower until the test ends.
func (w *watched) start(t *testing.T, f *follower.Follower) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var done sync.WaitGroup
	done.Go(func() { _ = f.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		done.Wait()
	})
}

// served returns the keys of the packets and transfers that the replica serves.
func (w *watched) served(t *testing.T) (keys []string) {
	t.Helper()
	err := w.replica.View(t.Context(), func(snap index.Snapshot) error {
		for _, kind := range []*index.Type{index.PacketType, index.TransferType} {
			if err := snap.Each(t.Context(), kind, func(row index.Row) error {
				keys = append(keys, row.Key())
				return nil
			}); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(keys)
	return keys
}

// apart returns the reasons of the quarantined rows, by key.
func (w *watched) apart(t *testing.T) map[string]string {
	t.Helper()
	reasons := make(map[string]string)
	err := w.replica.View(t.Context(), func(snap index.Snapshot) error {
		return snap.Unverified(t.Context(), func(u index.Unverified) error {
			reasons[u.Row.Key()] = u.Reason
			return nil
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	return reasons
}

func keysOf(rows []index.Row) (keys []string) {
	for _, row := range rows {
		keys = append(keys, row.Key())
	}
	slices.Sort(keys)
	return keys
}

// TestAForgingUpstreamIsCaughtEveryTime follows an upstream that has forged packets between the packets of two chains. With
// the chains, each forged packet is quarantined with its transfer; without them, all are served.
func TestAForgingUpstreamIsCaughtEveryTime(t *testing.T) {
	t.Parallel()
	a, b := newWorld(t)
	honest := rowsOfParcels(t, append(committedOn(t, a, 80), committedOn(t, b, 80)...)...)
	forged := rowsOfParcels(t, append(forge(t, a, 40), forge(t, b, 40)...)...)
	w := newWatched(t, append(slices.Clone(honest), forged...))
	f := w.follow(t, newVerifier(t, chainsOf(a, b)...))
	w.sync(t, f)
	if got, want := w.served(t), keysOf(honest); !slices.Equal(got, want) {
		t.Errorf("%d rows are served, want %d", len(got), len(want))
	}
	apart := w.apart(t)
	for _, row := range forged {
		if reason := apart[row.Key()]; !strings.Contains(reason,
			"its chain does not confirm it: the core contract of ethereum.100") {
			t.Errorf("%s %s is quarantined because %q", row.Type().Name, row.Key(), reason)
		}
	}
	if s := f.Status(); len(apart) != len(forged) || s.Waiting != 0 || s.ChainError != "" {
		t.Errorf("%d rows are quarantined; %+v", len(apart), s)
	}

	believing := newWatched(t, append(slices.Clone(honest), forged...))
	believing.sync(t, believing.follow(t, nil))
	if got := believing.served(t); len(got) != len(honest)+len(forged) {
		t.Errorf("without the chains, %d rows are served", len(got))
	}
}

// TestAnUpstreamThatLiesAboutAPacketsChainOrEndIsCaught has a proxy say that packets were sent on another chain, and
// that they have ended. A packet that is served stays as it was.
func TestAnUpstreamThatLiesAboutAPacketsChainOrEndIsCaught(t *testing.T) {
	t.Parallel()
	a, b := newWorld(t)
	all := committedOn(t, a, 4)
	b.Mine(20)
	w := newWatched(t, rowsOfParcels(t, all...))
	moved, ended := all[1].row.PacketHash, all[2].row.PacketHash
	tell := func(object map[string]any) {
		if _, isTransfer := object["transfer_index"]; isTransfer {
			return
		}
		switch object["packet_hash"] {
		case moved:
			object["source_universal_chain_id"] = b.id
		case ended:
			object["packet_ack_timestamp"], object["packet_ack_height"] = "2026-05-28T20:26:40Z", "2"
		}
	}
	w.proxy.Lie(followertest.AlterObjects(tell))
	f := w.follow(t, newVerifier(t, chainsOf(a, b)...))
	w.sync(t, f)
	want := keysOf(rowsOfParcels(t, all[0], all[3]))
	if got := w.served(t); !slices.Equal(got, want) {
		t.Errorf("served are %v, want %v", got, want)
	}
	w.proxy.Lie(nil)
	w.start(t, f)
	everything := keysOf(rowsOfParcels(t, all...))
	eventually(t, "the truth is served", func() bool { return slices.Equal(w.served(t), everything) })

	w.proxy.Lie(followertest.AlterObjects(tell))
	eventually(t, "the lie about the end is found", func() bool {
		return strings.Contains(w.apart(t)[ended], "it is neither acknowledged nor timed out")
	})
	err := w.replica.View(t.Context(), func(snap index.Snapshot) error {
		return snap.Each(t.Context(), index.PacketType, func(row index.Row) error {
			if source, _ := row.Text(index.PacketSourceChainColumn); source != a.id ||
				!row.IsNull(index.PacketAckedColumn) {
				t.Errorf("a lie is served: %s", row.AppendLine(nil))
			}
			return nil
		})
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestPacketsWaitForRPCsThatAreAway follows an upstream while the RPC of a chain fails. The packets of the other chain
// are served, and those of this one once it answers.
func TestPacketsWaitForRPCsThatAreAway(t *testing.T) {
	t.Parallel()
	a, b := newWorld(t)
	onA, onB := rowsOfParcels(t, committedOn(t, a, 30)...), rowsOfParcels(t, committedOn(t, b, 30)...)
	w := newWatched(t, append(slices.Clone(onA), onB...))
	proxy := chaintest.NewProxy(t, a.URL)
	proxy.Answer(func(chaintest.Request) *chaintest.Reply { return &chaintest.Reply{Status: 502} })
	chains := chainsOf(a, b)
	chains[0].RPCs = []string{proxy.URL}
	f := w.follow(t, newVerifier(t, chains...))
	w.start(t, f)
	eventually(t, "the other chain's packets are served", func() bool {
		return slices.Equal(w.served(t), keysOf(onB)) && f.Status().Waiting == uint64(len(onA))
	})
	if s := f.Status(); !strings.Contains(s.ChainError, "chain ethereum.1001: ") ||
		!strings.Contains(s.ChainError, "502") {
		t.Errorf("the error is %q", s.ChainError)
	}
	for key, reason := range w.apart(t) {
		if !strings.HasPrefix(reason, "not checked yet: ") {
			t.Errorf("%s waits because %q", key, reason)
		}
	}
	proxy.Answer(nil)
	eventually(t, "all packets are served", func() bool {
		s := f.Status()
		return len(w.served(t)) == len(onA)+len(onB) && s.Waiting == 0 && s.ChainError == ""
	})
}

// TestAPacketIsServedWhenItsBlockIsFinal sends a packet that needs five confirmations.
func TestAPacketIsServedWhenItsBlockIsFinal(t *testing.T) {
	t.Parallel()
	a, _ := newWorld(t)
	chains := chainsOf(a)
	chains[0].Confirmations = 5
	old := rowsOfParcels(t, committedOn(t, a, 3)...)
	a.Mine(5)
	w := newWatched(t, old)
	f := w.follow(t, newVerifier(t, chains...))
	w.start(t, f)
	eventually(t, "the old packets are served", func() bool { return slices.Equal(w.served(t), keysOf(old)) })
	fresh := rowsOfParcels(t, committedOn(t, a, 1)...)
	w.add(t, fresh)
	eventually(t, "the new packet waits", func() bool { return f.Status().Waiting == 2 })
	if got := w.served(t); !slices.Equal(got, keysOf(old)) {
		t.Errorf("served are %v", got)
	}
	a.Mine(10)
	eventually(t, "the new packet is served", func() bool { return len(w.served(t)) == len(old)+len(fresh) })
}

var _ follower.Chains = (*indexer.Verifier)(nil)
