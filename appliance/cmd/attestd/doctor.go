package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/attestd/attestd/api/client"
	"github.com/attestd/attestd/api/wire"
	"github.com/attestd/attestd/hsm"
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
			findings := a.examine(cmd.Context())
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
		{"module", checkModule},
		{"token", checkToken},
		{"PIN", checkPIN},
		{"key", checkKey},
		{"journal", checkJournal},
		{"replica", checkReplica},
		{"upstream", checkUpstream},
		{"clock", checkClock},
		{"disk space", checkDiskSpace},
		{"disk sync", checkDiskSync},
		{"files", checkFiles},
		{"ports", checkPorts},
		{"certificate", checkCertificate},
	}
}

// patient is what the checks look at. It is asked once, whatever the number of checks.
type patient struct {
	*app
	config  *config
	service identity // as whom the daemon runs

	daemon    wire.Status
	daemonErr error // nil while it runs; client.ErrNotRunning

	hsm    inspection
	hsmErr error // why nothing is known of the HSM
}

func (p *patient) running() bool { return p.daemonErr == nil }

// doctorTimeout bounds what may hang: an HSM, a dead network file system.
const doctorTimeout = 2 * time.Minute

// examine runs all checks. Without a configuration there is nothing else to check.
func (a *app) examine(ctx context.Context) []finding {
	ctx, cancel := context.WithTimeout(ctx, doctorTimeout)
	defer cancel()
	p := &patient{app: a}
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
	c, err := p.app.config(nil)
	if err == nil {
		if err := p.requireSetup(c); err != nil {
			return []finding{fail("attestd setup", "%s", err)}
		}
		err = checkReferences(c)
	}
	if err == nil {
		p.service, err = serviceUser(c.DataDir)
	}
	if err != nil {
		return []finding{fail("correct it, then try again: attestd config check", "%s", err)}
	}
	p.config = c
	path := p.effectiveConfigPath()
	if !exists(path) {
		return []finding{ok("%s is not there: values are defaults, or the environment's", path)}
	}
	return []finding{ok("%s", path)}
}

// ask asks the daemon and, while it does not run, the token.
func (p *patient) ask(ctx context.Context) {
	daemon := client.NewAdmin(p.config.Admin.Socket)
	defer func() { _ = daemon.Close() }()
	p.daemon, p.daemonErr = daemon.Status(ctx)
	if p.running() {
		p.hsm.Status, p.hsmErr = daemonHSM(ctx, p.config)
		return
	}
	if !errors.Is(p.daemonErr, client.ErrNotRunning) {
		p.hsmErr = errors.New("not looked at, since the daemon may hold the token")
		return
	}
	p.hsm, p.hsmErr = p.inspect(ctx)
}

// inspect looks at the token in a process of its own.
func (p *patient) inspect(ctx context.Context) (found inspection, err error) {
	cmd, err := p.self(ctx, "hsm", "inspect")
	if err != nil {
		return found, err
	}
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		said := strings.TrimPrefix(strings.TrimSpace(stderr.String()), "attestd: ")
		if cmd.ProcessState == nil || cmd.ProcessState.ExitCode() < 0 {
			said = "the module ended the process that loaded it: " + lastOf(said, 500)
		}
		return found, fmt.Errorf("%s (%w)", said, err)
	}
	return found, json.Unmarshal(stdout.Bytes(), &found)
}

// lastOf is the end of a text.
func lastOf(s string, n int) string { return s[max(0, len(s)-n):] }

func checkDaemon(_ context.Context, p *patient) []finding {
	if errors.Is(p.daemonErr, client.ErrNotRunning) {
		return []finding{warn("systemctl start attestd", "not running: nothing answers on %s", p.config.Admin.Socket)}
	}
	if p.daemonErr != nil {
		return []finding{fail("run doctor as root, or as the user "+p.service.name, "%s", p.daemonErr)}
	}
	up := time.Since(p.daemon.Started).Round(time.Second)
	findings := []finding{ok("running for %s, signing as %s", up, p.daemon.SignerAddress)}
	if p.daemon.Version != version() {
		findings = append(findings, warn("systemctl restart attestd", "it is version %s, this command is %s", p.daemon.Version, version()))
	}
	for part, cause := range p.daemon.Failing {
		findings = append(findings, fail("attestd goes on by itself when the cause is gone; its log has more: journalctl -u attestd", "%s: %s", part, cause))
	}
	return findings
}

func checkModule(_ context.Context, p *patient) []finding {
	if p.hsmErr != nil {
		return []finding{fail("install the HSM's PKCS#11 library, or correct module-path in hsm.uri", "%s", p.hsmErr)}
	}
	m := p.hsm.Module
	if m.Path == "" {
		return []finding{fail("install the HSM's PKCS#11 library, or correct module-path in hsm.uri", "%s", p.hsm.LastError)}
	}
	return []finding{ok("%s: %s %s", m.Path, m.Description, m.Version)}
}

func checkToken(_ context.Context, p *patient) []finding {
	switch t := p.hsm.Token; {
	case p.hsmErr != nil || p.hsm.Module.Path == "":
		return nil
	case t.Label == "" && t.Serial == "":
		return []finding{fail("attestd hsm init makes the token that hsm.uri names; for one that is there, correct hsm.uri", "%s", p.hsm.LastError)}
	default:
		return []finding{ok("%s (serial %s, %s)", t.Label, t.Serial, t.Manufacturer)}
	}
}

func checkPIN(_ context.Context, p *patient) []finding {
	t := p.hsm.Token
	const byHand = "log in once by hand with the token's own tool, which resets the count; the right PIN belongs where pin-source says"
	switch {
	case p.hsmErr != nil || t.Label == "" && t.Serial == "":
		return nil
	case t.PINLocked:
		return []finding{fail("the token's security officer must set a new PIN", "the token has locked it")}
	case t.PINFinalTry:
		return []finding{fail(byHand, "one more wrong PIN locks the token, so it was not tried")}
	case p.hsm.WrongPIN:
		return []finding{fail("put the right PIN where pin-source in hsm.uri says; it was tried once", "%s", p.hsm.LastError)}
	case p.running():
		return []finding{ok("the daemon is logged in")}
	case p.hsm.Key.Curve == "" && !p.hsm.NotFound && !p.hsm.Ready && os.Geteuid() != 0 && p.hasCredential():
		return []finding{warn("run doctor as root, or start attestd", "not tried: it is a credential of the service, which only root can decrypt")}
	case p.hsm.Key.Curve == "" && !p.hsm.NotFound && !p.hsm.Ready:
		return []finding{fail("the file or credential that pin-source names must hold the PIN, and be readable for the user "+p.service.name+" only", "%s", p.hsm.LastError)}
	case t.PINCountLow:
		return []finding{warn("find out who tried it", "works, but a wrong one was tried since the last login")}
	}
	return []finding{ok("works")}
}

// hasCredential says whether the PIN is a credential of the service.
func (p *patient) hasCredential() bool {
	uri, err := hsm.ParseURI(p.config.HSM.URI)
	return err == nil && uri.Credential() != ""
}

func checkKey(_ context.Context, p *patient) []finding {
	k := p.hsm.Key
	switch {
	case p.hsmErr != nil || p.hsm.WrongPIN || p.hsm.Token.Label == "" && p.hsm.Token.Serial == "":
		return nil
	case k.Curve == "" && p.hsm.NotFound:
		return []finding{fail("attestd hsm init makes the key that hsm.uri names", "%s", p.hsm.LastError)}
	case k.Curve == "":
		return nil // the PIN is at fault
	case !p.running() && !p.hsm.Ready:
		return []finding{fail("make another key, attestd hsm keygen, and name it in hsm.uri", "%s", p.hsm.LastError)}
	case !k.Sensitive || k.Extractable:
		return []finding{warn("make a key that cannot leave the token: attestd hsm keygen", "%s could leave the HSM (hsm.allow_extractable is set)", k.Label)}
	}
	return []finding{ok("%s: %s, cannot leave the HSM, address %s", k.Label, k.Curve, keyAddress(k))}
}

// keyAddress is a key's address, as far as it is known.
func keyAddress(k hsm.KeyStatus) string {
	if k.Address == nil {
		return "unknown"
	}
	return k.Address.String()
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
