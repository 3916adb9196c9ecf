package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/config"
	"github.com/attestd/attestd/appliance/daemon"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/appliance/policy"
	"github.com/attestd/attestd/appliance/text"
)

func newPolicy(a *app) *cobra.Command {
	return group("policy", "The attestation policy: test",
		"The policy, the file of attestation.policy, limits attestations by address, API key, number and time.\nCheck it with 'attestd config check', and put it into effect with 'attestd reload'.",
		newPolicyTest(a))
}

func newPolicyTest(a *app) *cobra.Command {
	var file, from string
	cmd := &cobra.Command{
		Use:   "test [--policy FILE] [--from TIME]",
		Short: "Test a policy on the attestations in the journal",
		Long: `Apply a policy to the attestations in the journal, and list those that it would have refused, with the rule.
This changes nothing. The policy is the configured one, with the screening list, or the one of --policy: so
you can test a new policy before you use it.

The policy is applied as if it had been in effect since --from: attestations that it would have refused do not
count for caps. Earlier attestations count as they are.`,
		Example: "  attestd policy test\n  attestd policy test --policy new.yaml --from 30d\n  attestd policy test --policy new.yaml --output json",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			since, err := parsePast(from, time.Now())
			if err != nil {
				return usageError{cmd.CommandPath(), fmt.Errorf("--from: %w", err)}
			}
			return a.tryPolicy(cmd, file, since)
		},
	}
	cmd.Flags().StringVar(&file, "policy", "", "policy file (default: attestation.policy)")
	cmd.Flags().StringVar(&from, "from", "",
		"first time: a time such as 2026-11-01T12:00:00Z, a date (00:00 UTC), or a duration before now such as 30d or 12h (default: all)")
	return cmd
}

// tried is the result of 'policy try'.
type tried struct {
	Policy       string       `json:"policy"` // version of the policy; empty if only a screening list was tried
	Attestations int          `json:"attestations"`
	Refused      int          `json:"refused"`
	Rules        []triedRule  `json:"rules"` // rules that refuse at least one attestation
	Entries      []triedEntry `json:"entries"`
	Warnings     []triedEntry `json:"warnings"`
}

// triedRule counts the attestations that a rule refuses.
type triedRule struct {
	Code    appliance.Code `json:"code"`
	Refused int            `json:"refused"`
}

// triedEntry is an attestation that would be refused, or cause a warning. It has no addresses.
type triedEntry struct {
	ID      uuid.UUID      `json:"id"`
	Time    time.Time      `json:"time"`
	KeyID   string         `json:"keyId"`
	Code    appliance.Code `json:"code"`
	FirstID *uuid.UUID     `json:"firstId,omitempty"` // for a second beneficiary: the first attestation of the address
}

func (a *app) tryPolicy(cmd *cobra.Command, file string, since time.Time) error {
	c, err := a.config(nil)
	if err != nil {
		return err
	}
	p, err := policyToTry(c, file)
	if err != nil {
		return fmt.Errorf("policy test: %w", err)
	}
	var result tried
	err = a.withBackend(cmd, func(o backend) (err error) {
		result, err = try(cmd.Context(), p, since, o)
		return err
	})
	if err != nil {
		return fmt.Errorf("policy test: %w", err)
	}
	return a.print(result, func(w io.Writer) { writeTried(w, result) })
}

func policyToTry(c *config.Config, file string) (*policy.Policy, error) {
	if file != "" {
		if _, err := daemon.ReadPolicyFile(file); err != nil {
			return nil, fmt.Errorf("--policy: %w", err)
		}
		c.Attestation.Policy = file
	}
	p, err := daemon.ReadPolicy(c)
	if err == nil && p == nil {
		err = errors.New("no policy: give a file with --policy, or set attestation.policy")
	}
	return p, err
}

func try(ctx context.Context, p *policy.Policy, since time.Time, o backend) (tried, error) {
	result := tried{Policy: p.Version, Rules: []triedRule{}, Entries: []triedEntry{}, Warnings: []triedEntry{}}
	byRule := make(map[appliance.Code]int)
	trial := policy.Trial{Policy: p}
	err := o.Entries(ctx, 0, func(leaf []byte) error {
		if journal.IsEvent(leaf) {
			return nil
		}
		var r appliance.Record
		if err := json.Unmarshal(leaf, &r); err != nil {
			return err
		}
		if r.Time.Before(since) {
			trial.Seen(r)
			return nil
		}
		result.Attestations++
		code, second := trial.Attest(r)
		e := triedEntry{ID: r.ID, Time: r.Time, KeyID: r.KeyID, Code: code}
		switch {
		case code != "":
			byRule[code]++
			result.Entries = append(result.Entries, e)
		case second != nil:
			e.Code, e.FirstID = appliance.CodePolicySecond, &second.ID
			result.Warnings = append(result.Warnings, e)
		}
		return nil
	})
	for _, code := range slices.Sorted(maps.Keys(byRule)) {
		result.Rules = append(result.Rules, triedRule{code, byRule[code]})
	}
	result.Refused = len(result.Entries)
	return result, err
}

func writeTried(w io.Writer, t tried) {
	list := func(entries []triedEntry) {
		var rows [][]string
		for _, e := range entries {
			rows = append(rows, []string{e.ID.String(), e.Time.Format(time.RFC3339), e.KeyID, string(e.Code)})
		}
		if len(rows) > 0 {
			table(w, "ID\tTIME\tAPI KEY\tRULE", rows, "TIME")
			fmt.Fprintln(w)
		}
	}
	list(t.Entries)
	fmt.Fprintf(w, "%s of %s attestations would be refused", text.Count(t.Refused), text.Count(t.Attestations))
	sep := ": "
	for _, r := range t.Rules {
		fmt.Fprint(w, sep, text.Count(r.Refused), " by ", r.Code)
		sep = ", "
	}
	fmt.Fprintln(w)
	if n := len(t.Warnings); n > 0 {
		fmt.Fprintf(w, "\n%d would cause a warning about a second beneficiary:\n", n)
		list(t.Warnings)
	}
}
