package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/attestd/attestd/api/client"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/store/bolt"
)

// office is what the key and log commands work through: the daemon's admin socket while it runs, else the files.
type office interface {
	CreateKey(ctx context.Context, req appliance.KeyRequest) (key appliance.APIKey, token string, err error)
	ListKeys(ctx context.Context) ([]appliance.APIKey, error)
	RevokeKey(ctx context.Context, id string) (appliance.APIKey, error)
	Records(ctx context.Context, q appliance.JournalQuery) ([]appliance.Entry, error)
	Record(ctx context.Context, id uuid.UUID) (appliance.Entry, error)
	Entries(ctx context.Context, first int64, yield func(leaf []byte) error) error
	Checkpoint(ctx context.Context) ([]byte, error)
	Prove(ctx context.Context, id uuid.UUID) (appliance.Entry, appliance.InclusionProof, error)
	Verify(ctx context.Context, opts appliance.VerifyOptions) (appliance.AuditReport, error)
	io.Closer
}

// office opens whichever way in there is. The caller closes it.
func (a *app) office(ctx context.Context) (office, error) {
	c, err := a.config(nil)
	if err != nil {
		return nil, err
	}
	daemon := client.NewAdmin(c.Admin.Socket)
	_, err = daemon.Status(ctx)
	if err == nil {
		return daemon, nil
	}
	if !errors.Is(err, client.ErrNotRunning) {
		return nil, fmt.Errorf("admin socket %s: %w", c.Admin.Socket, err)
	}
	store, _, err := openStore(c, slog.New(slog.DiscardHandler), nil)
	if errors.Is(err, bolt.ErrInUse) {
		return nil, fmt.Errorf("%w, and it does not answer on the admin socket %s", err, c.Admin.Socket)
	}
	if err != nil {
		return nil, err
	}
	return files{store}, nil
}

// withOffice is the body of a command that needs the office.
func (a *app) withOffice(cmd *cobra.Command, do func(office) error) error {
	office, err := a.office(cmd.Context())
	if err != nil {
		return err
	}
	return errors.Join(do(office), office.Close())
}

// files is the office without a daemon.
type files struct{ store *bolt.Store }

func (f files) CreateKey(ctx context.Context, req appliance.KeyRequest) (appliance.APIKey, string, error) {
	key, token, err := appliance.NewAPIKey(req, time.Now())
	if err != nil {
		return appliance.APIKey{}, "", err
	}
	return key, token, f.store.Keys().Create(ctx, key)
}

func (f files) ListKeys(ctx context.Context) ([]appliance.APIKey, error) {
	return f.store.Keys().List(ctx)
}

func (f files) RevokeKey(ctx context.Context, id string) (appliance.APIKey, error) {
	return f.store.Keys().Revoke(ctx, id, time.Now())
}

func (f files) Records(ctx context.Context, q appliance.JournalQuery) ([]appliance.Entry, error) {
	return f.store.Journal().List(ctx, q)
}

func (f files) Record(ctx context.Context, id uuid.UUID) (appliance.Entry, error) {
	return f.store.Journal().ByID(ctx, id)
}

func (f files) Entries(ctx context.Context, first int64, yield func(leaf []byte) error) error {
	return f.store.Journal().Entries(ctx, first, func(e appliance.Entry) error { return yield(e.Leaf) })
}

func (f files) Checkpoint(ctx context.Context) ([]byte, error) {
	return f.store.Journal().Checkpoint(ctx)
}

func (f files) Prove(ctx context.Context, id uuid.UUID) (appliance.Entry, appliance.InclusionProof, error) {
	e, err := f.store.Journal().ByID(ctx, id)
	if err != nil {
		return appliance.Entry{}, appliance.InclusionProof{}, err
	}
	proof, err := f.store.Journal().Prove(ctx, e.Index)
	return e, proof, err
}

func (f files) Verify(ctx context.Context, opts appliance.VerifyOptions) (appliance.AuditReport, error) {
	return f.store.Journal().Verify(ctx, opts)
}

func (f files) Close() error { return f.store.Close() }
