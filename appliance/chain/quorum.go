package chain

import (
	"context"
	"fmt"
	"math/big"
	"strings"
	"sync"
	"time"

	"github.com/ethereum/go-ethereum/accounts/abi"
	"github.com/ethereum/go-ethereum/common"

	"github.com/attestd/attestd/appliance"
)

// quorumABI describes the functions of docs/contracts/AttestorQuorum.sol that show its state.
const quorumABI = `[
	{"type": "function", "name": "members", "inputs": [], "outputs": [{"type": "address[]"}], "stateMutability": "view"},
	{"type": "function", "name": "threshold", "inputs": [], "outputs": [{"type": "uint256"}], "stateMutability": "view"}
]`

// QuorumContract is the contract of a quorum of appliances, as one RPC shows it.
type QuorumContract struct {
	Watched   string              `json:"watched"` // name of the watched contract that has this RPC
	RPC       string              `json:"rpc"`     // without parts that may be secret
	Members   []appliance.Address `json:"members"`
	Threshold uint64              `json:"threshold"`
	Error     string              `json:"error,omitempty"` // why members and threshold are not known
}

// quorumTimeout bounds one question to an RPC about a contract of a quorum.
const quorumTimeout = 5 * time.Second

// InspectQuorum asks the RPCs of the watched contracts for the state of the contract of a quorum. It asks each RPC,
// since one of several may lie.
func InspectQuorum(ctx context.Context, watched []Contract, quorum appliance.Address,
	userAgent string) []QuorumContract {
	all := []QuorumContract{}
	var addresses []string
	for _, c := range watched {
		for i, shown := range shownURLs(c.RPCs) {
			all = append(all, QuorumContract{Watched: c.Name, RPC: shown})
			addresses = append(addresses, c.RPCs[i])
		}
	}
	var asking sync.WaitGroup
	for i := range all {
		asking.Go(func() {
			if err := all[i].inspect(ctx, addresses[i], quorum, userAgent); err != nil {
				all[i].Error = err.Error()
			}
		})
	}
	asking.Wait()
	return all
}

func (q *QuorumContract) inspect(ctx context.Context, rpc string, at appliance.Address, userAgent string) error {
	n, err := newNode(rpc, q.RPC, quorumTimeout, userAgent)
	if err != nil {
		return err
	}
	defer n.close()
	has, err := n.hasCode(ctx, at)
	if err == nil && !has {
		err = fmt.Errorf("no contract exists at %s", at)
	}
	if err != nil {
		return err
	}
	contract, err := abi.JSON(strings.NewReader(quorumABI))
	if err != nil {
		return err
	}
	read := func(function string) (any, error) {
		answer, err := n.call(ctx, function+"()", at, contract.Methods[function].ID)
		if err != nil {
			return nil, err
		}
		values, err := contract.Unpack(function, answer)
		if err != nil {
			return nil, fmt.Errorf("%s(): %w", function, err)
		}
		return values[0], nil
	}
	members, err := read("members")
	if err != nil {
		return err
	}
	threshold, err := read("threshold")
	if err != nil {
		return err
	}
	for _, m := range members.([]common.Address) {
		q.Members = append(q.Members, appliance.Address(m))
	}
	if t := threshold.(*big.Int); t.IsUint64() {
		q.Threshold = t.Uint64()
		return nil
	}
	return fmt.Errorf("threshold(): %s is not possible", threshold)
}
