package chain_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/crypto"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/chain"
	"github.com/attestd/attestd/appliance/chain/chaintest"
)

type answer = func(chaintest.Request) *chaintest.Reply

// times replies to the first n requests. Later requests reach the node.
func times(n int64, reply *chaintest.Reply) answer {
	var done atomic.Int64
	return func(chaintest.Request) *chaintest.Reply {
		if done.Add(1) > n {
			return nil
		}
		return reply
	}
}

// events applies an answer to eth_getLogs only.
func events(of answer) answer {
	return func(q chaintest.Request) *chaintest.Reply {
		if q.Method != "eth_getLogs" {
			return nil
		}
		return of(q)
	}
}

var topicAttested = crypto.Keccak256Hash([]byte("Attested(bytes32,uint256)")).Hex()

// After any temporary fault of an RPC, the redemptions are found, and none is invented.
func TestFaultsOfAnRPCHideNothing(t *testing.T) {
	t.Parallel()
	node, key := attesting(t)
	ours, stolen := key.attest(t), key.attest(t)
	node.Mine(20)
	node.Redeem(t, ours, 1)
	_, block := node.Redeem(t, stolen, 2)
	tooMany := func(most uint64, reply *chaintest.Reply) answer {
		return events(func(q chaintest.Request) *chaintest.Reply {
			if from, to, ok := q.Blocks(); ok && to-from >= most {
				return reply
			}
			return nil
		})
	}
	for name, of := range map[string]answer{
		"429": times(3, &chaintest.Reply{Status: http.StatusTooManyRequests}),
		"503 with Retry-After": times(1,
			&chaintest.Reply{Status: http.StatusServiceUnavailable, RetryAfter: "1"}),
		"500":                        times(4, &chaintest.Reply{Status: http.StatusInternalServerError}),
		"a page of HTML":             times(3, &chaintest.Reply{Raw: []byte("<html>busy</html>")}),
		"an empty body":              times(3, &chaintest.Reply{Raw: []byte{}}),
		"no answer, a hang":          times(2, &chaintest.Reply{Hang: true}),
		"no block":                   times(6, &chaintest.Reply{Result: []byte("null")}),
		"a block of nothing":         times(6, &chaintest.Reply{Result: []byte("{}")}),
		"a rate by JSON-RPC":         times(8, &chaintest.Reply{Error: "daily request count exceeded"}),
		"ranges of 3 blocks at most": tooMany(3, &chaintest.Reply{Error: "query returned more than 10000 results"}),
		"one block at most, by 400":  tooMany(1, &chaintest.Reply{Status: http.StatusBadRequest}),
		"two blocks at most, by 413": tooMany(2, &chaintest.Reply{Status: http.StatusRequestEntityTooLarge}),
		"many blocks hang":           tooMany(4, &chaintest.Reply{Hang: true}),
		"an answer without an end": events(
			times(2, &chaintest.Reply{Raw: slices.Concat([]byte(`{"x":"`), make([]byte, 17<<20))})),
		"events of others": events(
			times(2,
				&chaintest.Reply{Result: []byte(
					`[{"address":"0x00000000000000000000000000000000000000ff","topics":["0x01"],"data":"0x","blockNumber":"0x2","transactionHash":"0x` + strings.Repeat("00", 32) + `","logIndex":"0x0"}]`)})),
		"an event of another contract":  events(withAnother(2, func(l *types.Log) { l.Address[0]++ })),
		"an event of a later block":     events(withAnother(2, func(l *types.Log) { l.BlockNumber += 1000 })),
		"an event with data":            events(withAnother(2, func(l *types.Log) { l.Data = []byte{1} })),
		"empty for the last block":      events(emptyRanges(3)),
		"cut short at a thousand":       events(cutShort),
		"Redeemed without its Attested": events(withoutAttested(3)),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			proxy := chaintest.NewProxy(t, node.URL)
			proxy.Answer(of)
			r := newRig(t, chain.Contract{RPCs: []string{proxy.URL}})
			if strings.Contains(name, "hang") {
				r.options.CallTimeout = 2 * time.Second // other calls must not take this long
			}
			r.journal.append(ours)
			r.start()
			r.read(block)
			if s := r.status(); s.Redemptions != 2 || s.Unknown != 1 || !r.halted() {
				t.Errorf("%+v", s)
			}
			r.eventually("it is well again", func() bool { return r.status().RPCs[0].Error == "" })
		})
	}
}

// withAnother adds to the first n answers with a redemption another one, changed.
func withAnother(n int64, change func(*types.Log)) answer {
	count := times(n, &chaintest.Reply{})
	return func(q chaintest.Request) *chaintest.Reply {
		var logs []types.Log
		_ = json.Unmarshal(q.Pass(), &logs)
		i := slices.IndexFunc(logs, func(l types.Log) bool { return l.Topics[0] == common.HexToHash(topicAttested) })
		if i < 0 || count(q) == nil {
			return nil
		}
		another := logs[i]
		another.Index += 100
		change(&another)
		result, _ := json.Marshal(append(logs, another))
		return &chaintest.Reply{Result: result}
	}
}

// emptyRanges returns an empty list for the first n ranges, like a node that lags behind the one that reported the
// head.
func emptyRanges(n int64) answer {
	count := times(n, &chaintest.Reply{Result: []byte("[]")})
	return func(q chaintest.Request) *chaintest.Reply {
		if _, _, isRange := q.Blocks(); !isRange {
			return nil
		}
		return count(q)
	}
}

// cutShort truncates the answer for several blocks to a thousand events.
func cutShort(q chaintest.Request) *chaintest.Reply {
	from, to, isRange := q.Blocks()
	var logs []json.RawMessage
	if !isRange || from == to || json.Unmarshal(q.Pass(), &logs) != nil || len(logs) == 0 {
		return nil
	}
	result, _ := json.Marshal(slices.Repeat(logs[:1], 1000))
	return &chaintest.Reply{Result: result}
}

func withoutAttested(n int64) answer {
	count := times(n, &chaintest.Reply{})
	return func(q chaintest.Request) *chaintest.Reply {
		if count(q) == nil {
			return nil
		}
		var logs []map[string]any
		_ = json.Unmarshal(q.Pass(), &logs)
		logs = slices.DeleteFunc(logs, func(l map[string]any) bool { return l["topics"].([]any)[0] == topicAttested })
		result, _ := json.Marshal(logs)
		return &chaintest.Reply{Result: result}
	}
}

func TestARangeGrowsAgain(t *testing.T) {
	t.Parallel()
	node, _ := attesting(t)
	node.Mine(400)
	proxy := chaintest.NewProxy(t, node.URL)
	var refusing atomic.Bool
	refusing.Store(true)
	var mu sync.Mutex
	var sizes []uint64
	proxy.Answer(events(func(q chaintest.Request) *chaintest.Reply {
		from, to, _ := q.Blocks()
		size := to - from + 1
		if refusing.Load() && size > 2 {
			return &chaintest.Reply{Error: "block range is too wide"}
		}
		refusing.Store(false)
		mu.Lock()
		defer mu.Unlock()
		sizes = append(sizes, size)
		return nil
	}))
	r := newRig(t, chain.Contract{RPCs: []string{proxy.URL}})
	r.start()
	r.read(node.Head(t))
	mu.Lock()
	defer mu.Unlock()
	if sizes[0] > 2 || slices.Max(sizes) < 32 {
		t.Errorf("sizes of ranges: %v", sizes)
	}
}

// Two or three RPCs, some of which lie.
func TestRPCsThatDisagree(t *testing.T) {
	t.Parallel()
	node, key := attesting(t)
	redeemed := key.attest(t)
	_, block := node.Redeem(t, redeemed, 1)
	node.Mine(1) // the last block is empty, so it cannot expose the liar
	hide := events(func(q chaintest.Request) *chaintest.Reply { return &chaintest.Reply{Result: []byte("[]")} })
	for name, c := range map[string]struct {
		lies     []bool // whether each RPC hides the redemption
		ours     bool   // the journal has it
		halt     bool
		unknown  int64
		disputed int64
	}{
		"one of two hides a redemption":       {lies: []bool{true, false}, unknown: 1, disputed: 1},
		"one of three hides it":               {lies: []bool{false, true, false}, halt: true, unknown: 1},
		"one of three makes one up":           {lies: []bool{true, false, true}, unknown: 1, disputed: 1},
		"one of two hides one that is ours":   {lies: []bool{true, false}, ours: true},
		"one of three hides one that is ours": {lies: []bool{true, false, false}, ours: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var urls []string
			for _, lies := range c.lies {
				p := chaintest.NewProxy(t, node.URL)
				if lies {
					p.Answer(hide)
				}
				urls = append(urls, p.URL)
			}
			r := newRig(t, chain.Contract{RPCs: urls})
			if c.ours {
				r.journal.append(redeemed)
			}
			r.start()
			r.eventually("all have read it", func() bool {
				return !slices.ContainsFunc(r.status().RPCs, func(one chain.RPCStatus) bool {
					return one.Block <= block
				})
			})
			r.stop()
			r.options.Patience = time.Millisecond // and now it has passed
			r.start()
			r.eventually("the disagreement is told", func() bool {
				return len(r.logged("level=ERROR", "disagree on a redemption", redeemed.Hash.String())) == 1 &&
					r.recorded(chain.EventDisagreement) == 1
			})
			r.eventually(fmt.Sprintf("halted %t, %d unknown, %d disputed", c.halt, c.unknown, c.disputed), func() bool {
				s := r.status()
				return s.Unknown == c.unknown && s.Disputed == c.disputed && r.halted() == c.halt
			})
			if r.Metrics().Disagreements != 1 {
				t.Errorf("%d disagreements", r.Metrics().Disagreements)
			}
		})
	}
}

func TestAnRPCThatIsAwayHidesNothing(t *testing.T) {
	t.Parallel()
	node, key := attesting(t)
	away := chaintest.NewProxy(t, node.URL)
	away.Answer(func(chaintest.Request) *chaintest.Reply { return &chaintest.Reply{Status: http.StatusBadGateway} })
	r := newRig(t, chain.Contract{RPCs: []string{away.URL, node.URL}})
	r.options.Patience = 50 * time.Millisecond
	node.Redeem(t, key.attest(t), 1)
	r.start()
	r.eventually("what the other tells is disputed, after some patience", func() bool {
		return r.status().Disputed == 1
	})
	if len(r.logged("level=ERROR", "some of the RPCs report a redemption that the journal does not have")) != 1 {
		t.Error("the dispute is no ERROR")
	}
	if r.halted() {
		t.Error("one RPC of two halts attesting")
	}
	if s := r.status(); s.Block != 0 || s.RPCs[0].Error == "" {
		t.Errorf("most RPCs were not read, and the status says otherwise: %+v", s)
	}
	if r.recorded(chain.EventDisagreement) > 0 {
		t.Error("who is away does not disagree")
	}
	away.Answer(nil)
	r.eventually("both tell of it", r.halted)
}

// Two of three RPCs suffice for an alarm, although the third cannot be asked.
func TestTwoRPCsOfThreeAreEnoughWhileTheThirdIsAway(t *testing.T) {
	t.Parallel()
	node, key := attesting(t)
	away := chaintest.NewProxy(t, node.URL)
	away.Answer(func(chaintest.Request) *chaintest.Reply { return &chaintest.Reply{Status: http.StatusBadGateway} })
	node.Redeem(t, key.attest(t), 1)
	r := newRig(t, chain.Contract{RPCs: []string{node.URL, away.URL, node.URL + "/"}})
	r.start()
	r.eventually("attesting is halted", r.halted)
	r.eventually("the redemption is unknown", func() bool { s := r.status(); return s.Unknown == 1 && s.Disputed == 0 })
}

func TestAnRPCThatIsBehindIsWaitedFor(t *testing.T) {
	t.Parallel()
	node, key := attesting(t)
	_, block := node.Redeem(t, key.attest(t), 1)
	r := newRig(t, chain.Contract{RPCs: []string{node.URL}})
	proxy := chaintest.NewProxy(t, node.URL)
	r.options.Contracts[0].RPCs = []string{proxy.URL}
	r.start()
	r.read(block)
	old, _ := json.Marshal(fmt.Sprintf("0x%x", block-1))
	proxy.Answer(func(q chaintest.Request) *chaintest.Reply { // another node behind the same address lags
		if q.Method != "eth_getBlockByNumber" || string(q.Params[0]) != `"latest"` {
			return nil
		}
		q.Params[0] = old
		return &chaintest.Reply{Result: proxy.Get(q)}
	})
	asked := len(proxy.Asked())
	r.eventually("it was asked some more", func() bool { return len(proxy.Asked()) > asked+10 })
	if s := r.status(); s.Redemptions != 1 || s.Block != block {
		t.Errorf("what was read is undone: %+v", s)
	}
}

func TestContradictionsAreErrors(t *testing.T) {
	t.Parallel()
	t.Run("there is no contract", func(t *testing.T) {
		t.Parallel()
		node := chaintest.New(t)
		r := newRig(t, chain.Contract{RPCs: []string{node.URL}, Address: appliance.Address{0x12}})
		r.start()
		r.eventually("it is told", func() bool {
			return len(r.logged("level=ERROR", "no contract exists", "remedy=")) == 1
		})
		if s := r.status(); s.Block != 0 || !strings.Contains(s.RPCs[0].Error, "no contract") {
			t.Errorf("%+v", s)
		}
	})
	t.Run("another chain", func(t *testing.T) {
		t.Parallel()
		node, key := attesting(t)
		proxy := chaintest.NewProxy(t, node.URL)
		r := newRig(t, chain.Contract{RPCs: []string{proxy.URL}})
		_, block := node.Redeem(t, key.attest(t), 1)
		r.start()
		r.read(block)
		proxy.Answer(func(q chaintest.Request) *chaintest.Reply {
			if q.Method != "eth_chainId" {
				return nil
			}
			return &chaintest.Reply{Result: []byte(`"0x89"`)}
		})
		r.eventually("it is told", func() bool { return len(r.logged("level=ERROR", "chain 137", "remedy=")) == 1 })
		if s := r.status(); s.Redemptions != 1 {
			t.Errorf("what was read of the right chain is undone: %+v", s)
		}
	})
}

func TestURLsAreShownWithoutSecrets(t *testing.T) {
	t.Parallel()
	r := newRig(t, chain.Contract{RPCs: []string{"http://127.0.0.1:1/v3/s3cr3t?key=s3cr3t"}})
	r.start()
	r.eventually("the RPC fails", func() bool { return r.status().RPCs[0].Error != "" })
	if s := r.status(); s.RPCs[0].URL != "http://127.0.0.1:1" ||
		strings.Contains(fmt.Sprintf("%+v", s)+r.text(), "s3cr3t") {
		t.Errorf("%+v\n%s", s, r.text())
	}
}

func TestCheckURL(t *testing.T) {
	t.Parallel()
	for address, good := range map[string]bool{
		"https://rpc.example.com/v3/key": true, "http://127.0.0.1:8545": true, "http://localhost:8545": true,
		"http://[::1]:8545":      true,
		"http://rpc.example.com": false, "http://10.0.0.1:8545": false, "wss://rpc.example.com": false,
		"rpc.example.com": false, "": false, "https://": false, "http://127.0.0.1:x": false,
	} {
		if err := chain.CheckURL(address); (err == nil) != good {
			t.Errorf("%q: %v", address, err)
		}
	}
}
