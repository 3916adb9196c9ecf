package daemon

import (
	"context"
	"errors"
	"fmt"
	"sync"

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
			next.Contract = one.Core
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

// openReads opens the replica, and what fills it.
func (r *running) openReads() error {
	if r.config.HasReplica() {
		r.replica = KeepReplica(r.config, r.logger)
	}
	if err := r.openVerifier(); err != nil {
		return err
	}
	if err := r.openUpstream(); err != nil {
		return err
	}
	return r.openIndexer()
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

func (r *running) openVerifier() (err error) {
	r.verifier, err = OpenVerifier(r.config, r.options.Version)
	return err
}

// openIndexer leaves r.indexer nil if no chains are read.
func (r *running) openIndexer() (err error) {
	if !r.config.Indexes() {
		return nil
	}
	r.indexer, err = indexer.New(indexer.Options{
		Index: r.replica, Chains: IndexedChains(r.config), PollInterval: r.config.Indexer.PollInterval,
		Zkgm: r.config.Transferring(), Version: r.options.Version, Log: r.logger,
	})
	if err != nil {
		return fmt.Errorf("indexer: %w", err)
	}
	return nil
}

// indexChains reads chains until ctx ends or stop is called. stop waits for the end. Attestations do not need it.
func (r *running) indexChains(ctx context.Context) (stop func()) {
	if r.indexer == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	var done sync.WaitGroup
	for _, c := range r.config.Indexer.Chains {
		r.logger.Info("indexer: reading a chain", "chain", c.ID, "rpcs", len(c.RPCs))
	}
	done.Go(func() { _ = r.indexer.Run(ctx) }) // it ends with ctx only
	return func() {
		cancel()
		done.Wait()
	}
}
