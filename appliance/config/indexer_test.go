package config_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/attestd/attestd/appliance/config"
)

func loadText(t *testing.T, text string) (*config.Config, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "attestd.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return (&config.Source{File: path}).Load(nil)
}

// The example in docs/indexer.md is a valid configuration, and the preset completes it.
func TestTheExampleOfTheIndexerIsAConfiguration(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/indexer.md")
	if err != nil {
		t.Fatal(err)
	}
	example := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindSubmatch(text)
	if example == nil {
		t.Fatal("docs/indexer.md has no example")
	}
	c, err := loadText(t, string(example[1]))
	if err != nil {
		t.Fatal(err)
	}
	chains := c.IndexedChains()
	if len(chains) != 3 || chains[0].Name != "Ethereum" || chains[0].FromBlock != 22236429 ||
		chains[0].Core != "0xee4ea8d358473f0fcebf0329feed95d56e8c04d7" || chains[0].Confirmations != config.Finalized {
		t.Errorf("the chains are %+v", chains)
	}
	if one := chains[1]; one.Name != "Sepolia" || one.FromBlock != 8000000 || one.Confirmations != "64" ||
		!one.Testnet {
		t.Errorf("the second chain is %+v", one)
	}
	if one := chains[2]; one.Name != "Union" || one.First() != 461578 || !one.IsCosmWasm() ||
		!strings.HasPrefix(one.Minter, "union150u2") {
		t.Errorf("the third chain is %+v", one)
	}
}

// TestThePresetKnowsTheContractsForTransfers compares those of chains that are read and of one that is not.
func TestThePresetKnowsTheContractsForTransfers(t *testing.T) {
	t.Parallel()
	c, err := loadText(t, `
graphql: { source: chains }
indexer:
  preset: union-mainnet
  chains:
    - { id: ethereum.1, rpcs: ["https://rpc.example.com"] }
    - { id: bsc.56, rpcs: ["https://bsc.example.com"], zkgm: "0x1111111111111111111111111111111111111111" }
`)
	if err != nil {
		t.Fatal(err)
	}
	got := c.Transferring()
	for id, want := range map[string]string{
		"ethereum.1":    "0x5fbe74a283f7954f10aa04c2edf55578811aeb03",
		"bsc.56":        "0x1111111111111111111111111111111111111111",
		"base.8453":     "0x5fbe74a283f7954f10aa04c2edf55578811aeb03",
		"union.union-1": "union1336jj8ertl8h7rdvnz4dh5rqahd09cy0x43guhsxx6xyrztx292qpe64fh",
	} {
		if got[id] != want {
			t.Errorf("%s: %q, want %q", id, got[id], want)
		}
	}
}

// The example in docs/proofs.md is a valid configuration.
func TestTheExampleOfProofsIsAConfiguration(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/proofs.md")
	if err != nil {
		t.Fatal(err)
	}
	example := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindSubmatch(text)
	if example == nil {
		t.Fatal("docs/proofs.md has no example")
	}
	if c, err := loadText(t, string(example[1])); err != nil || c.GraphQL.Verify != config.VerifyChain {
		t.Errorf("the example: %v", err)
	}
}

// Each mistake in the indexer's settings is named.
func TestMistakesInTheIndexer(t *testing.T) {
	t.Parallel()
	_, err := loadText(t, `
graphql: { source: chains, upstream: "https://example.com/v1/graphql" }
indexer:
  preset: union-testnet
  poll_interval: 1ms
  chains:
    - { id: union.union-1, rpcs: ["https://rpc.example.com"], core: "0xee4ea8d358473f0fcebf0329feed95d56e8c04d7" }
    - { id: ethereum.1, rpcs: [], confirmations: soon }
    - { id: ethereum.1, rpcs: ["https://a.example.com", "https://a.example.com"], core: "0x12", zkgm: "0x34", minter: "0x56" }
    - { id: union.union-1, rpcs: ["https://rpc.example.com"], from_block: 5,
        core: "union1hnuj8f6d3wy3fcprt55vddv7v2650t6uudnvd2hukqrteeam8wjqvcmecx", zkgm: union1336, minter: union150 }
    - { id: "union.union 1", rpcs: ["https://rpc.example.com"],
        core: "union1hnuj8f6d3wy3fcprt55vddv7v2650t6uudnvd2hukqrteeam8wjqvcmecf" }
    - { id: bsc.56, rpcs: ["https://rpc.example.com"], core: "0xee4ea8d358473f0fcebf0329feed95d56e8c04d7",
        from_height: 5 }
`)
	if err == nil {
		t.Fatal("the mistakes were accepted")
	}
	for _, want := range []string{
		`indexer.preset: "union-testnet" is not union-mainnet or empty`,
		"indexer.poll_interval: must be at least 100ms",
		"graphql.upstream: is not used with graphql.source chains; remove one of the two",
		`indexer.chains: entry 1: id: "union.union-1" is not the universal id of an EVM chain, such as ethereum.1`,
		`indexer.chains: entry 4: core: "union1hnuj8f6d3wy3fcprt55vddv7v2650t6uudnvd2hukqrteeam8wjqvcmecx" is neither 0x ` +
			`and 40 hex digits nor bech32: `,
		"indexer.chains: entry 4: from_block: a CosmWasm chain has from_height instead",
		`indexer.chains: entry 5: id: "union.union 1" is not the universal id of a CosmWasm chain, such as union.union-1`,
		"indexer.chains: entry 6: from_height: an EVM chain has from_block instead",
		"indexer.chains: entry 2: core: must be the address of the core contract: indexer.preset does not know ethereum.1",
		`indexer.chains: entry 2: confirmations: "soon" is not a number of blocks such as 12, or finalized`,
		"indexer.chains: entry 2: rpcs: must be 1 to 16 URLs",
		"indexer.chains: entry 3: id: ethereum.1 is another entry's",
		"indexer.chains: entry 3: rpcs: 2 is a duplicate: name a different node",
		"indexer.chains: entry 3: core: the address must have 40 hex digits",
		"indexer.chains: entry 3: zkgm: the address must have 40 hex digits",
		`indexer.chains: entry 4: zkgm: "union1336" is not bech32: `,
		`indexer.chains: entry 4: minter: "union150" is not bech32: `,
		"indexer.chains: entry 3: minter: only a CosmWasm chain has one",
		"indexer.chains: entry 6: zkgm: must be the address of the contract for transfers: indexer.preset does not know " +
			"bsc.56",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error lacks %q:\n%v", want, err)
		}
	}
	for text, want := range map[string]string{
		"graphql: { verify: all }":   `graphql.verify: "all" is not chain or empty`,
		"graphql: { verify: chain }": "graphql.verify: needs graphql.source replica, graphql.upstream and indexer.chains",
		`{graphql: {verify: chain, serve_unverified: true, upstream: "https://example.com/v1/graphql"}}`: "graphql.verify: graphql.serve_unverified would serve the packets that it finds",
	} {
		if _, err := loadText(t, text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
	if _, err := loadText(t, "graphql: { source: chains }"); err == nil ||
		!strings.Contains(err.Error(), "indexer.chains: graphql.source chains needs a chain to read") {
		t.Errorf("without chains: %v", err)
	}
}
