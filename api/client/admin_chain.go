package client

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/attestd/attestd/api/wire"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/chain"
)

// ChainStatus returns the status of the watched contracts.
//
// Errors: CodeNotFound if no contract is watched.
func (a *Admin) ChainStatus(ctx context.Context) (s chain.Status, err error) {
	err = a.do(ctx, call{method: http.MethodGet, path: "/chain", into: &s})
	return s, err
}

// Redemptions calls yield with each redemption, by contract and block, until the end or an error of yield.
//
// Errors: CodeNotFound if no contract is watched.
func (a *Admin) Redemptions(ctx context.Context, yield func(chain.Redemption) error) error {
	const path = "/chain/redemptions"
	return a.lines(ctx, call{method: http.MethodGet, path: path}, func(line []byte) error {
		var r chain.Redemption
		if err := json.Unmarshal(line, &r); err != nil {
			return fmt.Errorf("read the answer of %s: %w", path, err)
		}
		return yield(r)
	})
}

// Redeemed returns the redemptions of the given hashes, at most wire.MaxHashes at once. It omits hashes that were not
// redeemed.
//
// Errors: CodeNotFound if no contract is watched.
func (a *Admin) Redeemed(ctx context.Context, hashes []appliance.Digest) ([]chain.Redeemed, error) {
	var answer wire.Redeemed
	err := a.do(ctx,
		call{method: http.MethodPost, path: "/chain/redeemed", body: wire.RedeemedQuery{Hashes: hashes}, into: &answer})
	return answer.Redeemed, err
}
