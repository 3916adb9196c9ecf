package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/appliance/report"
	"github.com/attestd/attestd/appliance/text"
)

// maxReport bounds a report that is verified, in bytes. Package report bounds the lists in a report.
const maxReport = 64 << 20

func newAuditReport(a *app) *cobra.Command {
	var since, until, file, html, pdf string
	cmd := &cobra.Command{
		Use:   "report",
		Short: "Make a signed audit report of a period",
		Long: `Audit the whole journal, and report what happened in a period: attestations and refusals by API key, changes of
API keys, pauses and halts, approvals, all events by kind, and the result of the audit with its checkpoint. The
report is JSON, signed with the log key. It has no addresses. --pdf also writes it as a PDF with the JSON as its
attachment, and --html as a page that prints well.

Anyone with the log's verifier key can check the JSON, without the appliance: 'attestd verify report'. Exit
status 1 if the audit found faults; the report is written all the same, and lists them.`,
		Example: `  attestd report --since 2026-10-01 --until 2026-11-01 --file 2026-10.json --pdf 2026-10.pdf
  attestd report --since 30d > report.json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			from, to, err := parseSpan(cmd, since, until)
			switch {
			case err != nil:
				return err
			case from.IsZero():
				return usagef(cmd, "--since is required, such as 2026-10-01 or 30d")
			case !to.IsZero() && !from.Before(to):
				return usagef(cmd, "--since must be before --until")
			}
			return a.report(cmd, from, to, file, map[string]func(report.Signed, io.Writer) error{
				html: report.Signed.WritePage, pdf: report.Signed.WritePDF})
		},
	}
	f := cmd.Flags()
	f.StringVar(&since, "since", "",
		"start of the period: a time, a date (UTC), or a duration before now such as 30d (required)")
	f.StringVar(&until, "until", "", "end of the period, exclusive (default: now)")
	f.StringVarP(&file, "file", "f", "-", "file for the signed JSON, created with mode 0600; - for standard output")
	f.StringVar(&pdf, "pdf", "", "also write the report to this file, as a PDF with the signed JSON as its attachment")
	f.StringVar(&html, "html", "", "also write the report to this file, as an HTML page for printing")
	return cmd
}

// report makes a report. shown are the further files, by name, with what writes them for people; "" is none.
func (a *app) report(cmd *cobra.Command, from, until time.Time, file string,
	shown map[string]func(report.Signed, io.Writer) error) error {
	update, end := a.progress("report", unitRecords)
	var made report.Signed
	err := a.withBackend(cmd, func(o backend) (err error) {
		if files, is := o.(offline); is { // a journal that accepts no more events is audited, too
			period := report.Options{From: from, Until: until, Now: time.Now()}
			if err := files.record(cmd.Context(), journal.EventReport, period.Details()); err != nil {
				a.say("Cannot record this report in the journal: %v", errors.Unwrap(err))
			}
		}
		made, err = o.Report(cmd.Context(), from, until, update)
		return err
	})
	end()
	if err != nil {
		return interrupted(cmd.Context(), err, "no report was made; the data is unchanged")
	}
	if err := a.writeTo(file, func(w io.Writer) error {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(made)
	}); err != nil {
		return err
	}
	delete(shown, "")
	for name, write := range shown {
		if err := a.writeTo(name, func(w io.Writer) error { return write(made, w) }); err != nil {
			return err
		}
	}
	var r report.Report
	if err := json.Unmarshal(made.Report, &r); err != nil {
		return err
	}
	if !r.Verification.OK {
		a.say("The journal is DAMAGED: %d faults, %d contradictions by witnesses. To list them: attestd log verify",
			r.Verification.Faults, len(r.Verification.Contradictions))
		return silentFailure{}
	}
	a.say("Report of %s: %s attestations, %s refusals. Journal integrity: verified.", r.Period(),
		text.Count(r.Attestations), text.Count(r.Refusals))
	return nil
}

// writeTo creates a file and writes it completely; - is standard output.
func (a *app) writeTo(name string, write func(w io.Writer) error) error {
	if name == "-" {
		return write(a.out)
	}
	f, err := a.create(name)
	if err != nil {
		return err
	}
	if err := write(f); err != nil {
		_ = f.Close()
		return fmt.Errorf("write %s: %w", name, err)
	}
	if err := f.Sync(); err != nil {
		_ = f.Close()
		return err
	}
	return f.Close()
}

func newVerifyReport(a *app) *cobra.Command {
	var key string
	cmd := &cobra.Command{
		Use:   "report FILE|-",
		Short: "Check a signed audit report offline",
		Long: `Check a file of 'attestd report' without the appliance: the log of --verifier-key has signed it, nothing in it was
changed, it names that log, its checkpoint is of the audited records, its counts agree, and its audit found no fault.

Take the verifier key from a source that you trust: the one in the file proves nothing. With --output json, the
member code names the reason of a refusal: not_a_report, invalid_signature, changed, other_log, invalid_checkpoint,
inconsistent, or journal_not_verified. The last means that the report is genuine, and that its audit found faults.`,
		Example: `  attestd verify report 2026-10.json --verifier-key 'example.com/attestd+1a2b3c4d+AQ…'`,
		Args:    oneArg("FILE (or - for standard input)"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if key == "" {
				return usagef(cmd, "--verifier-key is required; GET /functions/v1/attestor shows the log's, name+hash+key")
			}
			verifier, err := journal.ParseVerifier(key)
			if err != nil {
				return notVerifierKey(cmd)
			}
			signed, err := a.readSmall(args[0], maxReport)
			if err != nil {
				return err
			}
			r, err := report.Verify(signed, verifier)
			if err != nil {
				return fmt.Errorf("verify report %s: %w", args[0], err)
			}
			return a.print(struct {
				OK bool `json:"ok"`
				report.Report
			}{true, r}, func(w io.Writer) { writeAuditReport(w, r) })
		},
	}
	cmd.Flags().StringVar(&key, "verifier-key", "", "the log's verifier key, name+hash+key (required)")
	return cmd
}

func writeAuditReport(w io.Writer, r report.Report) {
	fmt.Fprintf(w, "The report is genuine: signed by the log %s, unchanged.\n", r.Log)
	fields(w, [][2]string{
		{"period", r.Period()},
		{"made", text.Time(r.Made) + by(r.By)},
		{"attestations", text.Count(r.Attestations)},
		{"refusals", text.Count(r.Refusals)},
		{"changes of API keys", text.Count(len(r.Changes))},
		{"pauses and halts", text.Count(len(r.Stops))},
		{"journal", "Journal integrity: verified when the report was made, " + text.Count(r.Verification.Size) + " records"},
	})
	rows := make([][]string, len(r.Keys))
	for i, k := range r.Keys {
		rows[i] = []string{k.ID, orDash(k.Name), text.Count(k.Attestations), text.Count(k.Refusals)}
	}
	if len(rows) > 0 {
		table(w, "KEY\tNAME\tATTESTATIONS\tREFUSALS", rows)
	}
	fmt.Fprintln(w, "Not checked: that the journal is the same today. To check it, run: attestd log verify")
}

func by(who string) string {
	if who == "" {
		return ""
	}
	return " by " + who
}
