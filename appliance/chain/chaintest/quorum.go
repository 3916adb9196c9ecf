package chaintest

import (
	"bytes"
	"context"
	"encoding/json"
	"math/big"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/ethereum/go-ethereum/accounts/abi"
	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/crypto"
	"github.com/ethereum/go-ethereum/params"

	"github.com/attestd/attestd/appliance"
)

// Quorum is docs/contracts/AttestorQuorum.sol, deployed on a Node whose key owns it.
type Quorum struct {
	Address appliance.Address
	node    *Node
	abi     abi.ABI
}

// DeployQuorum deploys the contract.
func (n *Node) DeployQuorum(t testing.TB, threshold int64, members ...appliance.Address) *Quorum {
	t.Helper()
	var compiled struct {
		ABI      json.RawMessage
		Bytecode hexutil.Bytes
	}
	_, file, _, _ := runtime.Caller(0)
	text, err := os.ReadFile(filepath.Join(filepath.Dir(file), "../../../docs/contracts/AttestorQuorum.json"))
	check(t, err)
	check(t, json.Unmarshal(text, &compiled))
	q := &Quorum{node: n}
	q.abi, err = abi.JSON(bytes.NewReader(compiled.ABI))
	check(t, err)
	list := make([]common.Address, len(members))
	for i, m := range members {
		list[i] = common.Address(m)
	}
	arguments, err := q.abi.Pack("", crypto.PubkeyToAddress(n.key.PublicKey), list, big.NewInt(threshold))
	check(t, err)
	receipt := n.transact(t, nil, append(compiled.Bytecode, arguments...))
	q.Address = appliance.Address(receipt.ContractAddress)
	return q
}

// AddMember adds a member.
func (q *Quorum) AddMember(t testing.TB, member appliance.Address) {
	t.Helper()
	q.does(t, "addMember", common.Address(member))
}

// RemoveMember removes a member.
func (q *Quorum) RemoveMember(t testing.TB, member appliance.Address) {
	t.Helper()
	q.does(t, "removeMember", common.Address(member))
}

// SetThreshold sets the number of members that must sign.
func (q *Quorum) SetThreshold(t testing.TB, threshold int64) {
	t.Helper()
	q.does(t, "setThreshold", big.NewInt(threshold))
}

func (q *Quorum) does(t testing.TB, function string, arguments ...any) {
	t.Helper()
	input, err := q.abi.Pack(function, arguments...)
	check(t, err)
	q.node.send(t, q.Address, input)
}

// Accepts calls isValidSignature, as a transfer contract does for a redemption.
func (q *Quorum) Accepts(t testing.TB, hash appliance.Digest, signatures []byte) bool {
	t.Helper()
	input, err := q.abi.Pack("isValidSignature", hash, signatures)
	check(t, err)
	answer, err := q.node.call(q.Address, input)
	return err == nil && bytes.HasPrefix(answer, callIsValid)
}

// transact mines a transaction. to is nil to create a contract. The test fails if the transaction does.
func (n *Node) transact(t testing.TB, to *common.Address, data []byte) *types.Receipt {
	t.Helper()
	n.mu.Lock()
	defer n.mu.Unlock()
	ctx := context.Background()
	chainID, err := n.client.ChainID(ctx)
	check(t, err)
	tx, err := types.SignNewTx(n.key, types.LatestSignerForChainID(chainID), &types.DynamicFeeTx{
		ChainID: chainID, Nonce: n.nonce, GasTipCap: big.NewInt(params.GWei), GasFeeCap: big.NewInt(100 * params.GWei),
		Gas: gasLimit, To: to, Data: data,
	})
	check(t, err)
	check(t, n.client.SendTransaction(ctx, tx))
	n.nonce++
	n.beacon.Commit()
	receipt, err := n.client.TransactionReceipt(ctx, tx.Hash())
	check(t, err)
	if receipt.Status != types.ReceiptStatusSuccessful {
		t.Fatalf("transaction %s: the contract refuses", tx.Hash())
	}
	return receipt
}
