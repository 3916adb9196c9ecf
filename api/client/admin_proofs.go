package client

import (
	"context"
	"net/http"

	"github.com/attestd/attestd/api/wire"
	"github.com/attestd/attestd/appliance/index/indexer"
)

// ProvePacket returns the proof of a packet of the daemon's replica.
//
// Errors: CodeNotFound if the replica does not have the packet, or its chain is not configured;
// CodeUpstreamUnavailable if the chain cannot be read; CodeReplicaUnavailable if there is no replica.
func (a *Admin) ProvePacket(ctx context.Context, packet string) (p *indexer.PacketProof, err error) {
	err = a.do(ctx, call{method: http.MethodPost, path: "/replica/proof", body: wire.ProvePacket{Packet: packet},
		into: &p})
	return p, err
}

// VerifyChain makes the daemon check packets of its replica against the chain that they were sent on. The check ends
// when ctx ends, and continues with the next call. progress may be nil.
//
// Errors: like ProvePacket.
func (a *Admin) VerifyChain(ctx context.Context, request wire.VerifyChain,
	progress func(done, total int64)) (indexer.ReplicaReport, error) {
	return lastLine[indexer.ReplicaReport](ctx, a,
		call{method: http.MethodPost, path: "/replica/verify-chain", body: request}, progress)
}
