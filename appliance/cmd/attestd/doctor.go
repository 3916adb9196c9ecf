package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/attestd/attestd/api/client"
	"github.com/attestd/attestd/api/wire"
	"github.com/attestd/attestd/appliance/config"
	"github.com/attestd/attestd/appliance/daemon"
	"github.com/attestd/attestd/appliance/files"
	"github.com/attestd/attestd/appliance/service"
)

func newDoctor(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "doctor",
		Short: "Check everything the appliance depends on, and say how to mend it",
		Long: `Check everything the appliance depends on: each check is ok, warn or fail, with the remedy beneath. Exit status 1
when one fails. It can be run at any time, beside the daemon or without it, best as root.

While the daemon runs, doctor asks it about the HSM. While it does not, doctor logs in once with the configured PIN,
unless the token says that one more wrong PIN would lock it.`,
		Example: "  attestd doctor\n  attestd doctor --output json",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			findings := examine(cmd.Context(), a.subject())
			if err := a.printFindings(findings); err != nil {
				return err
			}
			if worst(findings) == stateFail {
				return silentFailure{}
			}
			return nil
		},
	}
}

// state is how a check came out.
type state string

const (
	stateOK   state = "ok"
	stateWarn state = "warn"
	stateFail state = "fail"
)

// finding is what a check found of one thing.
type finding struct {
	Check  string `json:"check"`
	State  state  `json:"state"`
	Detail string `json:"detail"`
	Remedy string `json:"remedy,omitempty"`
}

func ok(format string, args ...any) finding {
	return finding{State: stateOK, Detail: fmt.Sprintf(format, args...)}
}

func warn(remedy, format string, args ...any) finding {
	return finding{State: stateWarn, Detail: fmt.Sprintf(format, args...), Remedy: remedy}
}

func fail(remedy, format string, args ...any) finding {
	return finding{State: stateFail, Detail: fmt.Sprintf(format, args...), Remedy: remedy}
}

// checkup is one thing that doctor looks at.
type checkup struct {
	name string
	run  func(ctx context.Context, p *patient) []finding // none means that there is nothing to look at
}

// checks is all that doctor looks at, in the order in which it is shown. A new one is a line here.
func checks() []checkup {
	return []checkup{
		{"daemon", checkDaemon},
		{"socket", checkSocket},
		{"SoftHSM", checkSoftHSM},
		{"module", checkModule},
		{"token", checkToken},
		{"PIN", checkPIN},
		{"key", checkKey},
		{"journal", checkJournal},
		{"replica", checkReplica},
		{"upstream", checkFollowing},
		{"clock", checkClock},
		{"disk space", checkDiskSpace},
		{"disk sync", checkDiskSync},
		{"files", checkFiles},
		{"ports", checkPorts},
		{"certificate", checkCertificate},
	}
}

// subject is the appliance that is examined, as a command sees it.
type subject struct {
	source  *config.Source
	version string                                        // of this command
	inspect func(ctx context.Context) (inspection, error) // looks at the token in a process of its own
}

// patient is what the checks look at. It is asked once, whatever the number of checks.
type patient struct {
	subject
	config  *config.Config
	service service.User // as whom the daemon runs

	daemon    wire.Status
	daemonErr error // nil while it runs; client.ErrNotRunning

	socket socketUnit

	hsm        inspection
	hsmErr     error // why nothing is known of the HSM
	credential error // why the PIN cannot be had of it
}

func (p *patient) running() bool { return p.daemonErr == nil }

// doctorTimeout bounds what may hang: an HSM, a dead network file system.
const doctorTimeout = 2 * time.Minute

// examine runs all checks. Without a configuration there is nothing else to check.
func examine(ctx context.Context, of subject) []finding {
	ctx, cancel := context.WithTimeout(ctx, doctorTimeout)
	defer cancel()
	p := &patient{subject: of}
	findings := named("configuration", p.checkConfiguration())
	if worst(findings) == stateFail {
		return findings
	}
	p.ask(ctx)
	for _, c := range checks() {
		findings = append(findings, named(c.name, c.run(ctx, p))...)
	}
	return findings
}

func named(check string, findings []finding) []finding {
	for i := range findings {
		findings[i].Check = check
	}
	return findings
}

func (p *patient) checkConfiguration() []finding {
	c, err := p.source.Load(nil)
	if err == nil {
		if err := daemon.RequireSetup(p.source, c); err != nil {
			return []finding{fail("attestd setup", "%s", err)}
		}
		err = daemon.CheckReferences(c)
	}
	if err == nil {
		p.service, err = service.UserOf(c.DataDir)
	}
	if err != nil {
		return []finding{fail("correct it, then try again: attestd config check", "%s", err)}
	}
	p.config = c
	path := p.source.Path()
	if !files.Exists(path) {
		return []finding{ok("%s is not there: values are defaults, or the environment's", path)}
	}
	return []finding{ok("%s", path)}
}

func checkDaemon(_ context.Context, p *patient) []finding {
	if errors.Is(p.daemonErr, client.ErrNotRunning) {
		return []finding{warn("systemctl start attestd", "not running: nothing answers on %s", p.config.Admin.Socket)}
	}
	if p.daemonErr != nil {
		return []finding{fail("run doctor as root, or as the user "+p.service.Name, "%s", p.daemonErr)}
	}
	up := time.Since(p.daemon.Started).Round(time.Second)
	findings := []finding{ok("running for %s, signing as %s", up, p.daemon.SignerAddress)}
	if p.daemon.Version != p.version {
		findings = append(findings, warn("systemctl restart attestd", "it is version %s, this command is %s", p.daemon.Version, p.version))
	}
	for part, cause := range p.daemon.Failing {
		findings = append(findings, fail("attestd goes on by itself when the cause is gone; its log has more: journalctl -u attestd", "%s: %s", part, cause))
	}
	return findings
}

// worst is the worst state of all.
func worst(findings []finding) state {
	result := stateOK
	for _, f := range findings {
		if f.State == stateFail || f.State == stateWarn && result == stateOK {
			result = f.State
		}
	}
	return result
}

// subject is this appliance.
func (a *app) subject() subject { return subject{source: &a.source, version: version(), inspect: a.inspectToken} }

func (a *app) printFindings(findings []finding) error {
	return a.print(struct {
		State  state     `json:"state"` // the worst
		Checks []finding `json:"checks"`
	}{worst(findings), findings}, func(w io.Writer) { writeFindings(w, findings) })
}

// writeFindings writes a line for each finding, and its remedy beneath.
func writeFindings(w io.Writer, findings []finding) {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, f := range findings {
		fmt.Fprintf(tw, "%s\t%s\t%s\n", f.State, f.Check, strings.ReplaceAll(f.Detail, "\n", " "))
		if f.Remedy != "" {
			fmt.Fprintf(tw, "\t\t→ %s\n", f.Remedy)
		}
	}
	tw.Flush()
}
