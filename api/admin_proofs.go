package api

import (
	"context"

	"github.com/gofiber/fiber/v2"

	"github.com/attestd/attestd/api/wire"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/index"
	"github.com/attestd/attestd/appliance/index/indexer"
)

// Verifier checks packets of the replica against their chains. *indexer.Verifier implements it.
type Verifier interface {
	Prove(ctx context.Context, idx index.Index, packet string) (*indexer.PacketProof, error)
	CheckReplica(ctx context.Context, o indexer.ReplicaCheck) (indexer.ReplicaReport, error)
}

func (a *Admin) proofRoutes() []Route {
	return []Route{
		{Method: fiber.MethodPost, Path: "/replica/proof", BodyLimit: adminBodyLimit, Handler: a.replicaProof},
		{Method: fiber.MethodPost, Path: "/replica/verify-chain", BodyLimit: adminBodyLimit,
			Handler: a.replicaVerifyChain},
	}
}

// requireVerifier returns the replica, or an error without a replica or without a configured chain.
func (a *Admin) requireVerifier() (index.Index, error) {
	replica, err := a.replica()
	if err == nil && a.opts.Verifier == nil {
		err = appliance.Errorf(appliance.CodeNotFound,
			"this daemon knows no chains: set indexer.chains and restart attestd")
	}
	return replica, err
}

func (a *Admin) replicaProof(c *fiber.Ctx) error {
	replica, err := a.requireVerifier()
	if err != nil {
		return err
	}
	var request wire.ProvePacket
	if err := wire.ReadObject(Body(c), &request); err != nil {
		return err
	}
	ctx, cancel := a.deadline()
	defer cancel()
	proof, err := a.opts.Verifier.Prove(ctx, replica, request.Packet)
	if err != nil {
		return err
	}
	return sendJSON(c, fiber.StatusOK, proof)
}

func (a *Admin) replicaVerifyChain(c *fiber.Ctx) error {
	replica, err := a.requireVerifier()
	if err != nil {
		return err
	}
	var request wire.VerifyChain
	if err := wire.ReadObject(Body(c), &request); err != nil {
		return err
	}
	return streamReport(a, c,
		func(ctx context.Context, progress func(done, total int64)) (indexer.ReplicaReport, error) {
			return a.opts.Verifier.CheckReplica(ctx, indexer.ReplicaCheck{Index: replica, Chain: request.Chain,
				Range: request.Range, Restart: request.Restart, Keep: request.Keep, OnProgress: progress})
		})
}
