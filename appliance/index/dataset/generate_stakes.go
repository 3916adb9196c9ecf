package dataset

import (
	"encoding/json"
	"math/big"
	"slices"
	"strconv"
	"time"

	"github.com/ethereum/go-ethereum/crypto"

	"github.com/attestd/attestd/appliance/index"
	"github.com/attestd/attestd/appliance/index/zkgm"
)

// owed is a delivery that a proxy sends in the transaction that receives the packet of a stake.
type owed struct {
	at          time.Time
	tx          string
	route       *route
	instruction zkgm.Instruction
}

// stakesPerPacket: one in this many packets to the staking hub is a stake.
const stakesPerPacket = 6

// staked returns the staked token at the start of a route to the hub's chain; nil for other routes.
func (r *route) staked() *token {
	if r.to.family != "union" || r.hop != nil {
		return nil
	}
	for _, t := range r.from.tokens {
		if t.symbol == "eU" && t.home == r.from {
			return t
		}
	}
	return nil
}

// stake generates a bond, an unbond, a withdrawal or a dust withdrawal, as wallets send them.
func (g *generator) stake(r *route, staked *token) zkgm.Instruction {
	native := r.to.tokens[0]
	staker := g.account(r.from).zkgm
	proxy := r.to.accountOf(crypto.Keccak256([]byte("proxy"), staker)[:20])
	nativeHere, stakedThere := r.back.quote(native), r.quote(staked)
	amount, _ := g.amounts(native)
	// a staked token is worth more than one native token
	less := new(big.Int).Sub(amount, new(big.Int).Div(amount, big.NewInt(50)))
	bring := func(base, quote []byte) zkgm.Instruction {
		return (&zkgm.TokenOrderV2{
			Sender: staker, Receiver: proxy.zkgm, BaseToken: base, BaseAmount: amount, QuoteToken: quote,
			QuoteAmount: amount, Kind: zkgm.OrderSolve,
		}).Instruction()
	}
	deliver := func(base, quote []byte, amount *big.Int) msg {
		return g.sendMessage(r, &zkgm.TokenOrderV2{
			Sender: proxy.zkgm, Receiver: staker, BaseToken: base, BaseAmount: amount, QuoteToken: quote,
			QuoteAmount: amount, Kind: zkgm.OrderSolve,
		})
	}
	call := func(messages ...msg) zkgm.Instruction {
		return (&zkgm.Call{Sender: staker, ContractAddress: proxy.zkgm,
			ContractCalldata: calldata(r.to, messages)}).Instruction()
	}
	batch := func(inner ...zkgm.Instruction) zkgm.Instruction {
		return (&zkgm.Batch{Instructions: inner}).Instruction()
	}
	allow := msg{"increase_allowance": map[string]any{"amount": amount.String(),
		"spender": r.to.accountOf(r.to.contract("hub")).display}}
	switch dice := g.rng.IntN(10); {
	case dice < 5:
		bond := msg{"bond": map[string]any{"min_mint_amount": less.String(), "mint_to_address": proxy.display}}
		return batch(bring(nativeHere, native.denom), call(bond, allow, deliver(stakedThere, staked.denom, less)))
	case dice < 8:
		unbond := msg{"unbond": map[string]any{"amount": amount.String()}}
		return batch(bring(staked.denom, stakedThere), call(allow, unbond))
	case dice < 9:
		var messages []msg
		first := 1 + g.rng.IntN(900)
		for i := range 1 + g.rng.IntN(2) {
			messages = append(messages,
				msg{"withdraw": map[string]any{"batch_id": first + i, "withdraw_to_address": proxy.display}})
		}
		return call(append(messages, deliver(native.denom, nativeHere, amount))...)
	}
	return call(allow, deliver(stakedThere, staked.denom, amount))
}

// msg is a message to a contract: one action and its arguments.
type msg map[string]any

func (g *generator) sendMessage(r *route, order *zkgm.TokenOrderV2) msg {
	return msg{"send": map[string]any{
		"channel_id": r.back.channel, "timeout_height": "0",
		"timeout_timestamp": strconv.FormatInt(g.at.Add(72*time.Hour).UnixNano(), 10),
		"salt":              g.hash(), "instruction": hexText(order.Instruction().Encode()),
	}}
}

// calldata returns the input of a proxy: a JSON list of messages to contracts (CosmWasm).
func calldata(c *chain, messages []msg) []byte {
	type execute struct {
		Contract string `json:"contract_addr"`
		Funds    []any  `json:"funds"`
		Msg      []byte `json:"msg"`
	}
	type wasm struct {
		Execute execute `json:"execute"`
	}
	type item struct {
		Wasm wasm `json:"wasm"`
	}
	list := make([]item, len(messages))
	for i, m := range messages {
		for does := range m {
			list[i].Wasm.Execute = execute{Contract: c.accountOf(c.contract(does)).display, Funds: []any{},
				Msg: mustJSON(m)}
		}
	}
	return mustJSON(list)
}

func mustJSON(v any) []byte {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err) // strings, numbers and bytes always marshal
	}
	return text
}

// owe schedules the delivery of a stake's proxy, if the stake is received and succeeds.
func (g *generator) owe(f *flight, data []byte) {
	p, err := zkgm.Decode(data)
	if err != nil || !f.journey.success {
		return
	}
	stake, ok := p.Stake()
	if !ok || stake.Delivery.Order == nil {
		return
	}
	for i, s := range f.journey.steps[:f.journey.stop] {
		if s.kind == index.TracePacketRecv && i > 0 {
			o := owed{at: s.at, tx: s.tx, route: f.route.back, instruction: stake.Delivery.Instruction}
			at, _ := slices.BinarySearchFunc(g.owed, o, func(a, b owed) int { return a.at.Compare(b.at) })
			g.owed = slices.Insert(g.owed, at, o)
			return
		}
	}
}

// due takes the next scheduled delivery if it comes before the next packet. The delivery is not sent before the last
// packet.
func (g *generator) due(last time.Time) (o owed, ok bool) {
	if len(g.owed) == 0 || g.owed[0].at.After(g.at) {
		return o, false
	}
	o, g.owed = g.owed[0], g.owed[1:]
	if g.at = o.at; g.at.Before(last) {
		g.at = last
	}
	return o, true
}
