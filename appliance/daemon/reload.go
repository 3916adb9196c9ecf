package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"golang.org/x/sys/unix"

	"github.com/attestd/attestd/api"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/config"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/appliance/policy"
)

// reload reads the configuration again and applies the settings that a running daemon can change. It returns the names
// of changed settings that need a restart. After an error nothing has changed. by is the requesting user.
func (r *running) reload(by string) ([]string, error) {
	r.reloading.Lock()
	defer r.reloading.Unlock()
	// Type=notify supports RELOADING=1, too. READY=1 must follow in every case.
	r.notify(fmt.Sprintf("%s\nMONOTONIC_USEC=%d", daemon.SdNotifyReloading, monotonicMicroseconds()))
	defer r.notify(daemon.SdNotifyReady)
	needRestart, err := r.reloadConfig(by)
	if err != nil {
		r.logger.Error("the reload failed; the old configuration stays in effect", "error", err.Error())
		return nil, err
	}
	r.logger.Info("reload: the configuration is loaded", "need_restart", needRestart)
	return needRestart, nil
}

// recordReload records the changes of a reload before they take effect. Without its event, another policy does not take
// effect.
func (r *running) recordReload(by string, p *policy.Policy, changed, needRestart []string) error {
	if before, next := *r.governed.Load(), rulesOf(p); !next.equal(before) {
		if err := r.events.Append(context.Background(), policyEvent(before, next, p, by)); err != nil {
			return err
		}
		if err := next.write(r.config.DataDir); err != nil { // the next start compares with older rules
			r.logger.Warn("policy: the next start cannot compare with it", "error", err.Error())
		}
		r.logger.Info("policy: loaded", "policy", next.Policy.hash(), "screening_list", next.Screening.hash())
	}
	details := make(map[string]string)
	for name, settings := range map[string][]string{"settings": changed, "needRestart": needRestart} {
		if len(settings) > 0 {
			details[name] = strings.Join(settings, " ")
		}
	}
	return r.events.RecordOrQueue(journal.Event{Kind: journal.EventConfigReloaded, By: by, Details: details})
}

// reloadConfig returns the names of changed settings that need a restart.
func (r *running) reloadConfig(by string) (needRestart []string, err error) {
	next, err := r.readConfig()
	if err != nil {
		return nil, err
	}
	// All steps that can fail come first, so that a configuration is applied as a whole or not at all.
	adoptTLS, err := r.prepareTLS(next)
	if err != nil {
		return nil, err
	}
	adoptSinks, err := r.shipping.prepare(next, r.options.Version)
	if err != nil {
		return nil, err
	}
	last, err := readRules(r.config.DataDir) // it has the losses that an operator has confirmed meanwhile
	if err != nil {
		return nil, err
	}
	policy, err := last.read(next)
	if err != nil {
		return nil, err
	}
	witnessPolicy, err := readWitnesses(next)
	if err != nil {
		return nil, err
	}
	adoptKeys, err := r.prepareKeys(next)
	if err != nil {
		return nil, err
	}
	adoptURL, err := r.prepareURL(next)
	if err != nil {
		return nil, err
	}
	needRestart = r.changedOtherwise(next)
	if err := r.recordReload(by, policy, r.loaded.Differing(next), needRestart); err != nil {
		return nil, err
	}
	adoptKeys()
	adoptURL()
	adoptTLS()
	adoptSinks()
	r.govern(policy)
	r.witnesses.Use(witnessPolicy)
	if r.options.Level != nil {
		r.options.Level.Set(next.Level())
	}
	r.servers.public.SetRates(next.Limits.DefaultRate, next.Limits.AnonymousRate)
	r.loaded = next
	return needRestart, nil
}

// readConfig reads and checks the configuration.
func (r *running) readConfig() (*config.Config, error) {
	if r.options.Load == nil {
		return nil, errors.New("this daemon cannot reload its configuration; restart it")
	}
	next, err := r.options.Load()
	if err != nil {
		return nil, err
	}
	if err := errors.Join(checkReferences(next), checkModes(next), checkRegular(next)); err != nil {
		return nil, err
	}
	if len(r.options.Sockets) == 0 { // otherwise server.listen is not used
		if err := CheckPlainHTTP(next); err != nil {
			return nil, err
		}
	}
	return next, nil
}

// checkRegular returns an error for each configured file that is not a regular file. Opening a FIFO would block for
// ever.
func checkRegular(c *config.Config) error {
	var failures []error
	for _, f := range []struct{ setting, path string }{
		{"attestation.policy", c.Attestation.Policy}, {"attestation.screening_list", c.Attestation.ScreeningList},
		{"journal.witnesses", c.Journal.Witnesses},
		{"server.tls.cert", c.Server.TLS.Cert}, {"server.tls.key", c.Server.TLS.Key},
		{"server.tls.client_ca", c.Server.TLS.ClientCA},
	} {
		if f.path == "" {
			continue
		}
		if stat, err := os.Stat(f.path); err == nil && !stat.Mode().IsRegular() { // the reader reports other errors
			failures = append(failures,
				fmt.Errorf("%s: %s is %s; set it to a regular file", f.setting, f.path, stat.Mode().Type()))
		}
	}
	return errors.Join(failures...)
}

// prepareKeys opens the attestor keys of next that are not open yet. adopt makes the daemon use them.
func (r *running) prepareKeys(next *config.Config) (adopt func(), err error) {
	ctx, cancel := context.WithTimeout(context.Background(), hsmStartTimeout)
	defer cancel()
	var newest *appliance.Address
	if next.DefaultKey().Address == "" { // only then the journal decides which key is expected
		if newest, err = newestSigner(ctx, r.attestor.Journal); err != nil {
			return nil, err
		}
	}
	return r.signer.prepare(ctx, next, newest)
}

// prepareTLS loads the TLS files of next. adopt makes the server use them. Turning TLS on or off needs a restart.
func (r *running) prepareTLS(next *config.Config) (adopt func(), err error) {
	files := next.Server.TLS
	if r.servers.certificates == nil || files.Cert == "" {
		return func() {}, nil
	}
	if at := r.config.Console.Listen; files.ClientCA == "" && at != "" && !config.IsLoopback(at) {
		return nil,
			fmt.Errorf(
				"server.tls.client_ca: the console at %s accepts client certificates until attestd is restarted: systemctl restart attestd", at)
	}
	loaded, err := api.LoadCertificates(files.Cert, files.Key, files.ClientCA)
	if err != nil {
		return nil, fmt.Errorf("server.tls: %w", err)
	}
	return func() { r.servers.certificates.Replace(loaded) }, nil
}

// prepareURL checks a changed store.url, for example one with a new password, by connecting with it.
func (r *running) prepareURL(next *config.Config) (adopt func(), err error) {
	url := string(next.Store.URL)
	if r.store.Database == nil || url == "" || url == r.store.Database.URL() {
		return func() {}, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), urlTimeout)
	defer cancel()
	if err := r.store.Database.CheckURL(ctx, url); err != nil {
		return nil, fmt.Errorf("store.url: %w", err)
	}
	return func() { r.store.Database.UseURL(url) }, nil
}

// urlTimeout is the deadline for that connection.
const urlTimeout = 5 * time.Second

// changedOtherwise returns the names of settings whose values differ from those in effect.
func (r *running) changedOtherwise(next *config.Config) (names []string) {
	tlsToggled := (r.servers.certificates == nil) != (next.Server.TLS.Cert == "")
	for _, name := range r.config.Differing(next) {
		live := slices.Contains(config.Reloadable(), name)
		if tlsToggled && strings.HasPrefix(name, "server.tls.") {
			live = false
		}
		if name == "store.url" && (r.config.Store.URL == "" || next.Store.URL == "") {
			// switching between file and database
			live = false
		}
		if !live {
			names = append(names, name)
		}
	}
	return names
}

// monotonicMicroseconds returns CLOCK_MONOTONIC, by which systemd distinguishes reloads (sd_notify(3)).
func monotonicMicroseconds() int64 {
	var now unix.Timespec
	if unix.ClockGettime(unix.CLOCK_MONOTONIC, &now) != nil {
		return 0
	}
	return time.Duration(now.Nano()).Microseconds()
}
