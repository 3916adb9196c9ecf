package dataset

import (
	"context"
	"math"
	"math/big"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/attestd/attestd/appliance/index"
	"github.com/attestd/attestd/appliance/index/zkgm"
)

// GenerateOptions configure Generate.
type GenerateOptions struct {
	Transfers int       // how many; packets are somewhat fewer
	Seed      uint64    // the same seed, number and time give the same rows
	Now       time.Time // the end of the generated history; the newest packets are still in progress then
	// Chains is how many chains there are, from 2 to 14, with the tokens and channels between them; zero means 14.
	Chains int
	// BatchRows is how many rows the sink receives at once; zero means 10,000.
	BatchRows int
}

// Generate generates an index and passes it to sink in batches, oldest first, like a follower. It generates chains,
// tokens, clients, connections and channels of a mainnet and a testnet, then packets with their transfers. Packets have
// real UCS-03 bytes and hashes. A few senders and tokens account for most of them, as in reality. Packets are in every
// stage, and some have failed, timed out or got stuck. Its only randomness is the seed. World generates an index that
// continues.
func Generate(ctx context.Context, o GenerateOptions, sink func([]index.Row) error) error {
	_, err := NewWorld(ctx, o, sink)
	return err
}

type generator struct {
	rng      *rand.Rand
	now      time.Time
	left     int  // transfers to generate
	exact    bool // generates no more than left; otherwise the last packet may have more
	accounts int  // accounts per chain
	rows     []index.Row
	err      error

	chains []*chain
	routes []*route
	weight float64 // of all routes

	at     time.Time     // when the next packet is sent
	latest time.Time     // no packet is sent after it
	pause  time.Duration // between packets, on average
	serial uint32        // of packets

	owed []owed // sorted by at, earliest first

	lastRoute *route // of the previous packet; the next one may share its transaction
	lastTx    string
}

func (g *generator) add(value any) {
	row, err := index.NewRow(value)
	if err != nil && g.err == nil {
		g.err = err
	}
	g.rows = append(g.rows, row)
}

// span sets the start of the history for a busy service's rate, and its end to now.
func (g *generator) span() {
	const pace = 8 * time.Second
	whole := min(max(time.Duration(float64(g.left)*float64(pace)), 3*24*time.Hour), 200*24*time.Hour)
	g.at, g.latest = g.now.Add(-whole), g.now.Add(-time.Second)
	g.spread(whole)
}

// spread sets the pause so that the remaining packets are sent within that time.
func (g *generator) spread(over time.Duration) {
	packets := max(1, float64(g.left)/transfersPerPacket)
	g.pause = time.Duration(float64(over) / packets)
}

// transfersPerPacket is the average over the shapes below. Packets owed by proxies do not count.
const transfersPerPacket = 1.25

// flight is a packet with its transfers in their current state.
type flight struct {
	route       *route
	instruction zkgm.Instruction
	journey     journey
	packet      index.Packet
	transfers   []index.Transfer
	seen        time.Time // withheld until then
}

// send generates the next packet and its transfers, and advances it to the current time.
func (g *generator) send() *flight {
	last := g.at
	g.at = g.at.Add(time.Duration(float64(g.pause) * (0.2 + 1.6*g.rng.Float64())))
	if g.at.After(g.latest) {
		g.at = g.latest
	}
	g.serial++
	delivery, owed := g.due(last)
	r, instruction := delivery.route, delivery.instruction
	if !owed {
		r = g.route()
		instruction = g.instruction(r)
	}
	var salt [32]byte
	g.fill(salt[:])
	data := zkgm.Packet{Salt: salt, Path: new(big.Int), Instruction: instruction}.Encode()
	timeout := g.at.Add(24 * time.Hour)
	hash := zkgm.PacketHash(uint32(r.channel), uint32(r.back.channel), data, 0, uint64(timeout.UnixNano()))

	f := &flight{route: r, instruction: instruction, journey: g.journey(r, timeout)}
	if owed {
		f.journey.steps[0].tx = delivery.tx
	}
	g.owe(f, data)
	f.packet = g.packetRow(f, data, timeout, hexText(hash[:]))
	g.travel(f)
	for i, order := range instruction.Orders() {
		f.transfers = append(f.transfers, g.transferRow(f, int32(i), order))
		g.left--
	}
	g.lastRoute, g.lastTx = r, *f.packet.SendTransactionHash
	return f
}

// addFlight adds the rows of a packet and its transfers in their current state.
func (g *generator) addFlight(f *flight) {
	g.add(f.packet)
	for _, t := range f.transfers {
		g.add(t)
	}
}

// instruction generates one of the shapes seen in practice, with at most as many orders as remain.
func (g *generator) instruction(r *route) zkgm.Instruction {
	order := func() zkgm.Instruction { return g.order(r).Instruction() }
	if staked := r.staked(); staked != nil && g.rng.IntN(stakesPerPacket) == 0 {
		return g.stake(r, staked)
	}
	switch dice := g.rng.IntN(100); {
	case dice < 55 || g.exact && g.left < 5:
		return g.orderV2(r).Instruction()
	case dice < 75:
		return g.orderV1(r).Instruction()
	case dice < 88:
		batch := &zkgm.Batch{}
		for range 2 + g.rng.IntN(3) {
			batch.Instructions = append(batch.Instructions, order())
		}
		return batch.Instruction()
	case dice < 94:
		return (&zkgm.Batch{Instructions: []zkgm.Instruction{order(), g.call(r)}}).Instruction()
	case dice < 97:
		return (&zkgm.Forward{Path: big.NewInt(int64(r.back.channel)),
			TimeoutTimestamp: uint64(g.at.Add(48 * time.Hour).UnixNano()), Next: order()}).Instruction()
	}
	return g.call(r)
}

func (g *generator) order(r *route) zkgm.Operation {
	if g.rng.IntN(3) == 0 {
		return g.orderV1(r)
	}
	return g.orderV2(r)
}

func (g *generator) orderV1(r *route) zkgm.Operation {
	t := g.token(r.from)
	amount, quote := g.amounts(t)
	return &zkgm.TokenOrderV1{
		Sender: g.account(r.from).zkgm, Receiver: g.account(r.to).zkgm, BaseToken: t.denom, BaseAmount: amount,
		BaseTokenSymbol: t.symbol,
		BaseTokenName:   t.name, BaseTokenDecimals: uint8(t.decimals), BaseTokenPath: t.path(), QuoteToken: r.quote(t),
		QuoteAmount: quote,
	}
}

func (g *generator) orderV2(r *route) zkgm.Operation {
	t := g.token(r.from)
	amount, quote := g.amounts(t)
	kind, metadata := uint8(zkgm.OrderEscrow), []byte(nil)
	switch {
	case t.home != r.from:
		kind = zkgm.OrderUnescrow
	case g.rng.IntN(40) == 0:
		kind, metadata = zkgm.OrderInitialize, []byte(t.symbol)
	case g.rng.IntN(20) == 0:
		kind = zkgm.OrderSolve
	}
	return &zkgm.TokenOrderV2{
		Sender: g.account(r.from).zkgm, Receiver: g.account(r.to).zkgm, BaseToken: t.denom, BaseAmount: amount,
		QuoteToken: r.quote(t), QuoteAmount: quote, Kind: kind, Metadata: metadata,
	}
}

func (g *generator) call(r *route) zkgm.Instruction {
	calldata := make([]byte, 4+32*g.rng.IntN(4))
	g.fill(calldata)
	return (&zkgm.Call{Sender: g.account(r.from).zkgm, ContractAddress: g.account(r.to).zkgm,
		ContractCalldata: calldata}).Instruction()
}

// amounts returns amounts that are round in human units, from thousandths to thousands; some orders leave a fee.
func (g *generator) amounts(t *token) (base, quote *big.Int) {
	units := new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(max(0, t.decimals-3))), nil)
	base = units.Mul(units, big.NewInt(1+int64(math.Exp(g.rng.Float64()*14))))
	if g.rng.IntN(4) > 0 {
		return base, base
	}
	fee := new(big.Int).Div(base, big.NewInt(1000))
	return base, fee.Sub(base, fee)
}

// zipf returns a number below n, small ones far more often.
func (g *generator) zipf(n int) int {
	u := g.rng.Float64()
	return min(n-1, int(float64(n)*u*u*u*u))
}

func (g *generator) fill(b []byte) {
	for i := 0; i < len(b); i += 8 {
		n := g.rng.Uint64()
		for j := i; j < min(i+8, len(b)); j++ {
			b[j] = byte(n)
			n >>= 8
		}
	}
}

func (g *generator) hash() string {
	var b [32]byte
	g.fill(b[:])
	return hexText(b[:])
}

// journey is the sequence of events of a packet.
type journey struct {
	steps   []step
	reached int // how many steps have happened
	stop    int // how many will ever happen
	success bool
	timeout time.Time // when the packet times out; zero: never, or already done
}

// next returns the time of the next event; zero: never.
func (j *journey) next() time.Time {
	if j.reached < j.stop {
		return j.steps[j.reached].at
	}
	return j.timeout
}

// step is a past or future step of a journey.
type step struct {
	kind  string
	chain *chain
	at    time.Time
	tx    string
}

// journey decides the events of a packet. The steps follow the route's light clients.
func (g *generator) journey(r *route, timeout time.Time) journey {
	tx := g.hash()
	if g.lastRoute == r && g.rng.IntN(30) == 0 {
		tx = g.lastTx
	}
	j := journey{success: g.rng.IntN(100) >= 2,
		steps: []step{{kind: index.TracePacketSend, chain: r.from, at: g.at, tx: tx}}}
	j.lead(g, r.via(), r.from, r.to, index.TraceSendUpdate, index.TracePacketRecv)
	received := len(j.steps)
	last := j.steps[received-1]
	j.steps = append(j.steps, step{kind: index.TraceWriteAck, chain: r.to, at: last.at, tx: last.tx})
	j.lead(g, r.via(), r.to, r.from, index.TraceAckUpdate, index.TracePacketAck)

	j.stop = len(j.steps)
	switch dice := g.rng.IntN(1000); {
	case dice < 8 && timeout.Add(time.Hour).Before(g.now):
		j.stop = 1
		j.timeout = timeout.Add(time.Duration(g.rng.IntN(1800)+1) * time.Second)
	case dice < 12:
		j.stop = 1 + g.rng.IntN(len(j.steps)-1)
		if dice < 8 && j.stop < received { // its timeout is still in the future
			j.timeout = timeout.Add(time.Hour)
		}
	}
	return j
}

// lead adds the updates of the light clients between two chains, and the arrival.
func (j *journey) lead(g *generator, hops []*chain, from, to *chain, update, arrival string) {
	at := j.steps[len(j.steps)-1].at
	wait := func(seconds float64) time.Time {
		at = at.Add(time.Duration(seconds * math.Exp(0.4*g.rng.NormFloat64()) * float64(time.Second))).Truncate(
			time.Second)
		return at
	}
	for i, hop := range append(hops[:len(hops):len(hops)], to) {
		seconds := 9.0
		if i == 0 {
			seconds = from.finality
		}
		j.steps = append(j.steps, step{kind: update + strconv.Itoa(i), chain: hop, at: wait(seconds), tx: g.hash()})
	}
	j.steps = append(j.steps, step{kind: arrival, chain: to, at: wait(6), tx: g.hash()})
}

// sortOrder returns an opaque sort_order of time, packet and index in the packet. It is unique and sorts by time.
func sortOrder(at time.Time, serial uint32, index int32) string {
	const digits = "0123456789abcdef"
	var b [32]byte
	put := func(from, to int, n uint64) {
		for i := to - 1; i >= from; i-- {
			b[i] = digits[n&15]
			n >>= 4
		}
	}
	put(0, 14, uint64(at.UnixMicro()))
	b[14] = '-'
	put(15, 23, uint64(serial))
	b[23] = '-'
	put(24, 27, uint64(index))
	return string(b[:27])
}
