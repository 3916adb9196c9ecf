package redemptions_test

import (
	"testing"
	"time"

	"github.com/attestd/attestd/appliance/chain"
)

func TestWhatOneRPCAloneReportsIsCounted(t *testing.T) {
	t.Parallel()
	s := open(t)
	alone := func(step string, ofOne, ofOther int64) {
		t.Helper()
		for rpc, want := range map[string]int64{one: ofOne, other: ofOther} {
			if n, err := s.Alone(name, rpc); err != nil || n != want {
				t.Errorf("%s: %d of %s, %v, want %d", step, n, rpc, err, want)
			}
		}
	}
	advance(t, s, one, 10, redeemed(3, 1), redeemed(9, 2))
	alone("one reports two", 2, 0)
	advance(t, s, one, 10, redeemed(3, 1))
	alone("and one of them again", 2, 0)
	advance(t, s, other, 8, redeemed(3, 1), redeemed(4, 3))
	alone("the other has one of them, and one more", 1, 1)
	to := block(3)
	if _, err := s.Rewind(name, one, &to); err != nil {
		t.Fatal(err)
	}
	alone("one takes its second back", 0, 1)
	if _, err := s.Rewind(name, one, nil); err != nil {
		t.Fatal(err)
	}
	alone("and its first", 0, 2)
	begin(t, s, address, one)
	alone("the other is forgotten", 0, 0)
}

// Two RPCs that disagree on a block's time report two redemptions.
func TestTheTimeIsPartOfARedemption(t *testing.T) {
	t.Parallel()
	s := open(t)
	lie := redeemed(3, 1)
	lie.Time = lie.Time.Add(-time.Hour)
	seen := time.Unix(1_800_000_000, 500).UTC()
	lie.Seen = seen
	advance(t, s, one, 5, lie)
	advance(t, s, other, 5, redeemed(3, 1))
	open, err := s.Open(name)
	if err != nil || len(open) != 2 || len(open[0].Reports) != 1 {
		t.Fatalf("%+v, %v", open, err)
	}
	again := lie
	again.Seen = seen.Add(time.Hour)
	advance(t, s, other, 5, again)
	halted := lie
	halted.Judgement = chain.Judgement{Verdict: chain.Unknown, Reports: []string{one, other}, Open: true, Halted: true}
	if err := s.SetVerdicts(name, []chain.Redemption{halted}); err != nil {
		t.Fatal(err)
	}
	err = s.Each(func(r chain.Redemption) error {
		if r.Time.Equal(lie.Time) && (!r.Seen.Equal(seen) || !r.Halted) {
			t.Errorf("when it was first seen, or that it halted, is not kept: %+v", r)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
