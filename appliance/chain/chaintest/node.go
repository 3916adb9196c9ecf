// Package chaintest is a chain for tests: a go-ethereum node in this process, with HTTP RPC, verifying contracts that
// redeem, and reorganisations on demand. Its Proxy makes an RPC fail or lie.
package chaintest

import (
	"context"
	"crypto/ecdsa"
	"math/big"
	"sync"
	"testing"

	"github.com/ethereum/go-ethereum"
	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/crypto"
	"github.com/ethereum/go-ethereum/eth"
	"github.com/ethereum/go-ethereum/eth/catalyst"
	"github.com/ethereum/go-ethereum/eth/ethconfig"
	"github.com/ethereum/go-ethereum/eth/filters"
	"github.com/ethereum/go-ethereum/ethclient"
	"github.com/ethereum/go-ethereum/node"
	"github.com/ethereum/go-ethereum/p2p"
	"github.com/ethereum/go-ethereum/params"
	"github.com/ethereum/go-ethereum/rpc"

	"github.com/attestd/attestd/appliance"
)

// The contracts that every Node has.
var (
	// verifies and redeems
	Contract = appliance.Address(common.HexToAddress("0x00000000000000000000000000000000000A55E7"))
	// an attestor that is a contract
	Attestor = appliance.Address(common.HexToAddress("0x0000000000000000000000000000000000001271"))
)

// Node is a node with its own chain. It mines only on demand.
type Node struct {
	URL    string
	eth    *eth.Ethereum
	beacon *catalyst.SimulatedBeacon
	client *ethclient.Client
	key    *ecdsa.PrivateKey // pays for transactions

	mu    sync.Mutex // one transaction at a time
	nonce uint64
	used  int64 // last nullifier used
}

// New starts a node. It stops when the test ends.
func New(t testing.TB) *Node {
	t.Helper()
	return NewChain(t, params.AllDevChainProtocolChanges.ChainID.Int64())
}

// NewChain starts a node of a chain with that id. It stops when the test ends.
func NewChain(t testing.TB, id int64) *Node {
	t.Helper()
	key, err := crypto.GenerateKey()
	check(t, err)
	stack, err := node.New(&node.Config{
		HTTPHost: "127.0.0.1", HTTPModules: []string{"eth"}, HTTPVirtualHosts: []string{"*"},
		P2P: p2p.Config{NoDiscovery: true},
	})
	check(t, err)
	t.Cleanup(func() { _ = stack.Close() })
	alloc := core.SystemContractAllocs()
	alloc[crypto.PubkeyToAddress(key.PublicKey)] = types.Account{Balance: new(big.Int).Lsh(big.NewInt(1), 100)}
	alloc[common.Address(Contract)] = types.Account{Code: contract(), Balance: new(big.Int)}
	alloc[common.Address(Emitter)] = types.Account{Code: emitter(), Balance: new(big.Int)}
	alloc[common.Address(Attestor)] = types.Account{Code: attestorContract(), Balance: new(big.Int)}
	conf := ethconfig.Defaults
	rules := *params.AllDevChainProtocolChanges
	rules.ChainID = big.NewInt(id)
	conf.Genesis = &core.Genesis{Config: &rules, GasLimit: ethconfig.Defaults.Miner.GasCeil,
		Alloc: alloc}
	conf.SyncMode, conf.TxPool.NoLocals, conf.LogNoHistory = ethconfig.FullSync, true, true
	conf.RPCTxFeeCap = 0                                                   // none
	conf.TrieCleanCache, conf.TrieDirtyCache, conf.SnapshotCache = 8, 8, 8 // MiB; small, because tests run many nodes
	backend, err := eth.New(stack, &conf)
	check(t, err)
	system := filters.NewFilterSystem(backend.APIBackend, filters.Config{})
	stack.RegisterAPIs([]rpc.API{{Namespace: "eth", Service: filters.NewFilterAPI(system)}})
	check(t, stack.Start())
	beacon, err := catalyst.NewSimulatedBeacon(0, common.Address{}, backend)
	check(t, err)
	check(t, beacon.Fork(backend.BlockChain().GetCanonicalHash(0)))
	return &Node{URL: stack.HTTPEndpoint(), eth: backend, beacon: beacon, client: ethclient.NewClient(stack.Attach()), key: key}
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Mine adds empty blocks.
func (n *Node) Mine(blocks int) {
	for range blocks {
		n.beacon.Commit()
	}
}

// Head returns the number of the newest block.
func (n *Node) Head(t testing.TB) uint64 {
	t.Helper()
	number, err := n.client.BlockNumber(context.Background())
	check(t, err)
	return number
}

// Hash returns the hash of the newest block.
func (n *Node) Hash(t testing.TB) string {
	t.Helper()
	header, err := n.client.HeaderByNumber(context.Background(), nil)
	check(t, err)
	return header.Hash().String()
}

// SetAttestor sets the attestor of Contract.
func (n *Node) SetAttestor(t testing.TB, attestor appliance.Address) {
	t.Helper()
	n.send(t, Contract, append(append([]byte(nil), callSetAttestor...), common.LeftPadBytes(attestor[:], 32)...))
}

// Allow adds a key to those that Attestor accepts (1), or removes it (0).
func (n *Node) Allow(t testing.TB, signer appliance.Address, allowed byte) {
	t.Helper()
	n.send(t, Attestor, append(append(append([]byte(nil), callAllow...), common.LeftPadBytes(signer[:], 32)...),
		common.LeftPadBytes([]byte{allowed}, 32)...))
}

// Redeem redeems a part of an attestation in a new block. It returns the transaction's hash and the block's number. The
// test fails if the contract refuses.
func (n *Node) Redeem(t testing.TB, a appliance.Attestation, amount int64) (tx appliance.Digest, block uint64) {
	t.Helper()
	n.mu.Lock()
	n.used++
	nullifier := n.used
	n.mu.Unlock()
	call := append([]byte(nil), callRedeem...)
	for _, argument := range [][]byte{
		big.NewInt(nullifier).Bytes(), big.NewInt(amount).Bytes(), {0xbe}, a.Hash[:], {a.Signature.V}, a.Signature.R[:],
		a.Signature.S[:],
	} {
		call = append(call, common.LeftPadBytes(argument, 32)...)
	}
	receipt := n.send(t, Contract, call)
	return appliance.Digest(receipt.TxHash), receipt.BlockNumber.Uint64()
}

// gasLimit is the most that a transaction may use (EIP-7825).
const gasLimit = 1 << 24

// send mines a transaction. The test fails if the transaction does.
func (n *Node) send(t testing.TB, to appliance.Address, data []byte) *types.Receipt {
	t.Helper()
	address := common.Address(to)
	return n.transact(t, &address, data)
}

// call calls a contract without a transaction.
func (n *Node) call(to appliance.Address, data []byte) ([]byte, error) {
	address := common.Address(to)
	return n.client.CallContract(context.Background(), ethereum.CallMsg{To: &address, Data: data}, nil)
}

// Reorganise replaces the newest blocks by empty ones and adds one more.
func (n *Node) Reorganise(t testing.TB, blocks uint64) {
	t.Helper()
	n.Rewind(t, blocks)
	n.Mine(int(blocks) + 1)
}

// Rewind removes the newest blocks. Later blocks have other hashes and later times.
func (n *Node) Rewind(t testing.TB, blocks uint64) {
	t.Helper()
	n.mu.Lock()
	defer n.mu.Unlock()
	ctx := context.Background()
	head, err := n.client.BlockNumber(ctx)
	check(t, err)
	parent, err := n.client.HeaderByNumber(ctx, new(big.Int).SetUint64(head-blocks))
	check(t, err)
	check(t, n.beacon.Fork(parent.Hash()))
	check(t, n.eth.TxPool().Sync()) // the pool has the removed transactions again
	n.beacon.Rollback()             // otherwise they are mined again
	n.nonce, err = n.client.NonceAt(ctx, crypto.PubkeyToAddress(n.key.PublicKey), nil)
	check(t, err)
}
