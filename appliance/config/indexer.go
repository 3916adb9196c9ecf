package config

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/btcsuite/btcd/btcutil/bech32"

	"github.com/attestd/attestd/appliance"
)

// IndexedChain is an entry of indexer.chains.
type IndexedChain struct {
	ID            string        `koanf:"id"`
	Name          string        `koanf:"name"`
	Testnet       bool          `koanf:"testnet"`
	RPCs          []RPCURL      `koanf:"rpcs"`
	Core          string        `koanf:"core"`
	Zkgm          string        `koanf:"zkgm"`
	Minter        string        `koanf:"minter"`      // of a CosmWasm chain
	FromBlock     uint64        `koanf:"from_block"`  // of an EVM chain
	FromHeight    uint64        `koanf:"from_height"` // of a CosmWasm chain
	Confirmations Confirmations `koanf:"confirmations"`
}

// IsCosmWasm reports whether the chain is a CosmWasm chain: the address of its core contract is bech32. Others are EVM
// chains.
func (c *IndexedChain) IsCosmWasm() bool { return c.Core != "" && !strings.HasPrefix(c.Core, "0x") }

// First returns the first block to read.
func (c *IndexedChain) First() uint64 {
	if c.IsCosmWasm() {
		return c.FromHeight
	}
	return c.FromBlock
}

type indexerConfig struct {
	Preset       string         `koanf:"preset"`
	Chains       []IndexedChain `koanf:"chains"`
	PollInterval time.Duration  `koanf:"poll_interval"`
}

func indexerSettings() []Setting {
	return []Setting{
		{"indexer.preset", "",
			"union-mainnet: known chains of indexer.chains need only id and rpcs; if empty, nothing is known"},
		{"indexer.chains", Objects{
			{"id", "", "universal chain id, such as ethereum.1 or union.union-1"},
			{"name", "", "name for people; if empty, the preset's, or the id"},
			{"testnet", false, "the chain is a testnet"},
			{"rpcs", []string{},
				"URLs of the JSON-RPC of the chain's nodes: https, or http on this machine. More than half of them must agree"},
			{"core", "",
				"address of the core contract (IBCHandler): 0x on an EVM chain, bech32 on a CosmWasm chain; if empty, the preset's"},
			{"zkgm", "",
				"address of the contract for transfers (zkgm), in the form of core; if empty, the preset's. Packets between other " +
					"contracts are no transfers"},
			{"minter", "",
				"address of the contract of a CosmWasm chain that makes wrapped tokens; if empty, the preset's. Without it, the " +
					"chain's wrapped tokens are unknown"},
			{"from_block", 0,
				"first block of an EVM chain to read: the one in which the core contract was deployed; 0 means the preset's, if " +
					"it has one"},
			{"from_height", 0, "the same of a CosmWasm chain"},
			{"confirmations", string(Finalized),
				"number of blocks that must be on top of a block before it is read; or finalized, for the chain's finality"},
		}, "chains to read with graphql.source chains (docs/indexer.md)"},
		{"indexer.poll_interval", "5s", "interval at which the indexer asks for newer blocks"},
	}
}

// PresetMainnet is the value of indexer.preset for Union's mainnets.
const PresetMainnet = "union-mainnet"

// MainnetCore is the address of the core contract of Union's deployments on all EVM chains.
const MainnetCore = "0xee4ea8d358473f0fcebf0329feed95d56e8c04d7"

// MainnetZkgm is the address of the contract for transfers of Union's deployments on all EVM chains.
const MainnetZkgm = "0x5fbe74a283f7954f10aa04c2edf55578811aeb03"

// mainnets are the chains of PresetMainnet, with the blocks in which their core contracts were deployed. Those without a
// core contract have MainnetCore and MainnetZkgm.
var mainnets = []IndexedChain{
	{ID: "union.union-1", Name: "Union", FromHeight: 461578,
		Core:   "union1hnuj8f6d3wy3fcprt55vddv7v2650t6uudnvd2hukqrteeam8wjqvcmecf",
		Zkgm:   "union1336jj8ertl8h7rdvnz4dh5rqahd09cy0x43guhsxx6xyrztx292qpe64fh",
		Minter: "union150u2vpdtau48c50lntaqgleu8rqfnnuh2u3pzfg7pfcvw4uzq6tqceagxy"},
	{ID: "babylon.bbn-1", Name: "Babylon", FromHeight: 28972,
		Core:   "bbn1hnuj8f6d3wy3fcprt55vddv7v2650t6uudnvd2hukqrteeam8wjqnlye9f",
		Zkgm:   "bbn1336jj8ertl8h7rdvnz4dh5rqahd09cy0x43guhsxx6xyrztx292q77945h",
		Minter: "bbn1c723xf74f0r9g4uyn0cv2t7pkgcq7x0gaw5h773j78rk35w0j0usslxen6"},
	{ID: "osmosis.osmosis-1", Name: "Osmosis", FromHeight: 39452782,
		Core:   "osmo1hnuj8f6d3wy3fcprt55vddv7v2650t6uudnvd2hukqrteeam8wjqata4fx",
		Zkgm:   "osmo1336jj8ertl8h7rdvnz4dh5rqahd09cy0x43guhsxx6xyrztx292qs2uecc",
		Minter: "osmo12r3yc76u9lxe33yemstatnw8602culdjzrtr8lmnpycmd3z7d4jsxx60kc"},
	{ID: "ethereum.1", Name: "Ethereum", FromBlock: 22236429},
	{ID: "bsc.56", Name: "BNB Smart Chain", FromBlock: 56057229},
	{ID: "base.8453", Name: "Base", FromBlock: 35397312},
	{ID: "arbitrum.42161", Name: "Arbitrum One", FromBlock: 420578864},
	{ID: "bob.60808", Name: "BOB", FromBlock: 15699438},
	{ID: "corn.21000000", Name: "Corn", FromBlock: 392723},
	{ID: "sei.1329", Name: "Sei", FromBlock: 167472746},
}

// Indexes reports whether the appliance reads chains into its replica.
func (c *Config) Indexes() bool { return c.GraphQL.Source == FromChains }

// HasReplica reports whether GraphQL is answered from a replica.
func (c *Config) HasReplica() bool { return c.GraphQL.Source == FromReplica || c.Indexes() }

// IndexedChains returns indexer.chains, completed from the preset.
func (c *Config) IndexedChains() []IndexedChain {
	all := slices.Clone(c.Indexer.Chains)
	if c.Indexer.Preset != PresetMainnet {
		return all
	}
	for i := range all {
		one := &all[i]
		at := slices.IndexFunc(mainnets, func(m IndexedChain) bool { return m.ID == one.ID })
		if at < 0 {
			continue
		}
		one.Name = cmp.Or(one.Name, mainnets[at].Name)
		one.Core = cmp.Or(one.Core, mainnets[at].Core, MainnetCore)
		one.Zkgm = cmp.Or(one.Zkgm, mainnets[at].Zkgm, MainnetZkgm)
		one.Minter = cmp.Or(one.Minter, mainnets[at].Minter)
		one.FromBlock = cmp.Or(one.FromBlock, mainnets[at].FromBlock)
		one.FromHeight = cmp.Or(one.FromHeight, mainnets[at].FromHeight)
	}
	return all
}

// Transferring returns the addresses of the contracts for transfers by universal chain id: those of indexer.chains, and
// those of the preset's other chains.
func (c *Config) Transferring() map[string]string {
	contracts := make(map[string]string)
	if c.Indexer.Preset == PresetMainnet {
		for _, one := range mainnets {
			contracts[one.ID] = cmp.Or(one.Zkgm, MainnetZkgm)
		}
	}
	for _, one := range c.IndexedChains() {
		contracts[one.ID] = one.Zkgm
	}
	return contracts
}

// The universal ids (UCS-04) of chains of each kind.
var (
	evmChainID    = regexp.MustCompile(`^[a-z][a-z0-9-]{0,31}\.[1-9][0-9]{0,19}$`)
	cosmosChainID = regexp.MustCompile(`^[a-z][a-z0-9-]{0,31}\.[A-Za-z0-9][A-Za-z0-9_-]{0,47}$`)
)

// validateIndexer checks the indexer settings without sending a request.
func (c *Config) validateIndexer(check func(ok bool, format string, args ...any)) {
	check(c.Indexer.PollInterval >= minInterval, "indexer.poll_interval: must be at least %s", minInterval)
	check(c.Indexer.Preset == "" || c.Indexer.Preset == PresetMainnet, "indexer.preset: %q is not %s or empty",
		c.Indexer.Preset, PresetMainnet)
	check(!c.Indexes() ||
		len(c.Indexer.Chains) > 0, "indexer.chains: graphql.source chains needs a chain to read, such "+
		"as { id: ethereum.1, rpcs: [\"https://rpc.example.com\"] }")
	check(!c.Indexes() || c.GraphQL.Upstream == "",
		"graphql.upstream: is not used with graphql.source chains; remove one of the two")
	seen := make(map[string]bool)
	for i, one := range c.IndexedChains() {
		check := func(ok bool, format string, args ...any) {
			check(ok, "indexer.chains: entry %d: %s", i+1, fmt.Sprintf(format, args...))
		}
		check(!seen[one.ID], "id: %s is another entry's", one.ID)
		seen[one.ID] = true
		one.checkContract(check)
		one.checkZkgm(check, c.Indexes())
		_, err := one.Confirmations.Blocks()
		check(err == nil, "confirmations: %v", err)
		one.checkRPCs(check)
	}
}

// checkContract checks the settings that depend on the kind of the chain.
func (one *IndexedChain) checkContract(check func(ok bool, format string, args ...any)) {
	if one.IsCosmWasm() {
		check(cosmosChainID.MatchString(one.ID),
			"id: %q is not the universal id of a CosmWasm chain, such as union.union-1", one.ID)
		_, _, err := bech32.DecodeToBase256(one.Core)
		check(err == nil, "core: %q is neither 0x and 40 hex digits nor bech32: %v", one.Core, err)
		check(one.FromBlock == 0, "from_block: a CosmWasm chain has from_height instead")
		if one.Minter != "" {
			_, _, err := bech32.DecodeToBase256(one.Minter)
			check(err == nil, "minter: %q is not bech32: %v", one.Minter, err)
		}
		return
	}
	check(one.Minter == "", "minter: only a CosmWasm chain has one")
	check(evmChainID.MatchString(one.ID) || one.Core == "" && cosmosChainID.MatchString(one.ID),
		"id: %q is not the universal id of an EVM chain, such as ethereum.1", one.ID)
	check(one.FromHeight == 0 || one.Core == "", "from_height: an EVM chain has from_block instead")
	if one.Core == "" {
		check(false, "core: must be the address of the core contract: indexer.preset does not know %s", one.ID)
		return
	}
	_, err := appliance.ParseAddress(one.Core)
	check(err == nil, "core: the address %v", err)
}

func (one *IndexedChain) checkZkgm(check func(ok bool, format string, args ...any), needed bool) {
	switch {
	case one.Zkgm == "":
		check(!needed || one.Core == "",
			"zkgm: must be the address of the contract for transfers: indexer.preset does not know %s", one.ID)
	case one.IsCosmWasm():
		_, _, err := bech32.DecodeToBase256(one.Zkgm)
		check(err == nil, "zkgm: %q is not bech32: %v", one.Zkgm, err)
	default:
		_, err := appliance.ParseAddress(one.Zkgm)
		check(err == nil, "zkgm: the address %v", err)
	}
}

func (one *IndexedChain) checkRPCs(check func(ok bool, format string, args ...any)) {
	check(len(one.RPCs) > 0 && len(one.RPCs) <= maxRPCs, "rpcs: must be 1 to %d URLs", maxRPCs)
	asked := make(map[RPCURL]bool)
	for k, u := range one.RPCs {
		check(!asked[u], "rpcs: %d is a duplicate: name a different node", k+1)
		check(!strings.Contains(string(u), hiddenValue),
			"rpcs: %d: has the placeholder of attestd config show; write the full URL", k+1)
		asked[u] = true
	}
}
