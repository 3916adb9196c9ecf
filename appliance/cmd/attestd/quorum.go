package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/attestd/attestd/api/client"
	"github.com/attestd/attestd/appliance/quorum"
	"github.com/attestd/attestd/appliance/text"
)

func newQuorum(a *app) *cobra.Command {
	return group("quorum", "The other members of a quorum: status, test",
		"With quorum.threshold, an attestation needs the signatures of several appliances (docs/quorum.md).",
		newQuorumStatus(a), newQuorumTest(a))
}

func newQuorumStatus(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Show the other members and the contract on chain, and fail if no attestation could be made",
		Long: `Ask each other member of the quorum for its key and its version, with the API key that the member made for this appliance. Show the
members, how long each took to answer, and its last refusal since the daemon was started. LOG shows whether the member's log has the
configured verifier key. With chain.contracts, compare the members and the threshold with the contract. The daemon must run.

Exit status 1 if so many members fail that no attestation could be made, or if the contract would refuse it.`,
		Example: "  attestd quorum status\n  attestd quorum status --output json",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.askQuorum(cmd, "quorum status", (*client.Admin).QuorumStatus)
		},
	}
}

func newQuorumTest(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "test",
		Short: "Ask the other members for a trial signature each",
		Long: `Ask each other member of the quorum for a signature over a digest that no contract can accept, and verify it. The members make the
digest themselves, and record nothing. The daemon must run.

Exit status 1 if so many members fail that no attestation could be made.`,
		Example: "  attestd quorum test",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.askQuorum(cmd, "quorum test", (*client.Admin).QuorumTest)
		},
	}
}

func (a *app) askQuorum(cmd *cobra.Command, name string,
	ask func(*client.Admin, context.Context) (quorum.Status, error)) error {
	c, err := a.config(nil)
	if err != nil {
		return err
	}
	if !c.HasQuorum() {
		return errors.New("this appliance signs alone: quorum.threshold of the configuration is 0")
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), statusTimeout)
	defer cancel()
	daemon := client.NewAdmin(c.Admin.Socket)
	defer func() { _ = daemon.Close() }()
	status, err := ask(daemon, ctx)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return errors.Join(a.print(status, func(w io.Writer) { writeQuorum(w, status) }), enough(status))
}

// enough returns an error if fewer members answered well than must sign.
func enough(s quorum.Status) error {
	well := 1 // this appliance
	for _, m := range s.Members {
		if m.Error == "" {
			well++
		}
	}
	if well < s.Threshold {
		return fmt.Errorf("%d of %d members must sign, and %d would: no attestation can be made", s.Threshold,
			len(s.Members)+1, well)
	}
	if s.Refused() {
		return errors.New("the contract on chain would refuse attestations: change the contract or quorum.members " +
			"(docs/quorum.md, Change members)")
	}
	return nil
}

func writeQuorum(w io.Writer, s quorum.Status) {
	facts := [][2]string{
		{"contract", s.Contract.String()},
		{"threshold", fmt.Sprintf("%d of %d members, this appliance included", s.Threshold, len(s.Members)+1)},
	}
	if len(s.OnChain) == 0 {
		facts = append(facts, [2]string{"on chain", "not compared: chain.contracts names no RPC"})
	}
	for _, c := range s.OnChain {
		facts = append(facts, [2]string{"on chain", c.Watched + ", " + c.RPC + ": " + text.OneLine(c.String())})
	}
	fields(w, facts)
	rows := make([][]string, len(s.Members))
	for i, m := range s.Members {
		refusal, state, log := "-", "signs", "proves"
		if !m.Proves {
			log = "unproven"
		}
		if m.LastRefusal != nil {
			refusal = fmt.Sprintf("%s %s", text.Time(m.LastRefusal.Time), m.LastRefusal.Code)
		}
		if m.Error != "" {
			state = text.OneLine(m.Error)
		}
		rows[i] = []string{m.Name, m.Signer.String(), m.Version,
			fmt.Sprintf("%.0f ms", m.Milliseconds), log,
			text.Count(m.Signed), text.Count(m.Refused), text.Count(m.Failed), text.Count(m.Invalid), refusal, state}
	}
	fmt.Fprintln(w)
	table(w, "MEMBER\tSIGNER\tVERSION\tANSWER\tLOG\tSIGNED\tREFUSED\tFAILED\tINVALID\tLAST REFUSAL\tSTATE", rows,
		"VERSION", "INVALID", "FAILED", "LAST REFUSAL", "ANSWER", "LOG")
}
