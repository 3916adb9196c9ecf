package api

import (
	"cmp"
	"context"
	"fmt"
	"io"

	"github.com/gofiber/fiber/v2"

	"github.com/attestd/attestd/api/wire"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/index"
	"github.com/attestd/attestd/appliance/index/dataset"
	"github.com/attestd/attestd/appliance/index/follower"
	"github.com/attestd/attestd/appliance/journal"
)

// batchLimit bounds the JSON of a batch of rows, in bytes. A packet with its traces takes about 10 KB.
const batchLimit = 256 << 20

func (a *Admin) replicaRoutes() []Route {
	return []Route{
		{Method: fiber.MethodGet, Path: "/replica", Handler: a.replicaStatus},
		{Method: fiber.MethodGet, Path: "/replica/unverified", Handler: a.replicaUnverified},
		{Method: fiber.MethodGet, Path: "/replica/lag", Handler: a.replicaLag},
		{Method: fiber.MethodGet, Path: "/replica/position", Handler: a.replicaPosition},
		{Method: fiber.MethodPost, Path: "/replica/batches", BodyLimit: batchLimit, Handler: a.replicaWrite},
		{Method: fiber.MethodGet, Path: "/replica/records", Handler: a.replicaRecords},
		{Method: fiber.MethodPost, Path: "/replica/sync", Handler: a.replicaSync},
		{Method: fiber.MethodPost, Path: "/replica/verify", BodyLimit: adminBodyLimit, Handler: a.replicaVerify},
	}
}

// replica returns the replica, or CodeReplicaUnavailable if this daemon has none.
func (a *Admin) replica() (index.Index, error) {
	if a.opts.Replica == nil {
		return nil, appliance.Errorf(appliance.CodeReplicaUnavailable, "this daemon does not serve a replica: "+
			"graphql.source is not replica")
	}
	return a.opts.Replica, nil
}

func (a *Admin) replicaStatus(c *fiber.Ctx) error {
	if _, err := a.replica(); err != nil {
		return err
	}
	ctx, cancel := a.deadline()
	defer cancel()
	status, err := a.replicaHolds(ctx)
	if err != nil {
		return err
	}
	return sendJSON(c, fiber.StatusOK, status)
}

// replicaUnverified lists the quarantined rows.
func (a *Admin) replicaUnverified(c *fiber.Ctx) error {
	replica, err := a.replica()
	if err != nil {
		return err
	}
	limit, err := queryLimit(c)
	if err != nil {
		return err
	}
	ctx, cancel := a.deadline()
	defer cancel()
	var answer wire.Unverified
	if answer.Rows, answer.Total, err = follower.ListQuarantined(ctx, replica,
		cmp.Or(limit, journal.DefaultListed)); err != nil {
		return err
	}
	return sendJSON(c, fiber.StatusOK, answer)
}

// requireFollower returns CodeReplicaUnavailable unless the replica follows an upstream.
func (a *Admin) requireFollower() error {
	if _, err := a.replica(); err != nil || a.opts.Follower != nil {
		return err
	}
	return appliance.Errorf(appliance.CodeReplicaUnavailable, "this daemon's replica does not follow an upstream: "+
		"set graphql.upstream and restart attestd")
}

// replicaSync wakes the follower, which then polls the upstream for newer rows. It does not wait for the poll: a later
// status shows the result.
func (a *Admin) replicaSync(c *fiber.Ctx) error {
	if err := a.requireFollower(); err != nil {
		return err
	}
	a.opts.Follower.Wake()
	return a.replicaStatus(c)
}

func (a *Admin) replicaVerify(c *fiber.Ctx) error {
	if err := a.requireFollower(); err != nil {
		return err
	}
	var request wire.VerifyReplica
	if err := wire.ReadObject(Body(c), &request); err != nil {
		return err
	}
	if request.Sample < 0 {
		return appliance.Errorf(appliance.CodeInvalidField, "must not be negative").In("sample")
	}
	return streamReport(a, c, func(ctx context.Context, progress func(done, total int64)) (follower.Report, error) {
		return follower.Verify(ctx, follower.VerifyOptions{
			Index: a.opts.Replica, Upstream: a.opts.Upstream, Sample: request.Sample,
			OnProgress: func(done, total int) { progress(int64(done), int64(total)) },
		})
	})
}

func (a *Admin) replicaPosition(c *fiber.Ctx) error {
	replica, err := a.replica()
	if err != nil {
		return err
	}
	ctx, cancel := a.deadline()
	defer cancel()
	var p wire.Position
	if p.Position, p.Found, err = dataset.Into(replica).Position(ctx, c.Query("name")); err != nil {
		return err
	}
	return sendJSON(c, fiber.StatusOK, p)
}

func (a *Admin) replicaWrite(c *fiber.Ctx) error {
	replica, err := a.replica()
	if err != nil {
		return err
	}
	var request wire.Batch
	if err := wire.ReadObject(Body(c), &request); err != nil {
		return err
	}
	batch := index.Batch{Rows: make([]index.Row, len(request.Rows)), Positions: request.Positions, Index: request.Index}
	for i, record := range request.Rows {
		if batch.Rows[i], err = index.ParseLine(record); err != nil {
			return appliance.Errorf(appliance.CodeInvalidField, "row %d: %s", i, err).In(fmt.Sprintf("rows[%d]", i))
		}
	}
	// The deadline of other requests does not apply: a batch may be large and the disk slow.
	written, err := replica.Write(a.base, batch)
	if err != nil {
		return err
	}
	return sendJSON(c, fiber.StatusOK, written)
}

func (a *Admin) replicaRecords(c *fiber.Ctx) error {
	replica, err := a.replica()
	if err != nil {
		return err
	}
	return a.stream(c, func(ctx context.Context, w io.Writer) error {
		_, err := dataset.Export(ctx, replica, w, dataset.ExportOptions{})
		return err
	})
}
