package chain

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ethereum/go-ethereum/rpc"

	"github.com/attestd/attestd/appliance"
)

// Comet is the JSON-RPC of a CometBFT node (0.38 or later), for readers of CosmWasm chains. Its errors never contain
// the URL, which may be secret. It is safe for concurrent use.
type Comet struct{ n *node }

// DialComet returns an RPC for each URL. No connection is made before the first call. A call takes at most 20 s.
func DialComet(urls []string, version string) ([]*Comet, error) {
	all := make([]*Comet, len(urls))
	shown := shownURLs(urls)
	for i, address := range urls {
		n, err := newNode(address, shown[i], defaultCallTimeout, "attestd/"+version)
		if err != nil {
			return nil, err
		}
		all[i] = &Comet{n}
	}
	return all, nil
}

// Close closes the RPC's connections.
func (c *Comet) Close() { c.n.close() }

// String returns the URL without parts that may be secret. It differs from those of the other RPCs of one DialComet.
func (c *Comet) String() string { return c.n.shown }

const (
	throttledCalls = 4                // calls in total of a request that the node throttles
	throttledWait  = time.Second      // before the second call; twice as long before each further one
	mostThrottled  = 30 * time.Second // the longest Retry-After that a request waits for
)

// call calls a method. Params must be all of the method's, in order. If the node limits the request rate, call waits
// and calls again, because a range of blocks needs many calls.
func (c *Comet) call(ctx context.Context, what string, answer any, method string, params ...any) (err error) {
	for i := range throttledCalls {
		err = c.n.do(ctx, what, func(ctx context.Context) error {
			return withReason(c.n.eth.Client().CallContext(ctx, answer, method, params...))
		})
		asked, isThrottled := errors.AsType[*throttled](err)
		if !isThrottled || asked.after > mostThrottled || i == throttledCalls-1 {
			return err
		}
		sleep(ctx, max(asked.after, throttledWait<<i))
	}
	return err
}

// withReason adds the reason to an error of a CometBFT node: the message is the same for all errors. It returns
// errNoBlock for a block that the node does not have, because a smaller query does not help then.
func withReason(err error) error {
	reason, has := errors.AsType[rpc.DataError](err)
	if !has || reason.ErrorData() == nil {
		return err
	}
	text := fmt.Sprint(reason.ErrorData())
	for _, missing := range []string{"could not find results for height", "must be less than or equal to",
		"can't be greater than max height", "is not available"} {
		if strings.Contains(text, missing) {
			return fmt.Errorf("%w: %s", errNoBlock, text)
		}
	}
	return fmt.Errorf("%w: %s", err, text)
}

// cometNumber is a number in CometBFT's JSON: a string.
type cometNumber uint64

// UnmarshalJSON implements json.Unmarshaler.
func (n *cometNumber) UnmarshalJSON(text []byte) error {
	value, err := strconv.ParseUint(strings.Trim(string(text), `"`), 10, 64)
	*n = cometNumber(value)
	return err
}

// cometHash is a hash in CometBFT's JSON: hex without 0x.
type cometHash appliance.Digest

// UnmarshalText implements encoding.TextUnmarshaler.
func (h *cometHash) UnmarshalText(text []byte) error {
	if hex.DecodedLen(len(text)) != len(h) {
		return fmt.Errorf("%.80q is not a hash", text)
	}
	_, err := hex.Decode(h[:], text)
	return err
}

type cometStatus struct {
	Node struct {
		Network string `json:"network"`
	} `json:"node_info"`
	Sync struct {
		Latest cometNumber `json:"latest_block_height"`
	} `json:"sync_info"`
}

func (c *Comet) status(ctx context.Context) (s cometStatus, err error) {
	err = c.call(ctx, "status", &s, "status")
	return s, err
}

// ChainID returns the chain's id, such as union-1.
func (c *Comet) ChainID(ctx context.Context) (string, error) {
	s, err := c.status(ctx)
	return s.Node.Network, err
}

// HasContract reports whether there is a contract at an address. It asks wasmd.
func (c *Comet) HasContract(ctx context.Context, address string) (bool, error) {
	var answer struct {
		Response struct {
			Code  uint32 `json:"code"`
			Value string `json:"value"`
		} `json:"response"`
	}
	request := append([]byte{1<<3 | 2, byte(len(address))}, address...) // protobuf: field 1, a string below 128 bytes
	err := c.call(ctx, "contract", &answer, "abci_query", "/cosmwasm.wasm.v1.Query/ContractInfo",
		hex.EncodeToString(request), "0", false)
	return answer.Response.Code == 0 && answer.Response.Value != "", err
}

// Safe returns the highest block that may be read: with finalized, the newest that another block confirms, and
// otherwise the newest with that many blocks on top of it. CometBFT never reorganises. ok is false if no block may be
// read yet.
func (c *Comet) Safe(ctx context.Context, finalized bool, confirmations uint64) (number uint64, ok bool, err error) {
	s, err := c.status(ctx)
	if finalized {
		confirmations = 1
	}
	head := uint64(s.Sync.Latest)
	if err != nil || head <= confirmations {
		return 0, false, err
	}
	return head - confirmations, true, nil
}

// cometBlock is a block and the number of its transactions.
type cometBlock struct {
	Block
	transactions int
}

// mostBlocks is the number of blocks in an answer of the method blockchain.
const mostBlocks = 20

// blocks returns the blocks first to last, which are at most mostBlocks.
func (c *Comet) blocks(ctx context.Context, first, last uint64) ([]cometBlock, error) {
	var answer struct {
		Blocks []struct {
			ID struct {
				Hash cometHash `json:"hash"`
			} `json:"block_id"`
			Header struct {
				Height cometNumber `json:"height"`
				Time   time.Time   `json:"time"`
			} `json:"header"`
			Transactions cometNumber `json:"num_txs"`
		} `json:"block_metas"`
	}
	what := fmt.Sprintf("blocks %d to %d", first, last)
	err := c.call(ctx, what, &answer, "blockchain", strconv.FormatUint(first, 10), strconv.FormatUint(last, 10))
	if err != nil {
		return nil, err
	}
	var all []cometBlock
	for _, b := range answer.Blocks {
		all = append(all, cometBlock{Block{uint64(b.Header.Height), appliance.Digest(b.ID.Hash), b.Header.Time.UTC()},
			int(b.Transactions)})
	}
	slices.SortFunc(all, func(a, b cometBlock) int { return cmp.Compare(a.Number, b.Number) })
	for i, b := range all {
		if b.Number != first+uint64(i) {
			return nil, fmt.Errorf("%s: %w", what, errNoBlock)
		}
	}
	if uint64(len(all)) != last-first+1 {
		return nil, fmt.Errorf("%s: %w", what, errNoBlock)
	}
	return all, nil
}

// Block returns the block of a number.
func (c *Comet) Block(ctx context.Context, number uint64) (Block, error) {
	all, err := c.blocks(ctx, number, number)
	if err != nil {
		return Block{}, err
	}
	return all[0].Block, nil
}

// CometSpan returns the Span of queries to CometBFT nodes, which need a call for each block.
func CometSpan() Span { return Span{span{size: mostBlocks, most: 32 * mostBlocks}} }
