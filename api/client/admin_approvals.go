package client

import (
	"context"
	"net/http"

	"github.com/google/uuid"

	"github.com/attestd/attestd/api/wire"
	"github.com/attestd/attestd/appliance/approval"
)

// Approvals returns the approvals of the last 30 days and those that wait, newest first.
func (a *Admin) Approvals(ctx context.Context) ([]approval.Listed, error) {
	var answer wire.Approvals
	err := a.do(ctx, call{method: http.MethodGet, path: "/approvals", into: &answer})
	return answer.Approvals, err
}

// Approval returns one approval.
func (a *Admin) Approval(ctx context.Context, id uuid.UUID) (one approval.Listed, err error) {
	err = a.do(ctx, call{method: http.MethodGet, path: "/approvals/" + id.String(), into: &one})
	return one, err
}

// Approve sends a person's approval.
func (a *Admin) Approve(ctx context.Context, id uuid.UUID,
	proof approval.Assertion) (one approval.Listed, err error) {
	err = a.do(ctx,
		call{method: http.MethodPost, path: "/approvals/" + id.String() + "/approve", body: proof, into: &one})
	return one, err
}

// Deny denies an approval that waits.
func (a *Admin) Deny(ctx context.Context, id uuid.UUID) (one approval.Listed, err error) {
	err = a.do(ctx, call{method: http.MethodPost, path: "/approvals/" + id.String() + "/deny", into: &one})
	return one, err
}

// Approvers returns the enrolled passkeys.
func (a *Admin) Approvers(ctx context.Context) ([]approval.Approver, error) {
	var answer wire.Approvers
	err := a.do(ctx, call{method: http.MethodGet, path: "/approvers", into: &answer})
	return answer.Approvers, err
}

// EnrolApprover asks the approvers to approve a new passkey. The first passkey needs nobody.
func (a *Admin) EnrolApprover(ctx context.Context, e wire.Enrolment) (one approval.Listed, err error) {
	err = a.do(ctx, call{method: http.MethodPost, path: "/approvers", body: e, into: &one})
	return one, err
}

// RemoveApprover asks the approvers to approve that a person's passkeys are removed.
func (a *Admin) RemoveApprover(ctx context.Context, name string) (one approval.Listed, err error) {
	err = a.do(ctx, call{method: http.MethodPost, path: "/approvers/remove", body: wire.ApproverName{Name: name},
		into: &one})
	return one, err
}
