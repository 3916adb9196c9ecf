package api

import (
	"context"

	"github.com/gofiber/fiber/v2"

	"github.com/attestd/attestd/api/wire"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/approval"
)

func (a *Admin) approvalRoutes() []Route {
	return []Route{
		{Method: fiber.MethodGet, Path: "/approvals", Handler: a.approvals},
		{Method: fiber.MethodGet, Path: "/approvals/:id", Handler: a.approval},
		{Method: fiber.MethodPost, Path: "/approvals/:id/approve", BodyLimit: adminBodyLimit, Handler: a.approve},
		{Method: fiber.MethodPost, Path: "/approvals/:id/deny", Handler: a.deny},
		{Method: fiber.MethodGet, Path: "/approvers", Handler: a.approvers},
		{Method: fiber.MethodPost, Path: "/approvers", BodyLimit: adminBodyLimit, Handler: a.enrol},
		{Method: fiber.MethodPost, Path: "/approvers/remove", BodyLimit: adminBodyLimit, Handler: a.removeApprover},
	}
}

// desk returns the attestor's approvals, or CodeNotFound.
func (a *Admin) desk() (*approval.Approvals, error) {
	if a.attestor.Approvals == nil {
		return nil, appliance.Errorf(appliance.CodeNotFound, "this daemon keeps no approvals")
	}
	return a.attestor.Approvals, nil
}

// answerApproval answers with the approval that do returns.
func (a *Admin) answerApproval(c *fiber.Ctx,
	do func(ctx context.Context, desk *approval.Approvals) (approval.Listed, error)) error {
	desk, err := a.desk()
	if err != nil {
		return err
	}
	ctx, cancel := a.deadline()
	defer cancel()
	one, err := do(ctx, desk)
	if err != nil {
		return err
	}
	return sendJSON(c, fiber.StatusOK, one)
}

func (a *Admin) approvals(c *fiber.Ctx) error {
	desk, err := a.desk()
	if err != nil {
		return err
	}
	ctx, cancel := a.deadline()
	defer cancel()
	all, err := desk.List(ctx)
	if err != nil {
		return err
	}
	return sendJSON(c, fiber.StatusOK, wire.Approvals{Approvals: all})
}

func (a *Admin) approval(c *fiber.Ctx) error {
	id, err := parseID(c.Params("id"))
	if err != nil {
		return err
	}
	return a.answerApproval(c, func(ctx context.Context, d *approval.Approvals) (approval.Listed, error) {
		return d.Show(ctx, id)
	})
}

func (a *Admin) approve(c *fiber.Ctx) error {
	id, err := parseID(c.Params("id"))
	if err != nil {
		return err
	}
	var proof approval.Assertion
	if err := wire.ReadObject(Body(c), &proof); err != nil {
		return err
	}
	by := callerOf(c)
	return a.answerApproval(c, func(ctx context.Context, d *approval.Approvals) (approval.Listed, error) {
		return d.Approve(ctx, id, proof, by)
	})
}

func (a *Admin) deny(c *fiber.Ctx) error {
	id, err := parseID(c.Params("id"))
	if err != nil {
		return err
	}
	by := callerOf(c)
	return a.answerApproval(c, func(ctx context.Context, d *approval.Approvals) (approval.Listed, error) {
		one, err := d.Deny(ctx, id, by)
		if err == nil {
			a.logger.Warn("an approval was denied", "approval", id.String(), "by", by)
		}
		return one, err
	})
}

func (a *Admin) approvers(c *fiber.Ctx) error {
	desk, err := a.desk()
	if err != nil {
		return err
	}
	ctx, cancel := a.deadline()
	defer cancel()
	all, err := desk.Approvers(ctx)
	if err != nil {
		return err
	}
	return sendJSON(c, fiber.StatusOK, wire.Approvers{Approvers: all})
}

func (a *Admin) enrol(c *fiber.Ctx) error {
	var r wire.Enrolment
	if err := wire.ReadObject(Body(c), &r); err != nil {
		return err
	}
	who := approval.Approver{Name: r.Name, Credential: r.Credential, PublicKey: r.PublicKey, RPID: r.RPID}
	by := callerOf(c)
	return a.answerApproval(c, func(ctx context.Context, d *approval.Approvals) (approval.Listed, error) {
		return d.Enrol(ctx, who, by)
	})
}

func (a *Admin) removeApprover(c *fiber.Ctx) error {
	var r wire.ApproverName
	if err := wire.ReadObject(Body(c), &r); err != nil {
		return err
	}
	by := callerOf(c)
	return a.answerApproval(c, func(ctx context.Context, d *approval.Approvals) (approval.Listed, error) {
		return d.Remove(ctx, r.Name, by)
	})
}
