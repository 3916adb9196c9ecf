package api

import (
	"context"
	"encoding/json"
	"fmt"
	"io"

	"github.com/gofiber/fiber/v2"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/dataset"
)

// batchLimit bounds one batch of rows, as JSON. A packet with its traces has some 10 KB.
const batchLimit = 256 << 20

func (a *Admin) replicaRoutes() []Route {
	return []Route{
		{Method: fiber.MethodGet, Path: "/replica", Handler: a.replicaStatus},
		{Method: fiber.MethodGet, Path: "/replica/position", Handler: a.replicaPosition},
		{Method: fiber.MethodPost, Path: "/replica/batches", BodyLimit: batchLimit, Handler: a.replicaWrite},
		{Method: fiber.MethodGet, Path: "/replica/records", Handler: a.replicaRecords},
	}
}

// index returns the replica, or CodeReplicaUnavailable where this daemon has none.
func (a *Admin) index() (appliance.Index, error) {
	if a.opts.Index == nil {
		return nil, appliance.Errorf(appliance.CodeReplicaUnavailable, "this daemon has no replica: graphql.source is not replica")
	}
	return a.opts.Index, nil
}

func (a *Admin) replicaStatus(c *fiber.Ctx) error {
	index, err := a.index()
	if err != nil {
		return err
	}
	ctx, cancel := a.deadline()
	defer cancel()
	var status appliance.IndexStatus
	err = index.View(ctx, func(s appliance.Snapshot) error {
		status, err = s.Status(ctx)
		return err
	})
	if err != nil {
		return err
	}
	return sendJSON(c, fiber.StatusOK, status)
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

// replicaBatch is an appliance.Batch whose rows are records as in an import.
type replicaBatch struct {
	Rows      []json.RawMessage `json:"rows"`
	Positions map[string]string `json:"positions"`
}

func (a *Admin) replicaWrite(c *fiber.Ctx) error {
	index, err := a.index()
	if err != nil {
		return err
	}
	var request replicaBatch
	if err := unmarshalStrict(c.Body(), &request); err != nil {
		return err
	}
	batch := appliance.Batch{Rows: make([]appliance.Row, len(request.Rows)), Positions: request.Positions}
	for i, record := range request.Rows {
		if batch.Rows[i], err = appliance.ParseRecord(record); err != nil {
			return appliance.Errorf(appliance.CodeInvalidField, "row %d: %s", i, err).In(fmt.Sprintf("rows[%d]", i))
		}
	}
	// Not within the deadline of small requests: a batch may be large and the disk slow.
	written, err := index.Write(a.base, batch)
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
