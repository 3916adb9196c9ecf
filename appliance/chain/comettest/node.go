// Package comettest is a CosmWasm chain for tests: a CometBFT node in this process, with HTTP RPC and an application
// whose transactions emit the events of contracts.
package comettest

import (
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	dbm "github.com/cometbft/cometbft-db"
	"github.com/cometbft/cometbft/config"
	"github.com/cometbft/cometbft/libs/log"
	"github.com/cometbft/cometbft/mempool"
	"github.com/cometbft/cometbft/node"
	"github.com/cometbft/cometbft/p2p"
	"github.com/cometbft/cometbft/privval"
	"github.com/cometbft/cometbft/proxy"
	rpcserver "github.com/cometbft/cometbft/rpc/jsonrpc/server"
	"github.com/cometbft/cometbft/types"
)

// Node is a node of a chain with one validator. It makes a block only when it is told to. It ends with its test.
type Node struct {
	URL  string // of the JSON-RPC
	node *node.Node
	app  *application
}

// New starts a node of a chain. Its first block is empty.
func New(t testing.TB, chainID string) *Node {
	t.Helper()
	conf := config.TestConfig().SetRoot(t.TempDir())
	for _, folder := range []string{"config", "data"} {
		check(t, os.Mkdir(filepath.Join(conf.RootDir, folder), 0o700))
	}
	conf.RPC.ListenAddress, conf.RPC.GRPCListenAddress = "", "" // serve serves the RPC
	conf.P2P.ListenAddress, conf.P2P.PexReactor = "tcp://127.0.0.1:0", false
	conf.Consensus.CreateEmptyBlocks = false
	conf.Consensus.TimeoutCommit, conf.Consensus.SkipTimeoutCommit = time.Millisecond, true
	conf.TxIndex.Indexer = "kv"
	validator := privval.GenFilePV(conf.PrivValidatorKeyFile(), conf.PrivValidatorStateFile())
	validator.Save()
	key, err := p2p.LoadOrGenNodeKey(conf.NodeKeyFile())
	check(t, err)
	genesis := &types.GenesisDoc{
		GenesisTime: time.Now(), ChainID: chainID, InitialHeight: 1, ConsensusParams: types.DefaultConsensusParams(),
		Validators: []types.GenesisValidator{{PubKey: validator.Key.PubKey, Power: 1}},
	}
	check(t, genesis.ValidateAndComplete())
	n := &Node{app: &application{committed: make(chan Block, 1)}}
	n.node, err = node.NewNode(conf, validator, key, proxy.NewLocalClientCreator(n.app),
		func() (*types.GenesisDoc, error) { return genesis, nil },
		func(*config.DBContext) (dbm.DB, error) { return dbm.NewMemDB(), nil },
		node.DefaultMetricsProvider(conf.Instrumentation), log.NewNopLogger())
	check(t, err)
	check(t, n.node.Start())
	t.Cleanup(func() {
		_ = n.node.Stop()
		n.node.Wait()
	})
	n.serve(t)
	n.await(t)
	return n
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// serve serves the node's RPC on a free port.
func (n *Node) serve(t testing.TB) {
	t.Helper()
	env, err := n.node.ConfigureRPC()
	check(t, err)
	mux := http.NewServeMux()
	rpcserver.RegisterRPCFuncs(mux, env.GetRoutes(), log.NewNopLogger())
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	go func() { _ = rpcserver.Serve(listener, mux, log.NewNopLogger(), rpcserver.DefaultConfig()) }()
	t.Cleanup(func() { _ = listener.Close() })
	n.URL = "http://" + listener.Addr().String()
}

// patience ends a test whose node hangs. It tests no speed.
const patience = 2 * time.Minute

// await waits for the next block.
func (n *Node) await(t testing.TB) Block {
	t.Helper()
	select {
	case b := <-n.app.committed:
		return b
	case <-time.After(patience):
		t.Fatal("the node makes no block")
	}
	return Block{}
}

// Make makes a block of transactions. blockEvents are its events without a transaction.
func (n *Node) Make(t testing.TB, blockEvents []Event, txs ...Transaction) Block {
	t.Helper()
	trigger := n.app.prepare(blockEvents, txs)
	check(t, n.node.Mempool().CheckTx(trigger, nil, mempool.TxInfo{}))
	b := n.await(t)
	// The node counts a block before it can serve the block's results, and indexes its transactions later.
	for deadline := time.Now().Add(patience); ; time.Sleep(time.Millisecond) { // polling interval
		if n.served(b) {
			return b
		}
		if time.Now().After(deadline) {
			t.Fatal("the node does not serve its block")
		}
	}
}

// Emit makes a block of one transaction, which emits events.
func (n *Node) Emit(t testing.TB, events ...Event) Block {
	t.Helper()
	return n.Make(t, nil, Transaction{Events: events})
}

func (n *Node) served(b Block) bool {
	env, err := n.node.ConfigureRPC()
	if err != nil {
		return false
	}
	height := int64(b.Height)
	results, err := env.BlockResults(nil, &height)
	if err != nil || len(results.TxsResults) != len(b.Transactions) {
		return false
	}
	for _, hash := range b.Transactions {
		if tx, err := env.TxIndexer.Get(hash[:]); err != nil || tx == nil {
			return false
		}
	}
	status, err := env.Status(nil)
	return err == nil && status.SyncInfo.LatestBlockHeight >= height
}

// Head returns the height of the newest block.
func (n *Node) Head(testing.TB) uint64 { return uint64(n.node.BlockStore().Height()) }
