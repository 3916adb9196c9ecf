package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/attestd/attestd/api/client"
	"github.com/attestd/attestd/appliance/approval"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/appliance/text"
)

func newApproval(a *app) *cobra.Command {
	return group("approval", "Requests that wait for the approval of people: list, show, deny",
		`A policy can demand that people approve a request before it is attested (docs/approvals.md). They approve in the
console, with passkeys. The daemon must run.`,
		newApprovalList(a), newApprovalShow(a), newApprovalDeny(a))
}

func newApprovalList(a *app) *cobra.Command {
	var waiting bool
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the approvals of the last 30 days, newest first",
		Example: "  attestd approval list --waiting\n" +
			"  attestd approval list --output json",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withDaemon(cmd, "approval list", func(ctx context.Context, daemon *client.Admin) error {
				all, err := daemon.Approvals(ctx)
				if err != nil {
					return err
				}
				shown := []approval.Listed{}
				for _, one := range all {
					if !waiting || one.State == approval.Waiting {
						shown = append(shown, one)
					}
				}
				return a.print(shown, func(w io.Writer) { writeApprovals(w, shown) })
			})
		},
	}
	cmd.Flags().BoolVar(&waiting, "waiting", false, "only those that wait")
	return cmd
}

func newApprovalShow(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "show ID",
		Short:   "Show a request and who has approved it",
		Example: "  attestd approval show 019a3f0e-7c1b-7d55-9a52-0d6f3c8e1b21",
		Args:    oneArg("approval ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.onApproval(cmd, "approval show", args[0], (*client.Admin).Approval)
		},
	}
}

func newApprovalDeny(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "deny ID",
		Short: "Deny a request that waits",
		Long: `Deny a request that waits. Its client gets 403 with the code "approval_denied" from then on. The journal records
the user. A denial cannot be taken back; the client may ask again with another Idempotency-Key.`,
		Example: "  attestd approval deny 019a3f0e-7c1b-7d55-9a52-0d6f3c8e1b21",
		Args:    oneArg("approval ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.onApproval(cmd, "approval deny", args[0], (*client.Admin).Deny)
		},
	}
}

func (a *app) onApproval(cmd *cobra.Command, name, id string,
	do func(*client.Admin, context.Context, uuid.UUID) (approval.Listed, error)) error {
	which, err := uuid.Parse(id)
	if err != nil {
		return usagef(cmd, "%q is not the id of an approval, as 'attestd approval list' shows it", id)
	}
	return a.withDaemon(cmd, name, func(ctx context.Context, daemon *client.Admin) error {
		one, err := do(daemon, ctx, which)
		if err != nil {
			return err
		}
		return a.print(one, func(w io.Writer) { writeApproval(w, one) })
	})
}

// withDaemon runs an action that only a running daemon can do.
func (a *app) withDaemon(cmd *cobra.Command, name string,
	run func(ctx context.Context, daemon *client.Admin) error) error {
	c, err := a.config(nil)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), statusTimeout)
	defer cancel()
	daemon := client.NewAdmin(c.Admin.Socket)
	defer func() { _ = daemon.Close() }()
	if err := run(ctx, daemon); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

func newApprover(a *app) *cobra.Command {
	return group("approver", "The people who approve: list, remove",
		`The people who approve requests, each with one passkey or several. They enrol in the console (docs/approvals.md). The
daemon must run.`,
		newApproverList(a), newApproverRemove(a))
}

func newApproverList(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Short:   "List the enrolled passkeys",
		Example: "  attestd approver list",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withDaemon(cmd, "approver list", func(ctx context.Context, daemon *client.Admin) error {
				all, err := daemon.Approvers(ctx)
				if err != nil {
					return err
				}
				return a.print(all, func(w io.Writer) { writeApprovers(w, all) })
			})
		},
	}
}

func newApproverRemove(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "remove NAME",
		Short: "Ask the approvers to remove a person with all passkeys",
		Long: `Ask the approvers to remove a person with all passkeys. The removal takes effect when as many approvers have
approved it, in the console, as the strictest rule of the policy requires. Until then, the person can approve.`,
		Example: "  attestd approver remove bob",
		Args:    oneArg("NAME of an approver"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withDaemon(cmd, "approver remove", func(ctx context.Context, daemon *client.Admin) error {
				one, err := daemon.RemoveApprover(ctx, args[0])
				if err != nil {
					return err
				}
				return a.print(one, func(w io.Writer) { writeApproval(w, one) })
			})
		},
	}
}

func writeApprovals(w io.Writer, all []approval.Listed) {
	rows := make([][]string, len(all))
	for i, one := range all {
		rows[i] = []string{one.ID.String(), text.Time(one.Asked), string(one.State),
			fmt.Sprintf("%d of %d", len(one.Approved), one.Rule.Required), text.Time(one.Expires), approvalSubject(one)}
	}
	table(w, "ID\tASKED\tSTATE\tAPPROVED\tEXPIRES\tFOR", rows, "ASKED", "EXPIRES", "APPROVED")
}

// approvalSubject describes in one line what is to be approved.
func approvalSubject(one approval.Listed) string {
	switch one.Kind {
	case journal.EventApproverEnrolled:
		return "enrol " + one.Approver.Name
	case journal.EventApproverRemoved:
		return "remove " + one.Approver.Name
	}
	return "attest to " + one.Request.Beneficiary.String() + " for " + text.OneLine(one.KeyName)
}

func writeApproval(w io.Writer, one approval.Listed) {
	rows := [][2]string{{"approval", one.ID.String()}, {"state", string(one.State)}, {"for", approvalSubject(one)},
		{"asked", text.Time(one.Asked)}, {"expires", text.Time(one.Expires)}, {"rule", one.Rule.String()}}
	switch one.Kind {
	case journal.EventApprovalRequested:
		rows = append(rows,
			[2]string{"unspendable address", one.Request.UnspendableAddress.String()},
			[2]string{"beneficiary", one.Request.Beneficiary.String()},
			[2]string{"attested before", fmt.Sprintf("%d times to this beneficiary", one.AttestedBefore)},
			[2]string{"API key", fmt.Sprintf("%s (%s)", text.OneLine(one.KeyName), one.KeyID)},
			[2]string{"Idempotency-Key", one.IdempotencyKey})
	case journal.EventApproverEnrolled:
		rows = append(rows, [2]string{"passkey", one.Approver.Credential},
			[2]string{"fingerprint", one.Approver.Fingerprint()})
	}
	for _, given := range one.Approved {
		rows = append(rows, [2]string{"approved by", given.Name + " at " + text.Time(given.Time)})
	}
	if one.DeniedBy != "" {
		rows = append(rows, [2]string{"denied by", one.DeniedBy})
	}
	fields(w, rows)
}

func writeApprovers(w io.Writer, all []approval.Approver) {
	rows := make([][]string, len(all))
	for i, who := range all {
		rows[i] = []string{who.Name, who.Fingerprint()[:16], who.RPID, text.Time(who.Enrolled), approvedBy(who)}
	}
	table(w, "NAME\tFINGERPRINT\tCONSOLE\tENROLLED\tAPPROVED BY", rows, "ENROLLED")
}

func approvedBy(who approval.Approver) string {
	if len(who.SignedBy) == 0 {
		return "nobody: the first one, enrolled by the operator"
	}
	return strings.Join(who.SignedBy, ", ")
}
