package daemon

import (
	"errors"
	"fmt"

	"github.com/ethereum/go-ethereum/common"

	"github.com/attestd/attestd/appliance/chain"
	"github.com/attestd/attestd/appliance/config"
	"github.com/attestd/attestd/appliance/index/indexer"
)

// IndexedChains returns the chains of indexer.chains, which must be validated.
func IndexedChains(c *config.Config) []indexer.Chain {
	var all []indexer.Chain
	for _, one := range c.IndexedChains() {
		blocks, _ := one.Confirmations.Blocks()
		next := indexer.Chain{
			ID: one.ID, Name: one.Name, Testnet: one.Testnet,
			FromBlock: one.First(), Confirmations: blocks, Finalized: one.Confirmations == config.Finalized,
		}
		if one.IsCosmWasm() {
			next.Contract, next.Minter = one.Core, one.Minter
		} else {
			next.Core = common.HexToAddress(one.Core)
		}
		for _, u := range one.RPCs {
			next.RPCs = append(next.RPCs, string(u))
		}
		all = append(all, next)
	}
	return all
}

// CheckIndexer returns an error if the client of an RPC refuses its configuration.
func CheckIndexer(c *config.Config) error {
	var failures []error
	for i, one := range c.Indexer.Chains {
		for k, u := range one.RPCs {
			if err := chain.CheckURL(string(u)); err != nil {
				failures = append(failures, fmt.Errorf("indexer.chains: entry %d: rpcs: %d: %w", i+1, k+1, err))
			}
		}
	}
	return errors.Join(failures...)
}

// OpenVerifier returns what checks packets against indexer.chains. Without chains, every packet fails. It makes no
// request.
func OpenVerifier(c *config.Config, version string) (*indexer.Verifier, error) {
	v, err := indexer.NewVerifier(IndexedChains(c), version)
	if err != nil {
		return nil, fmt.Errorf("indexer: %w", err)
	}
	return v, nil
}

// openIndexer leaves indexer nil if no chains are read.
func (r *reads) openIndexer() (err error) {
	if !r.config.Indexes() {
		return nil
	}
	r.indexer, err = indexer.New(indexer.Options{
		Index: r.replica, Chains: IndexedChains(r.config), PollInterval: r.config.Indexer.PollInterval,
		Zkgm: r.config.Transferring(), Version: r.version, Log: r.logger,
	})
	if err != nil {
		return fmt.Errorf("indexer: %w", err)
	}
	return nil
}
