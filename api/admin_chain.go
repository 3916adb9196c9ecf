package api

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"

	"github.com/gofiber/fiber/v2"

	"github.com/attestd/attestd/api/wire"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/chain"
)

func (a *Admin) chainRoutes() []Route {
	return []Route{
		{Method: fiber.MethodGet, Path: "/chain", Handler: a.chainStatus},
		{Method: fiber.MethodGet, Path: "/chain/redemptions", Handler: a.redemptions},
		{Method: fiber.MethodPost, Path: "/chain/redeemed", BodyLimit: adminBodyLimit, Handler: a.redeemed},
	}
}

// noContracts is the error of the chain routes if no contract is watched.
func noContracts() error {
	return appliance.Errorf(appliance.CodeNotFound, "no contract is watched: set chain.contracts")
}

func (a *Admin) chainStatus(c *fiber.Ctx) error {
	if a.opts.Chain == nil {
		return noContracts()
	}
	status, err := a.opts.Chain.Status()
	if err != nil {
		return err
	}
	return sendJSON(c, fiber.StatusOK, status)
}

// redemptions streams all redemptions as JSON, one per line.
func (a *Admin) redemptions(c *fiber.Ctx) error {
	if a.opts.Redemptions == nil {
		return noContracts()
	}
	return a.stream(c, func(ctx context.Context, w io.Writer) error {
		out := bufio.NewWriterSize(w, 32<<10)
		encoder := json.NewEncoder(out)
		err := a.opts.Redemptions.Each(func(r chain.Redemption) error {
			if err := ctx.Err(); err != nil {
				return err
			}
			return encoder.Encode(r)
		})
		return errors.Join(err, out.Flush())
	})
}

// redeemed answers with the redemptions of the requested hashes. Hashes that were never redeemed are left out.
func (a *Admin) redeemed(c *fiber.Ctx) error {
	if a.opts.Redemptions == nil {
		return noContracts()
	}
	var request wire.RedeemedQuery
	if err := wire.ReadObject(Body(c), &request); err != nil {
		return err
	}
	answer := wire.Redeemed{Redeemed: []chain.Redeemed{}}
	for _, hash := range request.Hashes {
		parts, err := a.opts.Redemptions.ByHash(hash)
		if err != nil {
			return err
		}
		if len(parts) > 0 {
			answer.Redeemed = append(answer.Redeemed, chain.Sum(parts))
		}
	}
	return sendJSON(c, fiber.StatusOK, answer)
}
