package api

import (
	"context"
	"encoding/json"
	"fmt"
	"io"

	"github.com/gofiber/fiber/v2"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/index"
	"github.com/attestd/attestd/appliance/index/dataset"
	"github.com/attestd/attestd/appliance/index/follower"
)

// batchLimit bounds one batch of rows, as JSON. A packet with its traces has some 10 KB.
const batchLimit = 256 << 20

func (a *Admin) replicaRoutes() []Route {
	return []Route{
		{Method: fiber.MethodGet, Path: "/replica", Handler: a.replicaStatus},
		{Method: fiber.MethodGet, Path: "/replica/position", Handler: a.replicaPosition},
		{Method: fiber.MethodPost, Path: "/replica/batches", BodyLimit: batchLimit, Handler: a.replicaWrite},
		{Method: fiber.MethodGet, Path: "/replica/records", Handler: a.replicaRecords},
		{Method: fiber.MethodPost, Path: "/replica/sync", Handler: a.replicaSync},
		{Method: fiber.MethodPost, Path: "/replica/verify", BodyLimit: adminBodyLimit, Handler: a.replicaVerify},
	}
}

// index returns the replica, or CodeReplicaUnavailable where this daemon has none.
func (a *Admin) index() (index.Index, error) {
	if a.opts.Index == nil {
		return nil, appliance.Errorf(appliance.CodeReplicaUnavailable, "this daemon has no replica: graphql.source is not replica")
	}
	return a.opts.Index, nil
}

// replicaStatus is what the replica holds, and how far its follower is.
type replicaStatus struct {
	index.Status
	Follower *follower.Status `json:"follower,omitempty"` // nil where it follows no upstream
}

func (a *Admin) replicaStatus(c *fiber.Ctx) error {
	idx, err := a.index()
	if err != nil {
		return err
	}
	ctx, cancel := a.deadline()
	defer cancel()
	var status replicaStatus
	err = idx.View(ctx, func(s index.Snapshot) error {
		status.Status, err = s.Status(ctx)
		return err
	})
	if err != nil {
		return err
	}
	if a.opts.Follower != nil {
		status.Follower = new(a.opts.Follower.Status())
	}
	return sendJSON(c, fiber.StatusOK, status)
}

// follows is CodeReplicaUnavailable where there is no replica that follows an upstream.
func (a *Admin) follows() error {
	if _, err := a.index(); err != nil || a.opts.Follower != nil {
		return err
	}
	return appliance.Errorf(appliance.CodeReplicaUnavailable, "this daemon's replica follows no upstream: set graphql.upstream, and restart it")
}

// replicaSync has the follower look for newer rows at once. What comes of it shows in the status later.
func (a *Admin) replicaSync(c *fiber.Ctx) error {
	if err := a.follows(); err != nil {
		return err
	}
	a.opts.Follower.Wake()
	return a.replicaStatus(c)
}

func (a *Admin) replicaVerify(c *fiber.Ctx) error {
	if err := a.follows(); err != nil {
		return err
	}
	var request struct {
		Sample int `json:"sample"` // rows of each kind; zero means follower.DefaultSample
	}
	if err := unmarshalStrict(c.Body(), &request); err != nil {
		return err
	}
	if request.Sample < 0 {
		return appliance.Errorf(appliance.CodeInvalidField, "must not be negative").In("sample")
	}
	return streamReport(a, c, func(ctx context.Context, progress func(done, total int64)) (follower.Report, error) {
		return follower.Verify(ctx, follower.VerifyOptions{
			Index: a.opts.Index, Upstream: a.opts.Upstream, Sample: request.Sample,
			OnProgress: func(done, total int) { progress(int64(done), int64(total)) },
		})
	})
}

// position is what an import has left under its name.
type position struct {
	Position string `json:"position"`
	Found    bool   `json:"found"`
}

func (a *Admin) replicaPosition(c *fiber.Ctx) error {
	index, err := a.index()
	if err != nil {
		return err
	}
	ctx, cancel := a.deadline()
	defer cancel()
	var p position
	if p.Position, p.Found, err = dataset.Into(index).Position(ctx, c.Query("name")); err != nil {
		return err
	}
	return sendJSON(c, fiber.StatusOK, p)
}

// replicaBatch is an index.Batch whose rows are records as in an import.
type replicaBatch struct {
	Rows      []json.RawMessage `json:"rows"`
	Positions map[string]string `json:"positions"`
}

func (a *Admin) replicaWrite(c *fiber.Ctx) error {
	idx, err := a.index()
	if err != nil {
		return err
	}
	var request replicaBatch
	if err := unmarshalStrict(c.Body(), &request); err != nil {
		return err
	}
	batch := index.Batch{Rows: make([]index.Row, len(request.Rows)), Positions: request.Positions}
	for i, record := range request.Rows {
		if batch.Rows[i], err = index.ParseLine(record); err != nil {
			return appliance.Errorf(appliance.CodeInvalidField, "row %d: %s", i, err).In(fmt.Sprintf("rows[%d]", i))
		}
	}
	// Not within the deadline of small requests: a batch may be large and the disk slow.
	written, err := idx.Write(a.base, batch)
	if err != nil {
		return err
	}
	return sendJSON(c, fiber.StatusOK, written)
}

func (a *Admin) replicaRecords(c *fiber.Ctx) error {
	index, err := a.index()
	if err != nil {
		return err
	}
	return a.stream(c, func(ctx context.Context, w io.Writer) error {
		_, err := dataset.Export(ctx, index, w, dataset.ExportOptions{})
		return err
	})
}
