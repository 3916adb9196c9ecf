package replica

import (
	"context"
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/index"
)

// Each method of a snapshot that takes a context refuses one that has ended, and does not call yield.
func TestNothingIsReadForAContextThatHasEnded(t *testing.T) {
	t.Parallel()
	r := newReplica(t)
	fill(t, r, 300)
	ended, end := context.WithCancel(t.Context())
	end()
	methods := reflect.TypeFor[index.Snapshot]()
	err := r.View(t.Context(), func(s index.Snapshot) error {
		for i := range methods.NumMethod() {
			method := methods.Method(i)
			if method.Type.NumIn() == 0 || method.Type.In(0) != reflect.TypeFor[context.Context]() {
				continue
			}
			t.Run(method.Name, func(t *testing.T) {
				args := []reflect.Value{reflect.ValueOf(ended)}
				for j := 1; j < method.Type.NumIn(); j++ {
					args = append(args, argument(t, method.Type.In(j)))
				}
				results := reflect.ValueOf(s).MethodByName(method.Name).Call(args)
				if err, _ := results[len(results)-1].Interface().(error); appliance.CodeOf(
					err) != appliance.CodeTimeout {
					t.Errorf("%v, want %s", err, appliance.CodeTimeout)
				}
			})
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	if err := r.View(ended, func(index.Snapshot) error { return nil }); appliance.CodeOf(err) != appliance.CodeTimeout {
		t.Errorf("View: %v", err)
	}
	if _, err := r.Write(ended, index.Batch{Rows: plain(100)}); appliance.CodeOf(err) != appliance.CodeTimeout {
		t.Errorf("Write: %v", err)
	}
}

// argument returns a value of a parameter's type that every method accepts.
func argument(t *testing.T, of reflect.Type) reflect.Value {
	switch {
	case of == reflect.TypeFor[*index.Type]():
		return reflect.ValueOf(index.PacketType)
	case of.Kind() == reflect.Int:
		return reflect.ValueOf(10)
	case of.Kind() == reflect.Func:
		return reflect.MakeFunc(of, func([]reflect.Value) []reflect.Value {
			t.Error("yield was called")
			return []reflect.Value{reflect.Zero(reflect.TypeFor[error]())}
		})
	}
	return reflect.Zero(of)
}

const manyRows = 40 * askEvery

// readsOverAll are the reads that loop over rows or keys.
var readsOverAll = map[string]func(ctx context.Context, s index.Snapshot) error{
	"a filter that few rows pass": func(ctx context.Context, s index.Snapshot) error {
		_, err := s.Packets(ctx,
			index.PacketQuery{Exceeding: index.ExceedingAll, Page: index.Page{Limit: new(int32(1))}})
		return err
	},
	"filters that no row passes together": func(ctx context.Context, s index.Snapshot) error {
		_, err := s.Transfers(ctx, index.TransferQuery{Addresses: []string{"0xeven"}, DestinationChain: "odd.1"})
		return err
	},
	"addresses that no row has with the route": func(ctx context.Context, s index.Snapshot) error {
		_, err := s.Transfers(ctx,
			index.TransferQuery{Addresses: []string{"0xeven", "0xnobody"}, DestinationChain: "odd.1"})
		return err
	},
	"all transfers of a block": func(ctx context.Context, s index.Snapshot) error {
		_, err := s.Transfers(ctx, index.TransferQuery{BlockHash: "0xb10c"})
		return err
	},
	"tokens": func(ctx context.Context, s index.Snapshot) error {
		_, err := s.Tokens(ctx, index.TokenQuery{Denom: "0xnone"})
		return err
	},
	"chains": func(ctx context.Context, s index.Snapshot) error {
		_, err := s.Chains(ctx, index.ChainQuery{Chain: "none"})
		return err
	},
	"days": func(ctx context.Context, s index.Snapshot) error {
		_, err := s.TransfersDaily(ctx, index.DayQuery{})
		return err
	},
	"days by chain": func(ctx context.Context, s index.Snapshot) error {
		_, err := s.TransfersByChain(ctx, index.DayQuery{})
		return err
	},
	"health": func(ctx context.Context, s index.Snapshot) error {
		_, err := s.Health(ctx)
		return err
	},
	"each transfer": func(ctx context.Context, s index.Snapshot) error {
		return s.Each(ctx, index.TransferType, func(index.Row) error { return nil })
	},
	"each chain": func(ctx context.Context, s index.Snapshot) error {
		return s.Each(ctx, index.ChainType, func(index.Row) error { return nil })
	},
	"unfinished packets": func(ctx context.Context, s index.Snapshot) error {
		return s.Unfinished(ctx, index.Row{}, func(index.Row) error { return nil })
	},
	"a sample of all": func(ctx context.Context, s index.Snapshot) error {
		_, err := s.Sample(ctx, index.TransferType, manyRows/2)
		return err
	},
}

// A loop over rows or keys checks its context at each askEvery of them, and stops at the first check after the
// context's end.
func TestALongReadEndsWithItsContext(t *testing.T) {
	t.Parallel()
	r := longReads(t, manyRows)
	for name, read := range readsOverAll {
		t.Run(name, func(t *testing.T) {
			reading := func(ctx *askedContext) error {
				return r.View(t.Context(), func(s index.Snapshot) error { return read(ctx, s) })
			}
			whole := &askedContext{Context: t.Context()}
			if err := reading(whole); err != nil || whole.asked < 20 {
				t.Fatalf("asked %d times over %d rows: %v", whole.asked, manyRows, err)
			}
			cut := &askedContext{Context: t.Context(), endAt: 10}
			if err := reading(cut); appliance.CodeOf(err) != appliance.CodeTimeout || cut.asked > cut.endAt+2 {
				t.Errorf("asked %d times after an end at %d: %v", cut.asked, cut.endAt, err)
			}
		})
	}
}

// askedContext ends after its error was requested n times; never if n is 0.
type askedContext struct {
	context.Context
	asked, endAt int
}

func (c *askedContext) Err() error {
	if c.asked++; c.endAt > 0 && c.asked >= c.endAt {
		return context.Canceled
	}
	return nil
}

// longReads returns a store with n transfers, packets, chains, tokens and days. Every second transfer comes from
// 0xeven, the others go to odd.1.
func longReads(t *testing.T, n int) *Store {
	t.Helper()
	r := newReplica(t)
	var batch index.Batch
	add := func(value any) {
		row, err := index.NewRow(value)
		if err != nil {
			t.Fatal(err)
		}
		batch.Rows = append(batch.Rows, row)
	}
	now := r.now()
	for i := range n {
		hash, sender, destination := fmt.Sprintf("0x%064x", i), "0xeven", "even.1"
		if i%2 == 1 {
			sender, destination = "0xodd", "odd.1"
		}
		order := fmt.Sprintf("%08d", i)
		add(index.Transfer{
			SortOrder: order, PacketHash: hash, SourceUniversalChainID: "a.1", DestUniversalChainID: destination,
			SenderCanonical: &sender, ReceiverCanonical: new("0xff"), SendTimestamp: new(now.AddDate(0, 0, -i)),
		})
		add(index.Packet{
			SortOrder: order, PacketHash: hash, SourceUniversalChainID: "a.1", DestUniversalChainID: destination,
			SendBlockHash: new("0xb10c"), SendTimestamp: new(now.Add(time.Minute)), // not late yet
		})
		add(index.Chain{UniversalChainID: fmt.Sprintf("chain-%d.1", i)})
		add(index.Token{UniversalChainID: "a.1", Denom: fmt.Sprintf("0x%x", i)})
	}
	if _, err := r.Write(t.Context(), batch); err != nil {
		t.Fatal(err)
	}
	return r
}
