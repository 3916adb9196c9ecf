package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/attestd/attestd/appliance/config"
	"github.com/attestd/attestd/appliance/daemon"
	"github.com/attestd/attestd/appliance/text"
	"github.com/attestd/attestd/store/postgres"
)

const (
	databasePatience = 15 * time.Second
	// clockApart is the tolerated offset of the database's clock. Record times come from the appliance's clock, and
	// never decrease.
	clockApart = time.Second
	// fewConnections is the number of connections that one appliance may use, with a reserve.
	fewConnections = 12
	trialCommit    = 5 * time.Second
)

// checkDatabase checks the database with the daemon's role: access, schema, durability of commits, TLS, clock,
// privileges, and differences between the members.
func checkDatabase(ctx context.Context, p *subject) []Finding {
	if p.config.Store.URL == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, databasePatience)
	defer cancel()
	url := p.config.Store.URL
	schema, err := postgres.Status(ctx, string(url))
	if err != nil {
		return []Finding{fail("psql "+text.ShellWord(string(url.WithoutPassword()))+
			" -c 'SELECT 1' shows the reason; check store.url, the passfile (PGPASSFILE), pg_hba.conf and the network",
			"%s: %s", url, oneLine(err))}
	}
	if f, fits := schemaFinding(url, schema); !fits {
		return []Finding{f}
	}
	store, err := daemon.ReadStore(p.config)
	if errors.Is(err, fs.ErrNotExist) {
		return []Finding{warn("attestd setup --join FILE, or start the first appliance",
			"%s: reachable, but there is no log key yet: %s", url, err)}
	}
	if err != nil {
		return []Finding{warn(asRoot, "%s", err)}
	}
	defer func() { _ = store.Close() }()
	if log, err := postgres.LogOf(ctx, string(url)); err == nil && log != "" { // log is empty before the first start
		if err := store.Database.CheckURL(ctx, string(url)); err != nil {
			return []Finding{fail("set store.url to the right database, or copy log.key from another member", "%s: %s",
				url, oneLine(err))}
		}
	}
	server, err := store.Database.Server(ctx)
	if err != nil {
		return []Finding{fail("read attestd's log (journalctl -u attestd) and the database's log", "%s: %s", url,
			oneLine(err))}
	}
	findings := []Finding{ok("%s: PostgreSQL %s, schema version %d", server.Address, server.Version, schema.Version)}
	took, err := p.commit(ctx)
	if !p.commits.tried {
		took, err = store.Database.Commit(ctx)
	}
	return slices.Concat(findings, keeping(url, server, took, err), reaching(url, server), mayDo(url, server),
		agreeing(ctx, store))
}

// commits is the result of the trial COMMIT, which is made once: while the standby is away, each one waits in vain.
type commits struct {
	once  sync.Once
	tried bool // false if the database could not be reached
	took  time.Duration
	err   error
}

// commit makes a COMMIT in the database, or returns the result of the earlier one. It returns no error if there is no
// database, or if the database cannot be reached.
func (p *subject) commit(ctx context.Context) (took time.Duration, failed error) {
	if p.config.Store.URL == "" {
		return 0, nil
	}
	p.commits.once.Do(func() {
		store, err := daemon.ReadStore(p.config)
		if err != nil {
			return
		}
		defer func() { _ = store.Close() }()
		ctx, cancel := context.WithTimeout(ctx, trialCommit)
		defer cancel()
		if _, err := store.Database.Server(ctx); err == nil {
			p.commits.tried = true
			p.commits.took, p.commits.err = store.Database.Commit(ctx)
		}
	})
	return p.commits.took, p.commits.err
}

// unread returns a finding if the database does not commit, because then no journal can be read from it.
func (p *subject) unread(ctx context.Context) []Finding {
	if _, err := p.commit(ctx); err != nil {
		return []Finding{warn("see the findings on the database", "not checked: %s", oneLine(err))}
	}
	return nil
}

// agreeing reports differences between members in settings that must be equal.
func agreeing(ctx context.Context, store *daemon.Store) (findings []Finding) {
	cluster, err := store.Cluster(ctx)
	if err != nil {
		return []Finding{warn("run: attestd cluster status", "cannot read the members: %s", oneLine(err))}
	}
	for _, d := range cluster.Differences {
		findings = append(findings, fail(d.Remedy(), "the members differ: %s", d))
	}
	if len(findings) == 0 && len(cluster.Members) > 1 {
		findings = append(findings,
			ok("the running members have the same policy, screening list, digest scheme and signer"))
	}
	return findings
}

// schemaFinding reports tables that do not fit this attestd.
func schemaFinding(url config.DatabaseURL, s postgres.Schema) (f Finding, fits bool) {
	owner := text.ShellWord(string(ownerOf(url)))
	switch {
	case s.Version == 0:
		return fail("attestd store init --url "+owner, "%s: the database has no attestd tables", url), false
	case s.Version < s.Newest:
		return fail("attestd store migrate --url "+owner,
			"%s: the schema has version %d, this attestd needs version %d", url, s.Version, s.Newest), false
	case s.Check() != nil:
		return fail(
			"apt install ./attestd_*.deb, of the version that attestd cluster status shows for the others; then: systemctl restart attestd", "%s: %s", url, s.Check()), false
	}
	return f, true
}

// ownerOf returns the URL with the user postgres, as the owner is likely to connect.
func ownerOf(url config.DatabaseURL) config.DatabaseURL {
	owner, err := url.As("postgres")
	if err != nil {
		return url
	}
	return owner
}

// keeping reports whether committed data is durable. took and failed are the result of a trial COMMIT.
func keeping(url config.DatabaseURL, s postgres.Server, took time.Duration, failed error) (findings []Finding) {
	alter := func(setting, value string) string {
		return fmt.Sprintf("psql "+text.ShellWord(string(ownerOf(url)))+
			" -c \"ALTER SYSTEM SET %s = '%s'\" -c 'SELECT pg_reload_conf()'", setting, value)
	}
	if s.InRecovery {
		findings = append(findings,
			fail(
				"set store.url to the primary, or to all servers: postgres://attestd@a,b/attestd?target_session_attrs=read-write", "%s is a standby and refuses writes", s.Address))
	}
	if !s.Fsync {
		findings = append(findings,
			fail(alter("fsync", "on"), "fsync is off: a power cut may lose issued attestations, or the whole database"))
	}
	if !s.FullPageWrites {
		findings = append(findings,
			fail(alter("full_page_writes", "on"), "full_page_writes is off: a power cut may damage the database"))
	}
	switch {
	case s.SynchronousCommit == "off" || s.SynchronousCommit == "local" && s.SynchronousFor != "":
		findings = append(findings,
			fail(alter("synchronous_commit", "on"),
				"synchronous_commit is %s: issued attestations are lost if the server or the primary fails",
				s.SynchronousCommit))
	case s.SynchronousFor == "":
		findings = append(findings, warn(alter("synchronous_standby_names", "ANY 1 (*)")+", once a standby replicates",
			"synchronous_standby_names is empty: a commit does not wait for a standby, so a promoted standby may lack issued attestations"))
	case !s.Synchronous():
		findings = append(findings,
			warn(alter("synchronous_commit", "on"),
				"synchronous_commit is %s: a standby may lose commits that it has not written to its disk",
				s.SynchronousCommit))
	case failed == nil:
		findings = append(findings, ok("a commit reached the disk of a standby in %s (synchronous_commit %s, %s)",
			took.Round(100*time.Microsecond), s.SynchronousCommit, s.SynchronousFor))
	}
	if failed != nil {
		findings = append(findings,
			fail("psql "+text.ShellWord(string(ownerOf(url)))+
				" -c 'TABLE pg_stat_replication' shows the standbys; then follow docs/cluster.md, \"The standby is away\"", "the database does not commit, so attestd cannot attest: %s", oneLine(failed)))
	}
	return findings
}

// reaching reports the server's clock, the security of the connection, and the free connections.
func reaching(url config.DatabaseURL, s postgres.Server) (findings []Finding) {
	if apart := s.Offset.Abs(); apart > clockApart {
		findings = append(findings,
			warn(
				"synchronise the clocks of this machine and of the database: systemctl enable --now systemd-timesyncd (or chrony)",
				"the database's clock differs from this machine's by %s", apart.Round(time.Millisecond)))
	}
	switch {
	case s.Remote && s.TLS == "":
		findings = append(findings,
			fail("set sslmode=verify-full in store.url", "the connection crosses the network without TLS"))
	case s.Remote && !postgres.VerifiesHost(string(url)):
		findings = append(findings,
			warn("set sslmode=verify-full in store.url, and sslrootcert unless the system trusts the server's CA",
				"%s, but the server's name is not verified", s.TLS))
	case s.Remote:
		findings = append(findings, ok("the connection uses %s", s.TLS))
	}
	if left := s.Most - s.Connections; left < fewConnections {
		findings = append(findings,
			warn("psql "+text.ShellWord(string(ownerOf(url)))+
				" -c 'ALTER SYSTEM SET max_connections = 200', then restart the server; or close other connections, which SELECT * FROM pg_stat_activity lists",
				"%d of %d connections are in use; an appliance needs up to %d", s.Connections, s.Most, fewConnections))
	}
	return findings
}

// mayDo reports privileges that the daemon's role lacks, and privileges that it should not have.
func mayDo(url config.DatabaseURL, s postgres.Server) []Finding {
	owner := text.ShellWord(string(ownerOf(url)))
	switch {
	case len(s.Missing) > 0:
		return []Finding{fail("attestd store init --url "+owner+" --role "+s.Role, "the role %s lacks %s", s.Role,
			strings.Join(s.Missing, ", "))}
	case slices.Contains(s.Powers, "SUPERUSER") || len(s.Owned) > 0:
		return []Finding{fail("attestd store init --url "+owner+" --role attestd, then set store.url as it prints",
			"the daemon's role owns the tables, or may change them: an attacker in the daemon could rewrite the journal")}
	case len(s.Powers) > 0:
		return []Finding{warn(revoke(owner, s), "the daemon's role has unnecessary privileges: %s",
			strings.Join(s.Powers, ", "))}
	}
	return []Finding{ok("the role %s has the privileges it needs, and cannot change tables", s.Role)}
}

// revoke is the command that revokes the excess privileges.
func revoke(url string, s postgres.Server) string {
	var statements []string
	for _, p := range s.Powers {
		if schema, create := strings.CutPrefix(p, "CREATE in the schema "); create {
			statements = append(statements, "REVOKE CREATE ON SCHEMA "+schema+" FROM PUBLIC, "+s.Role)
		} else {
			statements = append(statements, "ALTER ROLE "+s.Role+" NO"+p)
		}
	}
	return "psql " + url + " -c \"" + strings.Join(statements, "; ") + "\""
}

// oneLine joins the lines of an error.
func oneLine(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }
