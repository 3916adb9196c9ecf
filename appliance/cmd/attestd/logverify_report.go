package main

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/attestd/attestd/appliance/audit"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/appliance/text"
)

// logReport is the result of 'log verify'.
type logReport struct {
	OK bool `json:"ok"` // neither damages nor counting contradictions
	audit.Report
	Witnessed *witnessedCheckpoint `json:"witnessed,omitempty"`
	Unchecked []string             `json:"unchecked"` // limits of this audit

	counting []audit.Contradiction // contradictions by witnesses that the policy has
}

// found returns the report of an audit, with the contradictions that count and the list of unchecked properties.
func (v *logVerify) found(r audit.Report) logReport {
	if r.Damages == nil {
		r.Damages = []audit.Damage{}
	}
	if r.Signers == nil {
		r.Signers = []audit.Signer{}
	}
	report := logReport{Report: r, Witnessed: v.witnesses.found, Unchecked: []string{}}
	for _, c := range r.Contradictions {
		if v.witnesses.counts(c) {
			report.counting = append(report.counting, c)
		}
	}
	report.OK = r.OK() && len(report.counting) == 0
	byItself := func(s audit.Signer) bool {
		return s.Known == audit.SignerEvent || s.Known == audit.SignerFirst
	}
	if slices.ContainsFunc(r.Signers, byItself) {
		report.Unchecked = append(report.Unchecked, "whether you know the signers. Give --signer.")
	}
	report.Unchecked = append(report.Unchecked, v.unwitnessed(r)...)
	return report
}

// counts reports whether a contradiction fails the verification. With a policy, only its own witnesses count.
func (w *witnessCheck) counts(c audit.Contradiction) bool {
	if w.policy == nil {
		return true
	}
	for _, each := range w.policy.Witnesses {
		if journal.LogName(each.Key) == c.Key {
			return true
		}
	}
	return false
}

// unwitnessed lists the records for which the audit cannot exclude that others were shown another history.
func (v *logVerify) unwitnessed(r audit.Report) (all []string) {
	found := v.witnesses.found
	switch {
	case found == nil && v.earlier == "":
		all = append(all,
			"whether others see the same history. With a verifier key alone, a journal that the holder of log.key has "+
				"rewritten or truncated looks the same as this one. Give --policy, or --since-checkpoint with a checkpoint from elsewhere.")
	case found == nil:
		all = append(all,
			"records after those of --since-checkpoint, which the holder of log.key may have rewritten. Give a newer checkpoint, or --policy.")
	case found.Size < r.Size:
		all = append(all,
			fmt.Sprintf("the last %s records: witnesses have cosigned the first %s.",
				text.Count(r.Size-found.Size), text.Count(found.Size)))
	}
	switch {
	case v.isFile && found != nil && !found.Time.IsZero():
		all = append(all, fmt.Sprintf(
			"records after the %d of this file, which may be truncated at %s, the time of the cosignatures. "+
				"To limit that time, give --not-older-than.", r.Size, text.Time(found.Time)))
	case v.isFile:
		all = append(all,
			fmt.Sprintf("records after the %d of this file, which may be truncated at an older checkpoint. "+
				"Compare with GET /log/checkpoint.", r.Size))
	}
	return all
}

func (a *app) printReport(r logReport) error {
	err := a.print(r, func(w io.Writer) { r.write(w) })
	if err == nil && !r.OK {
		err = silentFailure{}
	}
	return err
}

func (r logReport) write(w io.Writer) {
	for _, d := range r.Damages {
		fmt.Fprintln(w, d)
	}
	if r.More > 0 {
		fmt.Fprintf(w, "… and %d more\n", r.More)
	}
	for _, s := range r.Signers {
		fmt.Fprintf(w, "signer %s\n", s)
	}
	r.writeApprovals(w)
	for _, c := range r.Contradictions {
		fmt.Fprintf(w, "event %s (record %d): at %s, witness %s (%s) contradicted this log: %s\n",
			c.ID, c.Index, text.Time(c.Time), c.Witness, c.Key, c.Reason)
	}
	if !r.Report.OK() {
		fmt.Fprintf(w, "The journal is DAMAGED: %d faults in %s records.\n", int64(len(r.Damages))+r.More,
			text.Count(r.Size))
		return
	}
	events := ""
	if r.Events > 0 {
		events = fmt.Sprintf(" and %s events", text.Count(r.Events))
	}
	if len(r.counting) > 0 {
		fmt.Fprintf(w,
			"The journal is CONTRADICTED by a witness: %s records%s, each with a valid signature, but a witness has cosigned another history. "+
				"Follow docs/witness.md. A policy without that witness ignores it.\n", text.Count(r.Size-r.Events), events)
	} else {
		fmt.Fprintf(w,
			"Journal integrity: verified. %s records%s, each with a valid signature, none changed, dropped or reordered.\n",
			text.Count(r.Size-r.Events), events)
	}
	fmt.Fprintf(w, "root hash %x\n", r.Root)
	for _, each := range r.Unchecked {
		fmt.Fprintf(w, "Not checked: %s\n", each)
	}
	if r.Witnessed != nil && r.OK {
		fmt.Fprintf(w, "witnessed: %s\n", r.Witnessed.text)
	}
}

// writeApprovals writes the approvers and each change of the rules. The operator makes such a change alone, so an auditor
// compares these lines with the approvers' own accounts.
func (r logReport) writeApprovals(w io.Writer) {
	for _, c := range r.ApprovalRules {
		rules := make([]string, len(c.Rules))
		for i, rule := range c.Rules {
			rules[i] = rule.String()
		}
		if len(rules) == 0 {
			rules = []string{"none: no attestation needs an approval"}
		}
		fmt.Fprintf(w, "rules of approvals from record %d on (%s): %s\n", c.Index, text.Time(c.Time),
			strings.Join(rules, "; "))
	}
	for _, who := range r.Approvers {
		fmt.Fprintf(w, "approver %s, passkey %s, enrolled %s by event %s, approved by %s\n", who.Name,
			who.Fingerprint()[:16], text.Time(who.Enrolled), who.Event, approvedBy(who))
	}
	if r.Approved > 0 {
		fmt.Fprintf(w, "attestations that name an approval: %d\n", r.Approved)
	}
}
