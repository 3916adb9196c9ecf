package chain_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/core/types"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/chain"
	"github.com/attestd/attestd/appliance/chain/chaintest"
	"github.com/attestd/attestd/appliance/journal"
)

// invented returns the n-th invented Attested event of a block.
func invented(block uint64, n int) types.Log {
	topic := func(parts ...uint64) common.Hash {
		return common.BytesToHash(fmt.Appendf(nil, "%08d%08d", parts[0], parts[1]))
	}
	return types.Log{
		Address: common.Address(chaintest.Contract),
		Topics:  []common.Hash{common.HexToHash(topicAttested), topic(block, uint64(n)), common.HexToHash("0x01")},
		Data:    []byte{}, BlockNumber: block, BlockHash: topic(block, 1<<20), TxHash: topic(block, uint64(n)),
		Index: uint(n), BlockTimestamp: uint64(time.Now().Unix()),
	}
}

// inventing answers eth_getLogs with each invented events for each of the blocks first to last.
func inventing(first, last uint64, each int) answer {
	return events(func(q chaintest.Request) *chaintest.Reply {
		from, to, isRange := q.Blocks()
		logs := []types.Log{}
		for block := max(from, first); isRange && block <= min(to, last); block++ {
			for n := range each {
				logs = append(logs, invented(block, n))
			}
		}
		result, _ := json.Marshal(logs)
		return &chaintest.Reply{Result: result}
	})
}

// ahead reports a head that the node has not reached, and invents the blocks up to it.
func ahead(proxy *chaintest.Proxy, head uint64, of answer) answer {
	return func(q chaintest.Request) *chaintest.Reply {
		if q.Method != "eth_getBlockByNumber" {
			return of(q)
		}
		number, tag := head, ""
		if _ = json.Unmarshal(q.Params[0], &tag); tag != "latest" {
			number, _ = hexutil.DecodeUint64(tag)
		}
		genuine := q
		genuine.Params = []json.RawMessage{[]byte(`"0x0"`), []byte("false")}
		var block map[string]any
		_ = json.Unmarshal(proxy.Get(genuine), &block)
		block["number"], block["hash"] = hexutil.EncodeUint64(number), common.BytesToHash(fmt.Append(nil, number))
		result, _ := json.Marshal(block)
		return &chaintest.Reply{Result: result}
	}
}

// askedAgain waits until an RPC was asked for its head the given number of times more.
func (r *rig) askedAgain(proxy *chaintest.Proxy, times int) {
	r.t.Helper()
	count := func() (n int) {
		for _, q := range proxy.Asked() {
			if q.Method == "eth_getBlockByNumber" && string(q.Params[0]) == `"latest"` {
				n++
			}
		}
		return n
	}
	before := count()
	r.eventually("it is asked again", func() bool { return count() >= before+times })
}

// One of three RPCs reports a redemption in a block that the others cannot deny, because they have not reached or not
// read it yet.
func TestOneRPCOfThreeDoesNotHaltAttesting(t *testing.T) {
	t.Parallel()
	node, _ := attesting(t)
	node.Mine(5)
	head := node.Head(t)
	t.Run("above the heads of the others", func(t *testing.T) {
		t.Parallel()
		liar := chaintest.NewProxy(t, node.URL)
		const far = 1 << 40
		liar.Answer(ahead(liar, far, inventing(head+1, far, 1)))
		r := newRig(t, chain.Contract{RPCs: []string{liar.URL, node.URL, node.URL + "/"}})
		r.options.Patience = 50 * time.Millisecond
		r.start()
		r.read(head)
		r.askedAgain(liar, 50)
		if s := r.status(); s.Redemptions != 0 || s.RPCs[0].Head != far || s.RPCs[0].Block > head || r.halted() {
			t.Errorf("halted %t, %+v", r.halted(), s)
		}
	})
	t.Run("in a block that the others have not read", func(t *testing.T) {
		t.Parallel()
		liar, slow, slower := chaintest.NewProxy(t, node.URL), chaintest.NewProxy(t, node.URL),
			chaintest.NewProxy(t, node.URL)
		liar.Answer(inventing(head, head, 1))
		for _, p := range []*chaintest.Proxy{slow, slower} {
			p.Answer(events(func(chaintest.Request) *chaintest.Reply { return &chaintest.Reply{Hang: true} }))
		}
		r := newRig(t, chain.Contract{RPCs: []string{liar.URL, slow.URL, slower.URL}})
		r.options.Patience = 50 * time.Millisecond
		r.start()
		r.eventually("it is disputed", func() bool { return r.status().Disputed == 1 })
		if s := r.status(); s.Unknown != 1 || r.halted() || r.recorded(chain.EventUnknownRedemption) != 0 {
			t.Errorf("halted %t, %+v", r.halted(), s)
		}
	})
}

// 1,600 invented redemptions cause neither a long log nor many queries of the journal.
func TestMadeUpRedemptionsAreCheap(t *testing.T) {
	t.Parallel()
	const blocks, each = 16, 100
	node, key := attesting(t)
	node.Mine(blocks)
	liar := chaintest.NewProxy(t, node.URL)
	liar.Answer(inventing(1, blocks, each))
	r := newRig(t, chain.Contract{RPCs: []string{node.URL, liar.URL, node.URL + "/"}})
	r.options.Patience, r.options.CheckEvery = time.Millisecond, time.Hour
	var asked atomic.Int64
	r.journal.asked = func(appliance.Digest) { asked.Add(1) }
	begun := time.Now()
	r.start()
	for deadline := time.Now().Add(10 * waitMost); r.Metrics().Disagreements < blocks*each &&
		time.Now().Before(deadline); {
		time.Sleep(10 * time.Millisecond) // polling interval
	}
	r.eventually("all are disputed", func() bool { return r.status().Disputed == blocks*each })
	minutes := int(time.Since(begun)/time.Minute) + 1
	if n, most := len(r.logged("level=ERROR")), 12*minutes; n > most {
		t.Errorf("%d lines of level ERROR, want %d at most", n, most)
	}
	if n, most := r.recorded(chain.EventDisagreement), 12*minutes; n > most {
		t.Errorf("%d events, want %d at most", n, most)
	}
	before := asked.Load()
	if before > 10*blocks*each {
		t.Errorf("the journal was asked %d times", before)
	}
	if r.halted() {
		t.Error("attesting is halted")
	}
	node.Redeem(t, key.attest(t), 1)
	r.eventually("another redemption is judged", r.halted)
	if n := asked.Load() - before; n > each {
		t.Errorf("the journal was asked %d times for one more redemption", n)
	}
}

func TestAnRPCThatMakesUpMoreIsReadNoFurther(t *testing.T) {
	t.Parallel()
	node, _ := attesting(t)
	node.Mine(3)
	liar := chaintest.NewProxy(t, node.URL)
	liar.Answer(inventing(1, 1<<40, 100))
	r := newRig(t, chain.Contract{RPCs: []string{node.URL, liar.URL, node.URL + "/"}})
	r.options.MostAlone = 50
	r.start()
	r.eventually("what it makes up is kept", func() bool { return r.status().Redemptions >= 50 })
	kept := r.status()
	node.Mine(3)
	r.eventually("its fault is told", func() bool {
		return strings.Contains(r.status().RPCs[1].Error, "are reported by this RPC only")
	})
	r.eventually("the others are read further", func() bool { return r.status().Block == node.Head(t) })
	r.askedAgain(liar, 1)
	if s := r.status(); s.Redemptions != kept.Redemptions || s.RPCs[1].Block != kept.RPCs[1].Block {
		t.Errorf("it is read further: %+v, before %+v", s, kept)
	}
}

// An honest RPC that is far ahead of the other one is read again once the other has caught up.
func TestAnRPCThatIsAheadWaitsForAnother(t *testing.T) {
	t.Parallel()
	node, key := attesting(t)
	for range 3 {
		node.Redeem(t, key.attest(t), 1)
	}
	away := chaintest.NewProxy(t, node.URL)
	away.Answer(func(chaintest.Request) *chaintest.Reply { return &chaintest.Reply{Status: http.StatusBadGateway} })
	r := newRig(t, chain.Contract{RPCs: []string{node.URL, away.URL}})
	r.options.MostAlone = 1
	r.start()
	r.eventually("its redemptions are kept", func() bool { return r.status().Redemptions == 3 })
	node.Redeem(t, key.attest(t), 1)
	r.eventually("it waits", func() bool {
		return strings.Contains(r.status().RPCs[0].Error, "are reported by this RPC only")
	})
	away.Answer(nil)
	r.eventually("all are read from both", func() bool { return r.status().Unknown == 4 && r.status().Disputed == 0 })
}

// ledger is a journal that honours the times of a query.
type ledger struct {
	mu      sync.Mutex
	records []appliance.Record
	asked   int
}

func (l *ledger) append(a appliance.Attestation, at time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.records = append(l.records, appliance.Record{Attestation: a, Time: at})
}

func (l *ledger) questions() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.asked
}

func (l *ledger) List(_ context.Context, q journal.Query) (found []journal.Entry, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asked++
	for _, r := range slices.Backward(l.records) {
		if e := (journal.Entry{Record: r}); q.Wants(e) && len(found) < q.Size() {
			found = append(found, e)
		}
	}
	return found, nil
}

// A thief cannot end the alarm about a stolen signature by getting the same addresses before its attestation.
func TestAnAlarmIsNotWipedByAttestingAfterwards(t *testing.T) {
	t.Parallel()
	node, key := attesting(t)
	journal := new(ledger)
	r := newRig(t, chain.Contract{RPCs: []string{node.URL}})
	r.options.Journal = journal
	stolen, ours := key.attest(t), key.attest(t)
	journal.append(ours, time.Now().Add(-time.Hour))
	node.Redeem(t, ours, 1)
	node.Redeem(t, stolen, 2)
	r.start()
	r.eventually("attesting is halted", r.halted)
	redeemed := r.all()[1]
	again := func(what string) {
		t.Helper()
		before := journal.questions()
		r.eventually("it is judged again "+what, func() bool { return journal.questions() > before+3 })
		if s := r.status(); s.Unknown != 1 || s.Redemptions != 2 {
			t.Errorf("%s: %+v", what, s)
		}
	}
	journal.append(stolen, time.Now())
	journal.append(ours, time.Now()) // attested again, which does not affect its redemption
	again("after it was attested")
	r.resume()
	r.stop()
	r.start()
	again("after a restart")
	if len(r.logged("level=ERROR", "before its attestation", stolen.Hash.String(), stolen.ID.String())) == 0 {
		t.Errorf("the late attestation is not named:\n%s", r.text())
	}
	r.stop()
	if err := os.Remove(r.path); err != nil { // it stores the time of the first report
		t.Fatal(err)
	}
	for i := range journal.records {
		if journal.records[i].Hash == stolen.Hash {
			journal.records[i].Time = redeemed.Time.Add(3 * time.Second)
		}
	}
	r.start()
	r.read(redeemed.Block)
	again("by the block's time alone")
}

// The deadline allows for block times in whole seconds and for clock differences.
func TestUntil(t *testing.T) {
	t.Parallel()
	block := time.Unix(1_800_000_000, 0)
	for name, c := range map[string]struct {
		attested, seen time.Duration // relative to the block
		late           bool
	}{
		"before the block":                     {attested: -time.Minute, seen: time.Minute},
		"in the block's second":                {attested: 900 * time.Millisecond, seen: time.Minute},
		"three seconds after":                  {attested: 3 * time.Second, seen: time.Minute, late: true},
		"after it was seen":                    {attested: 1500 * time.Millisecond, seen: time.Second, late: true},
		"after it was seen, of a block ahead":  {attested: -time.Second, seen: -2 * time.Second, late: true},
		"before it was seen, of a block ahead": {attested: -3 * time.Second, seen: -2 * time.Second},
	} {
		r := chain.Redemption{Time: block, Judgement: chain.Judgement{Seen: block.Add(c.seen)}}
		if late := !block.Add(c.attested).Before(r.Until()); late != c.late {
			t.Errorf("%s: late is %t", name, late)
		}
	}
}

// One of three RPCs reports our redemption with a time before its attestation, which would make it unknown.
func TestOneRPCsTimesDoNotDecide(t *testing.T) {
	t.Parallel()
	node, key := attesting(t)
	journal := new(ledger)
	ours := key.attest(t)
	journal.append(ours, time.Now().Add(-time.Hour))
	_, block := node.Redeem(t, ours, 1)
	liar := chaintest.NewProxy(t, node.URL)
	liar.Answer(events(func(q chaintest.Request) *chaintest.Reply {
		var logs []map[string]any
		_ = json.Unmarshal(q.Pass(), &logs)
		for _, l := range logs {
			l["blockTimestamp"] = "0x1"
		}
		result, _ := json.Marshal(logs)
		return &chaintest.Reply{Result: result}
	}))
	r := newRig(t, chain.Contract{RPCs: []string{liar.URL}})
	r.options.Journal = journal
	r.options.Patience = time.Millisecond
	r.options.Contracts[0].RPCs = []string{liar.URL, node.URL, node.URL + "/"}
	r.start()
	r.read(block)
	r.eventually("the lie is disputed", func() bool { return r.status().Disputed == 1 })
	r.eventually("the truth is known", func() bool {
		return slices.ContainsFunc(r.all(), func(one chain.Redemption) bool {
			return one.Verdict == chain.Known && len(one.Reports) == 2
		})
	})
	if r.halted() {
		t.Error("attesting is halted")
	}
}
