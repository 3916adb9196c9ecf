// Package doctor checks all parts that an appliance depends on, and names a remedy for each fault.
package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"runtime"
	"strings"
	"time"

	"github.com/attestd/attestd/api/client"
	"github.com/attestd/attestd/api/wire"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/config"
	"github.com/attestd/attestd/appliance/daemon"
	"github.com/attestd/attestd/appliance/files"
	"github.com/attestd/attestd/appliance/health"
	"github.com/attestd/attestd/appliance/service"
)

// Finding is one result of a check. A check may have several.
type Finding = health.Finding

// State is the severity of a finding.
type State = health.State

// The states, from good to bad.
const (
	OK   = health.OK
	Warn = health.Warn
	Fail = health.Fail
)

func ok(format string, args ...any) Finding { return health.Good(format, args...) }

func warn(remedy, format string, args ...any) Finding { return health.Warning(remedy, format, args...) }

func fail(remedy, format string, args ...any) Finding { return health.Failure(remedy, format, args...) }

// told returns the findings of one check that the running daemon reports in its status. It has none if no daemon runs.
func (p *subject) told(check string) []Finding { return health.Of(p.daemon.Checks, check) }

// asRoot is the remedy if the user who runs doctor lacks a permission.
const asRoot = "run doctor as root: sudo attestd doctor"

// checkup is one of doctor's checks.
type checkup struct {
	name string
	run  func(ctx context.Context, p *subject) []Finding // no findings mean that the check does not apply
}

// checks are all checks, in the order of the output. To add a check, add a line.
func checks() []checkup {
	return []checkup{
		{"daemon", checkDaemon},
		{"stop", checkStop},
		{"policy", checkPolicy},
		{"approvers", checkApprovers},
		{"socket", checkSocket},
		{"SoftHSM", ofEachToken(checkSoftHSM)},
		{"module", ofEachToken(checkModule)},
		{"token", ofEachToken(checkToken)},
		{"PIN", ofEachToken(checkPIN)},
		{"key", ofEachToken(checkKey)},
		{"tokens", checkTokens},
		{"attestor keys", checkAttestorKeys},
		{"database", checkDatabase},
		{"journal", checkJournal},
		{"mark", checkMark},
		{"quorum", checkQuorum},
		{"chain", checkChain},
		{"witnesses", checkWitnesses},
		{"sinks", checkSinks},
		{"backup", checkBackup},
		{"webhooks", checkWebhooks},
		{"replica", checkReplica},
		{"upstream", checkFollowing},
		{"indexer", checkIndexer},
		{"clock", checkClock},
		{"disk space", checkDiskSpace},
		{"disk sync", checkDiskSync},
		{"files", checkFiles},
		{"ports", checkPorts},
		{"certificate", checkCertificate},
	}
}

// openChecks are the checks that need no privileges.
func openChecks() []checkup {
	return []checkup{{"socket", checkSocket}, {"clock", checkClock}, {"disk space", checkDiskSpace}}
}

// forbidden returns an error if this user may not use the daemon's socket or read data_dir. Most checks would then
// report faults that do not exist.
func (p *subject) forbidden() error {
	if errors.Is(p.daemonErr, fs.ErrPermission) {
		return p.daemonErr
	}
	if _, err := os.ReadDir(p.config.DataDir); errors.Is(err, fs.ErrPermission) {
		return err
	}
	return nil
}

// Subject is the appliance to examine, with the functions that the command provides.
type Subject struct {
	Source  *config.Source
	Version string // of this command
	// Inspect inspects a token in a child process. position counts the configured tokens of all keys, from 1.
	Inspect func(ctx context.Context, position int) (Inspection, error)
	// MeasureSync returns the time of a write and its sync in data_dir. It measures in a child process, since a process
	// that waits for a hanging disk cannot exit.
	MeasureSync func(ctx context.Context) (SyncTime, error)
}

// SyncTime is the time of a write and its sync, or the reason why they failed.
type SyncTime struct {
	Took      time.Duration `json:"took"`
	Failure   string        `json:"failure,omitempty"`
	Forbidden bool          `json:"forbidden,omitempty"` // this user may not write there
}

// subject is the data for the checks. It is collected once, before they run.
type subject struct {
	Subject
	config  *config.Config
	service service.User // the user of the daemon

	daemon    wire.Status
	daemonErr error // nil while it runs; client.ErrNotRunning while it does not

	socket socketUnit

	tokens []token
	token  // the token under examination, for checks of one token

	apiKeys []appliance.APIKey // of the running daemon
	commits *commits
}

func (p *subject) running() bool { return p.daemonErr == nil }

func (p *subject) checkConfiguration() []Finding {
	c, err := p.Source.Load(nil)
	if err == nil {
		if err := daemon.RequireSetup(p.Source, c); err != nil {
			return []Finding{fail("attestd setup", "%s", err)}
		}
		err = daemon.CheckReferences(c)
	}
	if err == nil {
		p.service, err = service.UserOf(c.DataDir)
	}
	if errors.Is(err, fs.ErrPermission) {
		return []Finding{fail(asRoot, "not allowed for this user: %s", err)}
	}
	if err != nil {
		return []Finding{fail("correct the configuration, then run: attestd config check", "%s", err)}
	}
	p.config = c
	path := p.Source.Path()
	if !files.Exists(path) {
		return []Finding{ok("%s does not exist: all values are defaults or come from the environment", path)}
	}
	return []Finding{ok("%s", path)}
}

// doctorTimeout bounds all checks together: an HSM or a network file system may hang.
const doctorTimeout = 2 * time.Minute

// Examine runs all checks. If the configuration is invalid, it returns only the findings about that.
func Examine(ctx context.Context, of Subject) []Finding {
	ctx, cancel := context.WithTimeout(ctx, doctorTimeout)
	defer cancel()
	p := &subject{Subject: of, commits: new(commits)}
	findings := health.Named("configuration", p.checkConfiguration()...)
	if Worst(findings) == Fail {
		return findings
	}
	p.queryDaemon(ctx)
	all := checks()
	if err := p.forbidden(); err != nil {
		findings = append(findings, health.Named("daemon", fail(asRoot, "not allowed for this user: %s", err))...)
		all = openChecks()
	}
	for _, c := range all {
		if err := ctx.Err(); err != nil {
			unchecked := fail("attestd doctor", "not checked, because the checks before it took too long: %s", err)
			findings = append(findings, health.Named(c.name, unchecked)...)
			continue
		}
		findings = append(findings, health.Named(c.name, c.inTime(ctx, p)...)...)
	}
	return findings
}

// checkTimeout bounds a check.
const checkTimeout = 20 * time.Second

// checkGrace is how long a check may take to return after its context has ended.
const checkGrace = time.Second

// inTime runs a check with its own copy of the subject. If the check does not return in time, inTime abandons its
// goroutine and reports a failure. If the check panics, inTime reports that as a failure, too, because the daemon runs
// doctor for the console in the process that signs.
func (c checkup) inTime(ctx context.Context, p *subject) []Finding {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	own, began := *p, time.Now()
	found := make(chan []Finding, 1)
	go func() {
		defer func() {
			if cause := recover(); cause != nil {
				found <- []Finding{fail("report this fault of attestd to its makers, with this line",
					"the check panicked: %v (%s)", cause, panickedAt())}
			}
		}()
		found <- c.run(ctx, &own)
	}()
	select {
	case findings := <-found:
		return findings
	case <-ctx.Done():
	}
	took := time.Since(began).Round(time.Second)
	late := time.NewTimer(checkGrace)
	defer late.Stop()
	select {
	case findings := <-found:
		return findings
	case <-late.C:
		return []Finding{fail(
			"read the kernel's log (dmesg), and check the disk, the HSM or the network that this check uses",
			"the check hangs: no result after %s", took)}
	}
}

// panickedAt returns the file and line of a panic. It is for deferred functions that have recovered from the panic.
func panickedAt() string {
	callers := make([]uintptr, 32)
	frames := runtime.CallersFrames(callers[:runtime.Callers(1, callers)])
	for panicked := false; ; {
		frame, more := frames.Next()
		isRuntime := strings.HasPrefix(frame.Function, "runtime.")
		if panicked && !isRuntime || !more {
			return fmt.Sprintf("%s:%d", path.Base(frame.File), frame.Line)
		}
		panicked = panicked || frame.Function == "runtime.gopanic"
	}
}

func checkDaemon(_ context.Context, p *subject) []Finding {
	if errors.Is(p.daemonErr, client.ErrNotRunning) {
		return []Finding{warn("systemctl start attestd", "not running: no answer on %s", p.config.Admin.Socket)}
	}
	if p.daemonErr != nil {
		return []Finding{fail(asRoot, "%s", p.daemonErr)}
	}
	up := time.Since(p.daemon.Started).Round(time.Second)
	findings := []Finding{ok("running for %s, signing as %s", up, p.daemon.SignerAddress)}
	if p.daemon.Version != p.Version {
		findings = append(findings, warn("systemctl restart attestd",
			"the daemon has version %s, this command has version %s", p.daemon.Version, p.Version))
	}
	if used, named := p.daemon.Store, daemon.StoreName(p.config); used != "" && used != named {
		remedy := "systemctl restart attestd"
		if p.config.Store.URL != "" && config.IsDatabaseURL(used) {
			remedy = "attestd reload"
		}
		findings = append(findings,
			fail(remedy, "the daemon uses the store %s, but the configuration says %s", used, named))
	}
	for part, cause := range p.daemon.Failing {
		findings = append(findings, fail(health.RecoveryRemedy, "%s: %s", part, cause))
	}
	return findings
}

// Worst returns the worst state of all findings; OK without findings.
func Worst(findings []Finding) State { return health.Worst(findings) }
