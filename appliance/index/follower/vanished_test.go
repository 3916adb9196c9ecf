package follower_test

import (
	"encoding/json"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/attestd/attestd/api/upstream"
	"github.com/attestd/attestd/appliance/index"
	"github.com/attestd/attestd/appliance/index/follower"
	"github.com/attestd/attestd/appliance/index/follower/followertest"
)

// clock is this machine's clock, which a test can set forward.
type clock struct{ ahead atomic.Int64 }

func (c *clock) now() time.Time          { return time.Now().Add(time.Duration(c.ahead.Load())) }
func (c *clock) forward(d time.Duration) { c.ahead.Add(int64(d)) }

// patient returns a follower of the proxy that looks packets up again after an hour.
func (r *rig) patient(c *clock) *follower.Follower {
	r.Helper()
	client, err := upstream.New(upstream.Options{URL: r.proxy.URL(), Timeout: within})
	if err != nil {
		r.Fatal(err)
	}
	return follower.New(follower.Options{
		Index: r.index, Upstream: client, Address: r.proxy.URL(), PollInterval: 50 * time.Millisecond,
		RefreshInterval: 500 * time.Millisecond,
		Overlap:         time.Millisecond, LookupInterval: time.Hour, Now: c.now,
	})
}

// alterLists returns a lie that may change each list of an answer.
func alterLists(alter func(list []any) []any) func([]byte) []byte {
	return func(body []byte) []byte {
		var answer map[string]any
		if json.Unmarshal(body, &answer) != nil {
			return body
		}
		data, _ := answer["data"].(map[string]any)
		for name, value := range data {
			if list, ok := value.([]any); ok {
				data[name] = alter(list)
			}
		}
		altered, err := json.Marshal(answer)
		if err != nil { // an answer that was decoded can be encoded
			panic(err)
		}
		return altered
	}
}

// leavingOut removes a packet and its transfers from lists. The upstream still counts them.
func leavingOut(hash string) func([]byte) []byte {
	return alterLists(func(list []any) []any {
		return slices.DeleteFunc(list, func(element any) bool {
			object, _ := element.(map[string]any)
			return object["packet_hash"] == hash
		})
	})
}

// gap is how many rows the victim has.
func (v victim) gap() int64 { return int64(1 + len(v.transfers)) }

func TestRowsThatTheUpstreamLeftOutForAWhileAreFound(t *testing.T) {
	for name, find := range map[string]func(r *rig, f *follower.Follower, c *clock){
		"an hour later": func(_ *rig, _ *follower.Follower, c *clock) { c.forward(time.Hour) },
		"when asked":    func(_ *rig, f *follower.Follower, _ *clock) { f.Wake() },
	} {
		t.Run(name, func(t *testing.T) {
			r, c := newRig(t, 200), new(clock)
			v := r.victim()
			r.proxy.Lie(leavingOut(v.packet))
			f := r.patient(c)
			run(t, f)
			followertest.Await(t, within, "the search for the rows ends", func() bool {
				s := f.Status()
				return s.LagRows == v.gap() && s.UnlistedRows == v.gap() && !s.InStep.IsZero()
			})
			r.proxy.Lie(nil)
			find(r, f, c)
			r.awaitEqual()
			followertest.Await(t, within, "no row is missing", func() bool {
				s := f.Status()
				return s.LagRows == 0 && s.UnlistedRows == 0
			})
		})
	}
	for name, start := range map[string]func(r *rig){
		"at the next start": func(r *rig) { run(r.T, r.patient(new(clock))); r.awaitEqual() },
		"by a sync": func(r *rig) {
			r.sync(r.patient(new(clock)))
			followertest.Equal(r.T, r.upstream.Index, r.index)
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, 200)
			v := r.victim()
			r.proxy.Lie(leavingOut(v.packet))
			f := r.patient(new(clock))
			r.sync(f)
			if s := f.Status(); s.LagRows != v.gap() {
				t.Fatalf("%d rows are missing, want %d", s.LagRows, v.gap())
			}
			r.proxy.Lie(nil)
			start(r)
		})
	}
}

func TestAWokenFollowerIsNotInStepBeforeItHasLookedAtRowsKeptApart(t *testing.T) {
	r := newRig(t, 200)
	v := r.victim()
	r.proxy.Lie(followertest.AlterObjects(func(object map[string]any) {
		if v.second(object, "base_amount") {
			object["base_amount"] = "1"
		}
	}))
	f := r.patient(new(clock))
	run(t, f)
	inStepAfter := func(began time.Time) {
		followertest.Await(t, within, "it is in step", func() bool { return f.Status().InStep.After(began) })
	}
	inStepAfter(time.Now())
	if got := apart(t, r.index); len(got) != 1 {
		t.Fatalf("quarantined are %q", got)
	}
	r.proxy.Lie(nil)
	began := time.Now()
	f.Wake()
	inStepAfter(began)
	if got := apart(t, r.index); len(got) != 0 {
		t.Errorf("quarantined are %q still", got)
	}
}

func TestRowsThatVanishUpstreamAreRemoved(t *testing.T) {
	for name, choose := range map[string]func(r *rig) []index.RowID{
		"a packet that has ended, and its transfers": func(r *rig) []index.RowID {
			v := r.victim()
			ids := []index.RowID{{Type: index.PacketType, Key: v.packet}}
			for _, key := range v.transfers {
				ids = append(ids, index.RowID{Type: index.TransferType, Key: key})
			}
			return ids
		},
		"packets under way": func(r *rig) (ids []index.RowID) {
			view(r.T, r.upstream.Index, func(s index.Snapshot) error {
				return s.Unfinished(r.Context(), index.Row{}, func(row index.Row) error {
					ids = append(ids, row.ID())
					transfers, err := s.Transfers(r.Context(), index.TransferQuery{PacketHash: row.Key()})
					for _, transfer := range transfers {
						ids = append(ids, transfer.ID())
					}
					return err
				})
			})
			return ids
		},
		"one transfer": func(r *rig) []index.RowID {
			return []index.RowID{{Type: index.TransferType, Key: r.victim().transfers[0]}}
		},
		"a token": func(r *rig) []index.RowID {
			return []index.RowID{{Type: index.TokenType, Key: keys(r.T, r.upstream.Index, index.TokenType)[0]}}
		},
		"a channel": func(r *rig) []index.RowID {
			return []index.RowID{{Type: index.ChannelType, Key: keys(r.T, r.upstream.Index, index.ChannelType)[0]}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, 200)
			r.upstream.Grow(20, time.Minute) // some of these are unfinished
			r.sync(r.follower())
			ids := choose(r)
			written, err := r.upstream.Index.Write(t.Context(), index.Batch{Removed: ids})
			if err != nil || len(ids) == 0 || written.Removed != len(ids) {
				t.Fatalf("%d rows are to vanish: %+v, %v", len(ids), written, err)
			}
			f := r.start()
			r.awaitEqual()
			followertest.Await(t, within, "they are counted", func() bool {
				return f.Status().Removed == uint64(len(ids))
			})
		})
	}
}

// An upstream may fail in ways that look as if it had lost rows.
func TestRowsThatTheUpstreamLeavesOutForAMomentStay(t *testing.T) {
	r := newRig(t, 200)
	r.sync(r.follower())
	r.proxy.Lie(alterLists(func(list []any) []any {
		if len(list) > 0 {
			if stat, _ := list[0].(map[string]any); stat["name"] == nil || stat["value"] == nil {
				return []any{}
			}
		}
		return list
	}))
	f := r.start()
	began := time.Now()
	followertest.Await(t, within, "it is in step with an upstream that lists no row", func() bool {
		return f.Status().InStep.After(began)
	})
	for _, kind := range []*index.Type{index.TokenType, index.ChainType, index.ChannelType} {
		if here, want := rows(t, r.index, kind), rows(t, r.upstream.Index, kind); here != want {
			t.Errorf("%d %ss of %d are left", here, kind.Name, want)
		}
	}
	r.proxy.Lie(nil)
	r.awaitEqual()
}

func TestAnUpstreamOfShortPagesIsReadWhole(t *testing.T) {
	const most = 10
	r := newRig(t, 300)
	if n := rows(t, r.upstream.Index, index.ChannelType); n <= most {
		t.Fatalf("%d channels fit on a page", n)
	}
	r.proxy.Lie(alterLists(func(list []any) []any {
		if len(list) > most {
			if object, _ := list[0].(map[string]any); object["sort_order"] != nil { // other lists have no pages
				return list[:most]
			}
		}
		return list
	}))
	r.start()
	r.awaitEqual()
}
