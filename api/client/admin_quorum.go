package client

import (
	"context"
	"net/http"

	"github.com/attestd/attestd/appliance/quorum"
)

// QuorumStatus asks all other members of the quorum for their state.
//
// Errors: CodeNotFound if the appliance signs alone.
func (a *Admin) QuorumStatus(ctx context.Context) (s quorum.Status, err error) {
	err = a.do(ctx, call{method: http.MethodGet, path: "/quorum", into: &s})
	return s, err
}

// QuorumTest asks all other members for a trial signature.
//
// Errors: CodeNotFound if the appliance signs alone.
func (a *Admin) QuorumTest(ctx context.Context) (s quorum.Status, err error) {
	err = a.do(ctx, call{method: http.MethodPost, path: "/quorum/test", into: &s})
	return s, err
}
