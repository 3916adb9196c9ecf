package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"time"

	"github.com/attestd/attestd/api"
	"github.com/attestd/attestd/api/console"
	"github.com/attestd/attestd/api/wire"
	"github.com/attestd/attestd/appliance/config"
)

// listenConsole adds the server of the console, if there is one. The admin socket's server can then make links to it.
func (r *running) listenConsole(ctx context.Context, inside *api.Inside, admin *api.AdminOptions) error {
	if r.config.Console.Listen == "" {
		return nil
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", r.config.Console.Listen)
	if err != nil {
		return fmt.Errorf("console.listen: %w", err)
	}
	options := r.consoleOptions(l.Addr())
	options.Dial, options.OIDC = inside.Dial, r.oidc()
	c, err := console.New(options)
	if err != nil {
		return errors.Join(fmt.Errorf("console: %w", err), l.Close())
	}
	r.servers.console, admin.ConsoleLink = options.URL, c.Link
	r.servers.all = append(r.servers.all, server{"console", l, c.Serve, c.Shutdown})
	return nil
}

// consoleOptions returns the options of a console that listens at an address. Other machines reach the console through
// the API's TLS with a client certificate. This machine needs neither.
func (r *running) consoleOptions(at net.Addr) console.Options {
	o := console.Options{URL: &url.URL{Scheme: "http", Host: at.String()}, Logger: r.logger, Now: time.Now,
		Quorum: r.quorum != nil, Indexer: r.config.Indexes()}
	for part, configured := range map[console.Part]bool{
		console.Watchtower: r.tower != nil,
		console.Witnesses:  r.witnesses != nil && r.config.Journal.Witnesses != "",
		console.Cluster:    r.store.Database != nil,
		console.Sinks:      len(r.config.Audit.Sinks) > 0,
		console.Policy:     r.config.Attestation.Policy != "" || r.config.Attestation.ScreeningList != "",
	} {
		if configured {
			o.Parts = append(o.Parts, part)
		}
	}
	if config.IsLoopback(r.config.Console.Listen) {
		o.Hosts = []string{"localhost", "127.0.0.1", "::1"}
	} else {
		o.URL.Scheme, o.TLS = "https", r.servers.certificates.Config()
	}
	if named, err := url.Parse(r.config.Console.URL); err == nil && named.Host != "" { // it was validated
		named.Path = ""
		o.URL = named
	}
	return o
}

// oidc returns the OpenID Connect provider, nil if there is none.
func (r *running) oidc() *console.OIDC {
	c := r.config.Console.OIDC
	if c.Issuer == "" {
		return nil
	}
	o := &console.OIDC{Issuer: c.Issuer, ClientID: c.ClientID, Scopes: c.Scopes, Claim: c.GroupsClaim,
		Roles: make(map[string]console.Role)}
	for _, granted := range []struct {
		groups []string
		role   console.Role
	}{{c.Viewers, console.Viewer}, {c.Auditors, console.Auditor}, {c.Operators, console.Operator}} {
		for _, group := range granted.groups {
			o.Roles[group] = granted.role
		}
	}
	o.Secret = func() (string, error) {
		if c.ClientSecret == "" {
			return "", nil
		}
		return readHeader(config.Header{Name: "client_secret", Value: c.ClientSecret})
	}
	return o
}

// settings returns the values in effect: reloadable settings from the newest configuration, the others from the start.
func (r *running) settings() []wire.Setting {
	r.reloading.Lock()
	loaded := r.loaded
	r.reloading.Unlock()
	started, newest, waiting := r.config.Shown(), loaded.Shown(), r.changedOtherwise(loaded)
	var all []wire.Setting
	for _, s := range config.Settings() {
		shown := wire.Setting{
			Name: s.Name, Value: started[s.Name], Source: r.config.Origin(s.Name), Doc: s.Doc,
			Restart: !slices.Contains(config.Reloadable(), s.Name), Waiting: slices.Contains(waiting, s.Name),
		}
		if !shown.Restart && !shown.Waiting {
			shown.Value, shown.Source = newest[s.Name], loaded.Origin(s.Name)
		}
		all = append(all, shown)
	}
	return all
}
