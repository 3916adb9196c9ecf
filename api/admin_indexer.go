package api

import (
	"context"

	"github.com/gofiber/fiber/v2"

	"github.com/attestd/attestd/api/wire"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/index/indexer"
)

// Indexer reads chains into the replica. *indexer.Indexer implements it.
type Indexer interface {
	Status() []indexer.Status
	Rescan(ctx context.Context, chain string, blocks indexer.Range) error
}

func (a *Admin) indexerRoutes() []Route {
	return []Route{
		{Method: fiber.MethodGet, Path: "/indexer", Handler: a.indexerStatus},
		{Method: fiber.MethodPost, Path: "/indexer/rescan", BodyLimit: adminBodyLimit, Handler: a.indexerRescan},
	}
}

func (a *Admin) requireIndexer() error {
	if a.opts.Indexer == nil {
		return appliance.Errorf(appliance.CodeNotFound, "this daemon reads no chains: set graphql.source chains")
	}
	return nil
}

func (a *Admin) indexerStatus(c *fiber.Ctx) error {
	if err := a.requireIndexer(); err != nil {
		return err
	}
	return sendJSON(c, fiber.StatusOK, wire.IndexerStatus{Chains: a.opts.Indexer.Status()})
}

func (a *Admin) indexerRescan(c *fiber.Ctx) error {
	if err := a.requireIndexer(); err != nil {
		return err
	}
	var request wire.IndexerRescan
	if err := wire.ReadObject(Body(c), &request); err != nil {
		return err
	}
	ctx, cancel := a.deadline()
	defer cancel()
	if err := a.opts.Indexer.Rescan(ctx, request.Chain, request.Range); err != nil {
		return err
	}
	return sendJSON(c, fiber.StatusAccepted, wire.IndexerStatus{Chains: a.opts.Indexer.Status()})
}
