package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/attestd/attestd/api/client"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/attest"
	"github.com/attestd/attestd/appliance/audit"
	"github.com/attestd/attestd/appliance/config"
	"github.com/attestd/attestd/appliance/daemon"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/appliance/report"
	"github.com/attestd/attestd/appliance/stop"
	"github.com/attestd/attestd/store/bolt"
)

// backend serves the key and log commands: the daemon's admin socket while it runs, otherwise the files (offline).
type backend interface {
	CreateKey(ctx context.Context, req appliance.KeyRequest) (key appliance.APIKey, token string, err error)
	ListKeys(ctx context.Context) ([]appliance.APIKey, error)
	RevokeKey(ctx context.Context, id string) (appliance.APIKey, error)
	BindKey(ctx context.Context, id, attestor string) (appliance.APIKey, error)
	Records(ctx context.Context, q journal.Query) ([]journal.Entry, error)
	Record(ctx context.Context, id uuid.UUID) (journal.Entry, error)
	Entries(ctx context.Context, first int64, yield func(leaf []byte) error) error
	Checkpoint(ctx context.Context) ([]byte, error)
	Published(ctx context.Context) ([]byte, error)
	Prove(ctx context.Context, id uuid.UUID) (journal.Entry, journal.InclusionProof, error)
	ProveWitnessed(ctx context.Context, id uuid.UUID) (journal.Entry, journal.InclusionProof, error)
	Verify(ctx context.Context, opts audit.Options) (audit.Report, error)
	Report(ctx context.Context, from, until time.Time, progress func(done, total int64)) (report.Signed, error)
	Pause(ctx context.Context, reason string) (stop.State, error)
	Resume(ctx context.Context) (ended stop.State, err error)
	io.Closer
}

// backend connects to the daemon, or opens the store if no daemon runs. The caller closes it.
func (a *app) backend(ctx context.Context) (backend, error) {
	c, err := a.config(nil)
	if err != nil {
		return nil, err
	}
	running := client.NewAdmin(c.Admin.Socket)
	_, err = running.Status(ctx)
	if err == nil {
		return running, nil
	}
	if !errors.Is(err, client.ErrNotRunning) {
		return nil, fmt.Errorf("admin socket %s: %w", c.Admin.Socket, err)
	}
	if !daemon.StoreExists(c) { // opening would create the store of an appliance that was never set up
		if err := daemon.RequireSetup(&a.source, c); err != nil {
			return nil, err
		}
	}
	store, err := daemon.OpenStore(c, daemon.StoreOptions{})
	if errors.Is(err, bolt.ErrInUse) {
		return nil, fmt.Errorf("%w, and does not answer on the admin socket %s", err, c.Admin.Socket)
	}
	if err != nil {
		return nil, err
	}
	return offline{store, c}, nil
}

// withBackend runs do with a backend, and closes it.
func (a *app) withBackend(cmd *cobra.Command, do func(backend) error) error {
	backend, err := a.backend(cmd.Context())
	if err != nil {
		return err
	}
	return errors.Join(do(backend), backend.Close())
}

// offline is the backend that opens the store itself while no daemon runs.
type offline struct {
	store  *daemon.Store
	config *config.Config
}

// record writes an operator's action to the journal before it is taken. If record fails, the action must not be taken.
func (f offline) record(ctx context.Context, kind journal.EventKind, details map[string]string) error {
	if err := f.store.RecordEvent(ctx, journal.Event{Kind: kind, By: operator(), Details: details}); err != nil {
		return fmt.Errorf("cannot record the event %s in the journal, so the action was not taken: %w", kind, err)
	}
	return nil
}

func (f offline) CreateKey(ctx context.Context, req appliance.KeyRequest) (appliance.APIKey, string, error) {
	if err := attest.CheckBinding(daemon.NamedKeys(f.config), req.Attestor); err != nil {
		return appliance.APIKey{}, "", err
	}
	key, token, err := appliance.NewAPIKey(req, time.Now())
	if err != nil {
		return appliance.APIKey{}, "", err
	}
	keys, err := f.store.Keys.List(ctx)
	if err != nil {
		return appliance.APIKey{}, "", err
	}
	if err := appliance.CheckNewName(keys, key.Name, time.Now()); err != nil {
		return appliance.APIKey{}, "", err
	}
	if err := f.record(ctx, journal.EventKeyCreated, key.Details()); err != nil {
		return appliance.APIKey{}, "", err
	}
	return key, token, f.store.Keys.Create(ctx, key)
}

func (f offline) ListKeys(ctx context.Context) ([]appliance.APIKey, error) {
	return f.store.Keys.List(ctx)
}

func (f offline) RevokeKey(ctx context.Context, id string) (appliance.APIKey, error) {
	key, err := f.store.Keys.Key(ctx, id)
	if err == nil {
		err = f.record(ctx, journal.EventKeyRevoked, key.Details())
	}
	if err != nil {
		return appliance.APIKey{}, err
	}
	return f.store.Keys.Revoke(ctx, id, time.Now())
}

func (f offline) BindKey(ctx context.Context, id, attestor string) (appliance.APIKey, error) {
	if err := attest.CheckBinding(daemon.NamedKeys(f.config), attestor); err != nil {
		return appliance.APIKey{}, err
	}
	key, err := f.store.Keys.Key(ctx, id)
	if err == nil {
		key.Attestor = attestor
		err = f.record(ctx, journal.EventKeyBound, key.Details())
	}
	if err != nil {
		return appliance.APIKey{}, err
	}
	return f.store.Keys.Bind(ctx, id, attestor)
}

func (f offline) Records(ctx context.Context, q journal.Query) ([]journal.Entry, error) {
	return f.store.Journal.List(ctx, q)
}

func (f offline) Record(ctx context.Context, id uuid.UUID) (journal.Entry, error) {
	return f.store.Journal.ByID(ctx, id)
}

func (f offline) Entries(ctx context.Context, first int64, yield func(leaf []byte) error) error {
	return f.store.Journal.Entries(ctx, first, func(e journal.Entry) error { return yield(e.Leaf) })
}

func (f offline) Checkpoint(ctx context.Context) ([]byte, error) {
	return f.store.Journal.Checkpoint(ctx)
}

func (f offline) Prove(ctx context.Context, id uuid.UUID) (journal.Entry, journal.InclusionProof, error) {
	e, err := f.store.Journal.ByID(ctx, id)
	if err != nil {
		return journal.Entry{}, journal.InclusionProof{}, err
	}
	proof, err := f.store.Journal.Prove(ctx, e.Index)
	return e, proof, err
}

func (f offline) Verify(ctx context.Context, opts audit.Options) (audit.Report, error) {
	if pinned, err := f.config.SignerAddresses(); err == nil {
		opts.Own = append(opts.Own, pinned...)
	}
	return f.store.Journal.Verify(ctx, opts)
}

func (f offline) Report(ctx context.Context, from, until time.Time,
	progress func(done, total int64)) (report.Signed, error) {
	o := report.Options{From: from, Until: until, By: operator(), Now: time.Now(),
		Audit: audit.Options{Progress: progress}}
	if pinned, err := f.config.SignerAddresses(); err == nil {
		o.Audit.Own = pinned
	}
	return f.store.Report(ctx, o)
}

func (f offline) Pause(ctx context.Context, reason string) (stop.State, error) {
	if err := stop.CheckReason(reason); err != nil {
		return stop.State{}, err
	}
	if err := f.record(ctx, journal.EventPaused, map[string]string{"reason": reason}); err != nil {
		return stop.State{}, err
	}
	err := f.store.Stop.Pause(ctx, reason, operator())
	return f.store.Stop.State(), err
}

func (f offline) Resume(ctx context.Context) (stop.State, error) {
	if details := f.store.Stop.State().Details(); details != nil {
		if err := f.record(ctx, journal.EventResumed, details); err != nil {
			return stop.State{}, err
		}
	}
	return f.store.Stop.Resume(ctx)
}

func (f offline) Close() error { return f.store.Close() }
