package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/attest"
	"github.com/attestd/attestd/appliance/chain"
	"github.com/attestd/attestd/appliance/config"
	"github.com/attestd/attestd/appliance/files"
	"github.com/attestd/attestd/appliance/service"
	"github.com/attestd/attestd/store/redemptions"
)

// ChainFile is the file in data_dir with the events read from chains. It may be deleted while the daemon is stopped:
// the watchtower then reads the chains again.
const ChainFile = "chain.db"

// ChainPath returns the path of ChainFile.
func ChainPath(c *config.Config) string { return filepath.Join(c.DataDir, ChainFile) }

// Contracts returns the contracts of chain.contracts, which must be validated.
func Contracts(c *config.Config) []chain.Contract {
	all := make([]chain.Contract, len(c.Chain.Contracts))
	for i, one := range c.Chain.Contracts {
		address, _ := appliance.ParseAddress(one.Address)
		blocks, _ := one.Confirmations.Blocks()
		all[i] = chain.Contract{
			Name: one.Name, Address: address, StartBlock: one.StartBlock, Confirmations: blocks,
			Finalized: one.Confirmations == config.Finalized,
		}
		for _, u := range one.RPC {
			all[i].RPCs = append(all[i].RPCs, string(u))
		}
	}
	return all
}

// CheckChain returns an error if the client of an RPC refuses its configuration.
func CheckChain(c *config.Config) error {
	var failures []error
	for i, one := range c.Chain.Contracts {
		for k, u := range one.RPC {
			if err := chain.CheckURL(string(u)); err != nil {
				failures = append(failures, fmt.Errorf("chain.contracts: entry %d: rpc: %d: %w", i+1, k+1, err))
			}
		}
	}
	return errors.Join(failures...)
}

// openChain leaves r.tower nil if no contract is watched. An unusable file is moved aside, because its content is on
// the chains.
func (r *running) openChain() (err error) {
	if len(r.config.Chain.Contracts) == 0 {
		return nil
	}
	path := ChainPath(r.config)
	owner, err := service.UserOf(r.config.DataDir)
	if err != nil {
		return err
	}
	err = owner.Do(func() error {
		if r.redeemed, err = redemptions.Open(path, roomForJournal*int64(r.config.Journal.MinFree)); err == nil ||
			!errors.Is(err, redemptions.ErrDamaged) {
			return err
		}
		aside := path + ".damaged-" + time.Now().UTC().Format("20060102T150405Z")
		r.logger.Error(
			"chain: the file of redemptions is damaged and was set aside; the watchtower reads the chain again",
			"aside", aside, "error", err.Error())
		if err := os.Rename(path, aside); err != nil {
			return err
		}
		r.redeemed, err = redemptions.Open(path, roomForJournal*int64(r.config.Journal.MinFree))
		return err
	})
	if err != nil {
		return fmt.Errorf("chain: %w", err)
	}
	if err := files.HandOver(r.config.DataDir, ChainFile); err != nil {
		return err
	}
	r.tower, err = chain.New(r.chainOptions())
	return err
}

func (r *running) chainOptions() chain.Options {
	o := chain.Options{
		Contracts: Contracts(r.config), PollInterval: r.config.Chain.PollInterval, Store: r.redeemed,
		Journal: r.attestor.Journal,
		Signers: r.chainSigners,
		Halted:  func() bool { return r.store.Stop.State().Halted != nil },
		Events:  r.events, Version: r.options.Version, Log: r.logger,
	}
	if r.config.HasQuorum() {
		o.Quorum, _ = appliance.ParseAddress(r.config.Quorum.Contract) // validated
		o.Members, o.Threshold = r.quorum, r.config.Quorum.Threshold
	}
	if r.config.Chain.Halt {
		o.Halt = r.store.Stop.Halt
	}
	return o
}

// chainSigners returns all current attestor keys, the default key first.
func (r *running) chainSigners() []attest.Signer {
	one := r.attestor.DefaultKey().Signer
	all := []attest.Signer{one}
	for _, k := range r.attestor.AttestorKeys() {
		if k.Signer != nil && k.Signer.Address() != one.Address() {
			all = append(all, k.Signer)
		}
	}
	return all
}

// watchChains watches until ctx ends or stop is called. stop waits for the end.
func (r *running) watchChains(ctx context.Context) (stop func()) {
	if r.tower == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	var done sync.WaitGroup
	for _, c := range r.config.Chain.Contracts {
		r.logger.Info("chain: watching a contract", "contract", c.Name, "address", c.Address, "rpcs", len(c.RPC),
			"halt", r.config.Chain.Halt)
	}
	done.Go(func() { _ = r.tower.Run(ctx) }) // it ends with ctx only
	return func() {
		cancel()
		done.Wait()
	}
}

// chainReady returns api.Options.ChainReady, which is nil if no contract is watched.
func (r *running) chainReady() func() error {
	if r.tower == nil {
		return nil
	}
	return r.tower.Ready
}
