package redemptions_test

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/chain"
	"github.com/attestd/attestd/store/redemptions"
)

const name, one, other = "usdc", "rpc one", "rpc other"

var address = appliance.Address{0xaa}

// open opens a store with a contract that both RPCs read.
func open(t *testing.T) *redemptions.Store {
	t.Helper()
	s, err := redemptions.Open(filepath.Join(t.TempDir(), "chain.db"), 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	begin(t, s, address, one, other)
	return s
}

func begin(t *testing.T, s *redemptions.Store, address appliance.Address, rpcs ...string) (chainID string) {
	t.Helper()
	id, err := s.Begin(name, address, rpcs)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func block(n uint64) chain.Block {
	return chain.Block{Number: n, Hash: appliance.Digest{byte(n)}, Time: time.Unix(int64(n), 0).UTC()}
}

// redeemed returns the redemption of hash h in block n.
func redeemed(n uint64, h byte) chain.Redemption {
	return chain.Redemption{Contract: name, Hash: appliance.Digest{h}, Amount: chain.Amount{31: h}, Block: n,
		BlockHash: block(n).Hash, TransactionHash: appliance.Digest{h, h}, Time: block(n).Time}
}

func advance(t *testing.T, s *redemptions.Store, rpc string, to uint64, found ...chain.Redemption) {
	t.Helper()
	if err := s.Advance(name, rpc, block(to), found); err != nil {
		t.Fatal(err)
	}
}

// hashes returns the first byte of the hash of each redemption, in order.
func hashes(t *testing.T, s *redemptions.Store) (all []byte) {
	t.Helper()
	err := s.Each(func(r chain.Redemption) error { all = append(all, r.Hash[0]); return nil })
	if err != nil {
		t.Fatal(err)
	}
	if n, err := s.Count(name); err != nil || n != int64(len(all)) {
		t.Fatalf("%d are counted, %d listed, %v", n, len(all), err)
	}
	return all
}

func TestWhatRPCsReportIsKeptUntilAllTakeItBack(t *testing.T) {
	t.Parallel()
	s := open(t)
	advance(t, s, one, 10, redeemed(3, 1), redeemed(9, 2))
	advance(t, s, other, 8, redeemed(3, 1))
	if got := hashes(t, s); !slices.Equal(got, []byte{1, 2}) {
		t.Fatalf("%v", got)
	}
	to := block(2)
	undone, err := s.Rewind(name, one, &to)
	if err != nil || len(undone) != 1 || undone[0].Hash[0] != 2 {
		t.Fatalf("undone: %v, %v", undone, err)
	}
	if got := hashes(t, s); !slices.Equal(got, []byte{1}) {
		t.Errorf("what another RPC still tells is gone: %v", got)
	}
	if at, found, err := s.Position(name, one); err != nil || !found || at != to {
		t.Errorf("position %v, %t, %v", at, found, err)
	}
	if undone, err := s.Rewind(name, other, nil); err != nil || len(undone) != 1 || len(hashes(t, s)) != 0 {
		t.Errorf("undone: %v, %v", undone, err)
	}
	if _, found, _ := s.Position(name, other); found {
		t.Error("there is a position after all was taken back")
	}
	if found, err := s.ByHash(appliance.Digest{1}); err != nil || len(found) != 0 {
		t.Errorf("by hash: %v, %v", found, err)
	}
}

func TestALieStandsBesideTheTruth(t *testing.T) {
	t.Parallel()
	s := open(t)
	lie, truth := redeemed(3, 1), redeemed(3, 2) // the same event of the same block
	advance(t, s, one, 5, lie)
	advance(t, s, other, 5, truth)
	if got := hashes(t, s); len(got) != 2 {
		t.Errorf("%v", got)
	}
	advance(t, s, one, 5, lie) // reported a second time
	if got := hashes(t, s); len(got) != 2 {
		t.Errorf("%v", got)
	}
}

func TestAnchors(t *testing.T) {
	t.Parallel()
	s := open(t)
	for _, n := range []uint64{10, 20, 30} {
		advance(t, s, one, n)
		advance(t, s, other, n+1)
	}
	for most, want := range map[uint64]uint64{9: 0, 10: 10, 19: 10, 29: 20, 30: 30, 1 << 40: 30} {
		at, found, err := s.Anchor(name, one, most)
		if err != nil || at.Number != want || found != (want > 0) {
			t.Errorf("up to %d: %v, %t, %v, want %d", most, at.Number, found, err, want)
		}
	}
	to := block(20)
	if _, err := s.Rewind(name, one, &to); err != nil {
		t.Fatal(err)
	}
	if at, _, _ := s.Anchor(name, one, 100); at.Number != 20 {
		t.Errorf("block %d is left above the one that was rewound to", at.Number)
	}
	if at, _, _ := s.Anchor(name, other, 100); at.Number != 31 {
		t.Errorf("the other RPC was rewound, too: %d", at.Number)
	}
}

func TestVerdictsAreKept(t *testing.T) {
	t.Parallel()
	s := open(t)
	advance(t, s, one, 5, redeemed(3, 1), redeemed(4, 2))
	open, err := s.Open(name)
	if err != nil || len(open) != 2 || !slices.Equal(open[0].Reports, []string{one}) {
		t.Fatalf("open: %+v, %v", open, err)
	}
	id := uuid.New()
	known := open[0]
	known.AttestationID, known.KeyID, known.Verdict, known.Open = &id, "payments", chain.Known, false
	stale := open[1]
	stale.Verdict = chain.Disputed
	advance(t, s, other, 5, redeemed(4, 2)) // between the read and the verdict
	if err := s.SetVerdicts(name, []chain.Redemption{known, stale, redeemed(99, 9)}); err != nil {
		t.Fatal(err)
	}
	found, err := s.ByHash(known.Hash)
	if err != nil || len(found) != 1 || *found[0].AttestationID != id || found[0].KeyID != "payments" ||
		found[0].Verdict != chain.Known {
		t.Errorf("%+v, %v", found, err)
	}
	if open, _ = s.Open(name); len(open) != 1 || open[0].Verdict != "" || len(open[0].Reports) != 2 {
		t.Errorf("a verdict without what was told meanwhile is kept: %+v", open)
	}
}

func TestBegin(t *testing.T) {
	t.Parallel()
	s := open(t)
	if err := s.SetChain(name, "137"); err != nil {
		t.Fatal(err)
	}
	advance(t, s, one, 5, redeemed(3, 1))
	advance(t, s, other, 5, redeemed(3, 1), redeemed(4, 2))
	if id := begin(t, s, address, one, other); id != "137" || len(hashes(t, s)) != 2 {
		t.Errorf("chain %q, %v", id, hashes(t, s))
	}
	if begin(t, s, address, one); !slices.Equal(hashes(t, s), []byte{1}) {
		t.Errorf("what only a forgotten RPC has told is still there: %v", hashes(t, s))
	}
	if id := begin(t, s, appliance.Address{0xbb}, one); id != "" || len(hashes(t, s)) != 0 {
		t.Errorf("what is of another address is still there: %q, %v", id, hashes(t, s))
	}
	if found, err := s.ByHash(appliance.Digest{1}); err != nil || len(found) != 0 {
		t.Errorf("by hash: %v, %v", found, err)
	}
}

func TestRoomIsLeftForTheJournal(t *testing.T) {
	t.Parallel()
	s, err := redemptions.Open(filepath.Join(t.TempDir(), "chain.db"), math.MaxInt64)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	begin(t, s, address, one)
	if err := s.Advance(name, one, block(5), []chain.Redemption{redeemed(3, 1)}); err == nil || len(hashes(t, s)) != 0 {
		t.Errorf("what an RPC tells takes the journal's room: %v", err)
	}
}

func TestFiles(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "chain.db")
	if _, err := redemptions.Read(path); err == nil {
		t.Error("a file that is not there was read")
	}
	if err := os.WriteFile(path, make([]byte, 100_000), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := redemptions.Open(path, 0); !errors.Is(err, redemptions.ErrDamaged) {
		t.Errorf("a file of zeros: %v", err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	s, err := redemptions.Open(path, 0)
	if err != nil {
		t.Fatal(err)
	}
	begin(t, s, address, one)
	advance(t, s, one, 5, redeemed(3, 1))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if stat, err := os.Stat(path); err != nil || stat.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", stat.Mode(), err)
	}
	if s, err = redemptions.Read(path); err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if got := hashes(t, s); !slices.Equal(got, []byte{1}) {
		t.Errorf("%v", got)
	}
}
