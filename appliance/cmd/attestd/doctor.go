package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/attestd/attestd/appliance/config"
	"github.com/attestd/attestd/appliance/doctor"
)

func newDoctor(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check everything the appliance depends on, and show remedies",
		Long: `Check everything the appliance depends on. Each check is ok, warn or fail, and shows its remedy below. Exit
status 1 if a check fails. Run doctor at any time, with or without the daemon running. Run it as root: other
users lack permissions.

While the daemon runs, doctor asks it about the HSM. Otherwise doctor logs in once with the configured PIN,
unless the token reports that one more wrong PIN would lock it.`,
		Example: "  attestd doctor\n  attestd doctor --output json",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			findings := doctor.Examine(cmd.Context(), a.subject())
			if err := a.printFindings(findings); err != nil {
				return err
			}
			if doctor.Worst(findings) == doctor.Fail {
				return silentFailure{}
			}
			return nil
		},
	}
	cmd.AddCommand(newDoctorSync(a))
	return cmd
}

// newDoctorSync is the child process of measureSync.
func newDoctorSync(a *app) *cobra.Command {
	return &cobra.Command{
		Use:    "sync",
		Short:  "Measure the time of a write and its sync in data_dir, as JSON",
		Hidden: true,
		Args:   noArgs,
		RunE: func(*cobra.Command, []string) error {
			c, err := a.config(nil)
			if err != nil {
				return err
			}
			return a.printJSON(doctor.MeasureSync(c))
		},
	}
}

// measureSync measures a write and its sync in a child process. If the disk hangs, it abandons the child and returns an
// error.
func (a *app) measureSync(ctx context.Context) (s doctor.SyncTime, err error) {
	cmd, err := a.self(ctx, "doctor", "sync")
	if err != nil {
		return s, err
	}
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	ended := make(chan error, 1)
	began := time.Now()
	go func() { ended <- cmd.Run() }()
	select {
	case err := <-ended:
		if err != nil && ctx.Err() == nil {
			return doctor.SyncTime{Failure: toldBy(stderr.String())}, nil
		}
		if err == nil {
			return s, json.Unmarshal(stdout.Bytes(), &s)
		}
	case <-ctx.Done():
	}
	return s, fmt.Errorf("no result of a write and its sync after %s", time.Since(began).Round(time.Second))
}

// subject describes this appliance to doctor.
func (a *app) subject() doctor.Subject {
	return doctor.Subject{Source: &a.source, Version: version(), Inspect: a.inspectToken, MeasureSync: a.measureSync}
}

// examine runs doctor inside the daemon. It has its own source, since the daemon may reload the configuration
// meanwhile.
func (a *app) examine(source config.Source) func(context.Context) any {
	return func(ctx context.Context) any {
		return newDoctorResult(doctor.Examine(ctx,
			doctor.Subject{Source: &source, Version: version(), Inspect: a.inspectToken, MeasureSync: a.measureSync}))
	}
}

// doctorResult is the JSON form of doctor's findings.
type doctorResult struct {
	State  doctor.State     `json:"state"` // the worst of all checks
	Checks []doctor.Finding `json:"checks"`
}

func newDoctorResult(findings []doctor.Finding) doctorResult {
	return doctorResult{doctor.Worst(findings), findings}
}

func (a *app) printFindings(findings []doctor.Finding) error {
	return a.print(newDoctorResult(findings), func(w io.Writer) { writeFindings(w, findings) })
}

// writeFindings writes a line for each finding, and its remedy below.
func writeFindings(w io.Writer, findings []doctor.Finding) {
	states, checks := 0, 0
	for _, f := range findings {
		states, checks = max(states, len(f.State)), max(checks, len(f.Check))
	}
	before := states + gap + checks + gap // width of the columns to the left of the detail
	under := before
	if room(w) > 0 {
		under = 2 * gap // leaves room for a command that is to be copied
	}
	for _, f := range findings {
		state := fmt.Sprintf("%-*s", states, f.State)
		head := paint(w, stateColours[f.State], state) + fmt.Sprintf("  %-*s  ", checks, f.Check)
		for _, line := range lines(strings.ReplaceAll(f.Detail, "\n", " "), room(w)-before) {
			fmt.Fprintln(w, head+line)
			head = strings.Repeat(" ", before)
		}
		sign := "→ "
		for _, line := range lines(f.Remedy, room(w)-under-gap) {
			fmt.Fprintln(w, strings.Repeat(" ", under)+sign+line)
			sign = "  "
		}
	}
}
