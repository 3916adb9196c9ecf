// Package daemon runs one appliance from its configuration: it opens the store, the HSM and the servers, connects them,
// reloads them, and closes them. Commands that use the same files and the same upstream open them here, too.
package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/url"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/attestd/attestd/api"
	"github.com/attestd/attestd/api/wire"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/attest"
	"github.com/attestd/attestd/appliance/config"
	"github.com/attestd/attestd/appliance/history"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/appliance/quorum"
	"github.com/attestd/attestd/appliance/webhooks"
	"github.com/attestd/attestd/appliance/witness"
	"github.com/attestd/attestd/hsm/worker"
	"github.com/attestd/attestd/store/bolt"
)

// Options are the optional parts of Serve.
type Options struct {
	Version   string                         // of attestd, for logs and status
	Ready     func(Ready) error              // called once all servers listen
	Load      func() (*config.Config, error) // reads the configuration again; nil disables reloads
	Level     *slog.LevelVar                 // of the logger; nil means a fixed level
	AccessLog *slog.Logger                   // for requests with a status below 500; nil means the log
	// number of dropped log lines since the start; nil means that none can be dropped
	LogDropped func() uint64
	Sockets    []net.Listener            // for the API, instead of server.listen
	Doctor     func(context.Context) any // runs doctor for the console; nil means no findings

	Exit         func(status int) // ends the process if a part does not end; nil means os.Exit
	EndsOnHangup bool             // SIGHUP does not reload: the caller ends ctx at it
}

// Ready describes a daemon that answers requests.
type Ready struct {
	API       net.Addr
	Metrics   net.Addr // nil if metrics are off
	Console   *url.URL // nil if the console is off
	Signer    appliance.Address
	PublicKey []byte // SEC 1, uncompressed
}

// running holds the parts of a running daemon.
type running struct {
	options  Options
	logger   *slog.Logger
	registry *prometheus.Registry
	started  time.Time

	config    *config.Config // as of the start
	reloading sync.Mutex     // held by a reload
	loaded    *config.Config // the newest, whose reloadable settings are in effect; guarded by reloading

	store         *Store
	continued     chan successor // receives the log that continues the journal
	witnesses     *witness.Gatherer
	events        *journal.Events
	eventsRefused bool // the journal accepts no more events

	attestor         *attest.Attestor
	signer           *signers
	signs            atomic.Value // the signer's address, a string; nil until it is known
	recordedKeys     recordedKeys
	quorum           *quorum.Quorum        // nil if this appliance signs alone
	governed         atomic.Pointer[rules] // the policy files in effect; nil before the first
	demandsApprovals atomic.Bool           // the policy has rules of approvals
	seconds          atomic.Uint64         // number of warnings about a second beneficiary

	reads    *reads      // answers GraphQL
	streams  *api.Events // of events, and of subscriptions
	tower    *watchtower
	shipping shipping
	webhooks *webhooks.Hooks
	servers  servers
	history  *history.History

	tracing *tracing    // nil if no collector is configured
	overdue *time.Timer // ends the process if a part does not end; nil until the daemon stops
}

// Serve runs the daemon until ctx ends or a part of it fails.
func Serve(ctx context.Context, c *config.Config, logger *slog.Logger, o Options) (err error) {
	if o.Exit == nil {
		o.Exit = os.Exit
	}
	tuneMemory(c)
	r := &running{continued: make(chan successor, 1), config: c, loaded: c, options: o, logger: logger,
		started: time.Now(), registry: prometheus.NewRegistry()}
	hangup := make(chan os.Signal, 1)
	if !o.EndsOnHangup {
		signal.Notify(hangup, syscall.SIGHUP) // from the start, because an unhandled SIGHUP ends the process
		defer signal.Stop(hangup)
	}
	defer func() { err = errors.Join(err, r.close()) }()
	if err := r.open(ctx); err != nil {
		return err
	}
	r.history = history.Open(filepath.Join(r.config.DataDir, history.FileName), r.logger)
	endShipping, err := r.ship()
	if err != nil {
		return err
	}
	defer endShipping() // after the last append, and before the store is closed
	defer r.deliverWebhooks()()
	if err := r.listen(ctx); err != nil {
		return err
	}
	r.began()
	defer func() { r.ended(err) }()
	failed := r.servers.serve()
	if o.Ready != nil {
		if err := o.Ready(Ready{r.servers.address, r.servers.metrics, r.servers.console, r.signer.Address(),
			r.signer.PublicKey()}); err != nil {
			return err
		}
	}
	r.announce()
	watching, endWatch := context.WithCancel(context.WithoutCancel(ctx)) // continues while accepted requests finish
	defer endWatch()
	go r.watchdog(watching)
	go r.watchTokens(watching)
	go r.expireApprovals(watching)
	defer r.keepHistory(watching)()
	defer r.reads.run(ctx)() // ends before the replica is closed
	defer r.tower.run(ctx)() // ends before its file is closed
	defer r.gatherCosignatures(ctx)()
	err = r.wait(ctx, failed, hangup)
	r.logger.Info("stopping: completing accepted requests", "timeout", c.Server.ShutdownTimeout.String())
	r.notify(daemon.SdNotifyStopping)
	if errors.Is(err, bolt.ErrReplaced) { // a removed file is copied before the process ends
		r.notify(extendStop)
	}
	r.overdue = time.AfterFunc(c.Server.ShutdownTimeout+closeTimeout, r.giveUp)
	return errors.Join(err, r.servers.shutdown(c.Server.ShutdownTimeout))
}

const (
	// for all parts except the store, after the accepted requests have finished
	closeTimeout = 10 * time.Second
	extendStop   = "EXTEND_TIMEOUT_USEC=3600000000" // sd_notify(3); replaces the unit's TimeoutStopSec=
)

// giveUp ends a process whose parts do not end, for example on a hung disk. Every answered attestation is in the store.
func (r *running) giveUp() {
	r.logger.Error("stopping: a component did not stop in time; exiting without it, no issued attestation is lost")
	err := r.store.storage.Close()
	r.logger.Error("stopped", "store", fmt.Sprint(err))
	r.options.Exit(1)
}

// open opens the store and the HSM.
func (r *running) open(ctx context.Context) (err error) {
	scheme, err := r.config.Scheme()
	if err != nil {
		return err
	}
	r.attestor = &attest.Attestor{Scheme: scheme, Now: time.Now, MaxWaiting: r.config.Limits.MaxWaiting,
		Uses: new(attest.KeyUse)}
	if err := checkRegular(r.config); err != nil {
		return err
	}
	before, err := readRules(r.config.DataDir)
	if err != nil {
		return err
	}
	policy, err := before.read(r.config)
	if err != nil {
		return err
	}
	if err := checkModes(r.config); err != nil {
		return err
	}
	logins := new(worker.Logins)
	member := &Member{Version: r.options.Version, Settings: r.settingsInEffect}
	if r.store, err = OpenStore(r.config, StoreOptions{Logger: r.logger, Pending: r.attestor.Signing, Member: member,
		Logins: logins, Watch: true, Continued: r.goesOn}); err != nil {
		return err
	}
	r.attestor.Keys, r.attestor.Journal, r.attestor.Stopped = r.store.Keys, r.store.Journal, r.store.Stop.Stopped
	record := func(e journal.Event) { r.events.Record(e) } // r.events is set before a witness is asked
	if r.witnesses, err = OpenWitnesses(r.config, r.store,
		WitnessOptions{Version: r.options.Version, Logger: r.logger, Record: record}); err != nil {
		return err
	}
	if r.reads, err = openReads(r.config, r.options.Version, r.registry, r.logger); err != nil {
		return err
	}
	newest, err := r.newestSigner(ctx)
	if err != nil {
		return err
	}
	if r.tracing, err = r.openTracing(ctx); err != nil {
		return err
	}
	r.attestor.Trace = r.tracing.forParts()
	r.openEvents()
	r.governFirst(before, policy)
	r.attestor.Second = r.second
	r.signer, err = openSigners(ctx, r.config, newest, r.logger, logins, r.keysChanged)
	if err != nil {
		return err
	}
	if err := r.openQuorum(); err != nil {
		return err
	}
	if r.tower, err = openWatchtower(r.config, r.chainOptions()); err != nil {
		return err
	}
	r.measure()
	return nil
}

// newestSigner returns the address of the journal's newest record, nil if there is none. If a database does not answer,
// the check happens before the first append.
func (r *running) newestSigner(ctx context.Context) (*appliance.Address, error) {
	journal := r.attestor.Journal
	newest, err := newestSigner(ctx, journal)
	code := appliance.CodeOf(err)
	if r.config.Store.URL == "" || code != appliance.CodeJournalUnavailable && code != appliance.CodeTimeout {
		return newest, err
	}
	r.logger.Warn("journal: the database is unavailable; attestd starts without it, and attests once it is available",
		"error", err.Error())
	if key := r.config.DefaultKey(); key.Address == "" {
		r.attestor.Journal = &unproven{Journal: journal, check: func(ctx context.Context) error {
			newest, err := newestSigner(ctx, journal)
			if err != nil {
				return err
			}
			return CheckSigner(key, r.signer.Address(), newest)
		}}
	}
	return nil, nil
}

func (r *running) adminOptions() api.AdminOptions {
	o := api.AdminOptions{
		Attestor:  r.attestor,
		HSMStatus: func(ctx context.Context) (any, error) { return r.signer.Status(ctx) },
		Reload:    r.reload,
		Backup: func(ctx context.Context, w io.Writer) error {
			return r.store.Backup(ctx, w, r.options.Version)
		},
		BackupFile:   filepath.Join(r.config.DataDir, "last-backup"),
		BackupMaxAge: r.config.Backup.MaxAge,
		Report:       r.store.Report,
		Stop:         r.store.Stop,
		Events:       r.events,
		Witnesses:    r.witnesses,
		Sinks:        r.shipping.Status,
		Webhooks:     r.webhooks,
		Streams:      r.streams.Hub,
		Settings:     r.settings,
		Doctor:       r.options.Doctor,
		Version:      r.options.Version,
		Reads:        wire.ReadsStatus{Source: r.config.GraphQL.Source, Upstream: r.config.UpstreamShown()},
		Surroundings: r.surroundings,
		Activity:     r.servers.public.Activity(),
		History:      r.history,
		LogVerifier:  r.store.LogKey.VerifierText,
		Logger:       r.logger,
	}
	r.reads.describe(&o)
	if r.store.Database != nil {
		o.Cluster = r.store.Cluster
	}
	if r.tower != nil {
		o.Chain, o.Redemptions = r.tower.Watchtower, r.tower.redeemed
	}
	if r.quorum != nil {
		o.Quorum = r.quorum
	}
	return o
}

// announce reports to the log and to the service manager that the daemon answers requests.
func (r *running) announce() {
	r.logger.Info("ready", "version", r.options.Version, "listen", r.servers.address.String(),
		"signer", r.signer.Address().String(),
		"scheme", string(r.attestor.Scheme.Name), "records", r.records(),
		"startup", time.Since(r.started).Round(time.Millisecond).String())
	r.notify(daemon.SdNotifyReady)
}

// records returns the number of attestations in the journal, 0 if it cannot be read.
func (r *running) records() int64 {
	ctx, cancel := context.WithTimeout(context.Background(), collectTimeout)
	defer cancel()
	checkpoint, err := r.store.Guard.Journal.Checkpoint(ctx) // it is not published, so the mark need not cover it
	if err != nil {
		return 0
	}
	tree, err := journal.OpenCheckpoint(checkpoint, r.store.LogKey.Verifier)
	if err != nil {
		return 0
	}
	return tree.N
}

// notify sends a state to the service manager, if there is one.
func (r *running) notify(state string) {
	if _, err := daemon.SdNotify(false, state); err != nil {
		r.logger.Warn("cannot notify the service manager", "state", state, "error", err.Error())
	}
}

// keepHistory adds to the history until the returned function is called, which adds the last part of a minute.
func (r *running) keepHistory(ctx context.Context) (stop func()) {
	ctx, end := context.WithCancel(ctx)
	var keeping sync.WaitGroup
	keeping.Go(func() { r.history.Run(ctx, r.servers.public.Measure()) })
	return func() {
		end()
		keeping.Wait()
	}
}

// wait returns nil when ctx ends, and an error if a server or the store's disk fails before that. Until then it reloads
// at each hangup.
func (r *running) wait(ctx context.Context, failed <-chan error, hangup <-chan os.Signal) error {
	go r.reloadAt(ctx, hangup)
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-failed:
			if err == nil {
				err = errors.New("a server stopped unexpectedly")
			}
			return err
		case err := <-r.store.Failed():
			r.eventsRefused = true
			if errors.Is(err, bolt.ErrReplaced) {
				return fmt.Errorf("signing stopped: %w", err)
			}
			return fmt.Errorf(
				"the journal's disk failed and signing stopped; issued attestations are safe. Read the kernel's log: dmesg: %w", err)
		case next := <-r.continued:
			return r.follows(next)
		}
	}
}

// reloadAt reloads at each hangup until ctx ends. A file that hangs on open delays neither the end nor the handling of
// a failed disk.
func (r *running) reloadAt(ctx context.Context, hangup <-chan os.Signal) {
	for {
		select {
		case <-hangup:
			_, _ = r.reload("") // it logs the result
		case <-ctx.Done():
			return
		}
	}
}

// close closes the parts that open opened. The HSM comes first, so that no signature is made that the store cannot
// record.
func (r *running) close() error {
	var failures []error
	if r.signer != nil {
		failures = append(failures, r.signer.Close())
	}
	failures = append(failures, r.reads.close())
	if r.quorum != nil {
		r.quorum.Close()
	}
	r.closeEvents()
	r.tracing.close()
	if r.history != nil {
		failures = append(failures, r.history.Close())
	}
	failures = append(failures, r.tower.close())
	if r.overdue != nil && !r.overdue.Stop() {
		select {} // giveUp ends the process
	}
	if r.store != nil {
		failures = append(failures, r.store.Close())
	}
	return errors.Join(failures...)
}
