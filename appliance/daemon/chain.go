package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/attest"
	"github.com/attestd/attestd/appliance/chain"
	"github.com/attestd/attestd/appliance/config"
	"github.com/attestd/attestd/appliance/files"
	"github.com/attestd/attestd/appliance/journal"
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

// watchtower watches the contracts of chain.contracts. It is nil if there are none.
type watchtower struct {
	*chain.Watchtower
	redeemed *redemptions.Store // redemptions that it has read
	logger   *slog.Logger
	config   *config.Config
}

// openWatchtower returns nil if no contract is watched. It sets aside an unusable file, because its content is on the
// chains.
func openWatchtower(c *config.Config, o chain.Options) (*watchtower, error) {
	if len(c.Chain.Contracts) == 0 {
		return nil, nil
	}
	path, room := ChainPath(c), roomForJournal*int64(c.Journal.MinFree)
	owner, err := service.UserOf(c.DataDir)
	if err != nil {
		return nil, err
	}
	w := &watchtower{logger: o.Log, config: c}
	err = owner.Do(func() error {
		if w.redeemed, err = redemptions.Open(path, room); err == nil || !errors.Is(err, redemptions.ErrDamaged) {
			return err
		}
		aside := path + ".damaged-" + time.Now().UTC().Format("20060102T150405Z")
		o.Log.Error(
			"chain: the file of redemptions is damaged and was set aside; the watchtower reads the chain again",
			"aside", aside, "error", err.Error())
		if err := os.Rename(path, aside); err != nil {
			return err
		}
		w.redeemed, err = redemptions.Open(path, room)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("chain: %w", err)
	}
	o.Store, o.Contracts, o.PollInterval = w.redeemed, Contracts(c), c.Chain.PollInterval
	if err = files.HandOver(c.DataDir, ChainFile); err == nil {
		w.Watchtower, err = chain.New(o)
	}
	if err != nil {
		return nil, errors.Join(err, w.redeemed.Close())
	}
	return w, nil
}

// chainOptions returns the parts of the daemon that the watchtower uses.
func (r *running) chainOptions() chain.Options {
	o := chain.Options{
		Journal: r.attestor.Journal,
		Signers: r.chainSigners,
		Halted:  func() bool { return r.store.Stop.State().Halted != nil },
		Events:  r.events, Version: r.options.Version, Log: r.logger,
		Redeemed: func(ctx context.Context, e journal.Event) error {
			_, err := r.attestor.Journal.AppendEvent(ctx, e)
			return err
		},
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

// run watches until ctx ends or stop is called. stop waits for the end.
func (w *watchtower) run(ctx context.Context) (stop func()) {
	if w == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	var done sync.WaitGroup
	for _, c := range w.config.Chain.Contracts {
		w.logger.Info("chain: watching a contract", "contract", c.Name, "address", c.Address, "rpcs", len(c.RPC),
			"halt", w.config.Chain.Halt)
	}
	done.Go(func() { _ = w.Run(ctx) }) // it ends with ctx only
	return func() {
		cancel()
		done.Wait()
	}
}

// ready returns api.Options.ChainReady, which is nil if no contract is watched.
func (w *watchtower) ready() func() error {
	if w == nil {
		return nil
	}
	return w.Ready
}

func (w *watchtower) close() error {
	if w == nil {
		return nil
	}
	return w.redeemed.Close()
}
