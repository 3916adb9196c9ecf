package client

import (
	"context"
	"net/http"

	"github.com/attestd/attestd/api/wire"
	"github.com/attestd/attestd/appliance/index/indexer"
)

// IndexerStatus returns the state of each indexed chain.
//
// Errors: CodeNotFound if no chains are read.
func (a *Admin) IndexerStatus(ctx context.Context) (s wire.IndexerStatus, err error) {
	err = a.do(ctx, call{method: http.MethodGet, path: "/indexer", into: &s})
	return s, err
}

// RescanChain asks for blocks of a chain to be read again. It does not wait for the end.
//
// Errors: CodeNotFound if no chains are read, or not that one; CodeInvalidField for a range that was not read.
func (a *Admin) RescanChain(ctx context.Context, chain string, blocks indexer.Range) error {
	var status wire.IndexerStatus
	return a.do(ctx, call{method: http.MethodPost, path: "/indexer/rescan",
		body: wire.IndexerRescan{Chain: chain, Range: blocks}, into: &status})
}
