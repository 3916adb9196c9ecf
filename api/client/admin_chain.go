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

// ChainStatus returns how the contracts are watched.
//
// Errors: CodeNotFound where none is.
func (a *Admin) ChainStatus(ctx context.Context) (s chain.Status, err error) {
	err = a.do(ctx, call{method: http.MethodGet, path: "/chain", into: &s})
	return s, err
}

// Redemptions calls yield with each redemption, by contract and block, until the end or an error of yield's.
//
// Errors: CodeNotFound where no contract is watched.
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

// Redeemed returns, of the hashes, those that were redeemed: at most wire.MaxHashes at once.
//
// Errors: CodeNotFound where no contract is watched.
func (a *Admin) Redeemed(ctx context.Context, hashes []appliance.Digest) ([]chain.Redeemed, error) {
	var answer wire.Redeemed
	err := a.do(ctx, call{method: http.MethodPost, path: "/chain/redeemed", body: wire.RedeemedQuery{Hashes: hashes}, into: &answer})
	return answer.Redeemed, err
}
