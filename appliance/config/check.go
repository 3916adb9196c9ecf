package config

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/netip"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"filippo.io/age"

	"github.com/attestd/attestd/appliance"
)

// isWebAddress reports whether s is an http or https URL without user, query and fragment, which may be secret.
func isWebAddress(s string) bool {
	u, err := url.Parse(s)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != "" && u.User == nil &&
		u.RawQuery == "" && u.Fragment == ""
}

// validate checks the values without opening files or connections.
func (c *Config) validate() error {
	var failures []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			failures = append(failures, fmt.Errorf(format, args...))
		}
	}
	if _, err := c.Scheme(); err != nil {
		failures = append(failures, err)
	}
	c.validateKeys(check)
	check(c.DataDir != "", "data_dir: must not be empty")
	c.validateStore(check)
	for _, a := range []struct{ name, value string }{{"server.listen", c.Server.Listen},
		{"metrics.listen", c.Metrics.Listen}, {"console.listen", c.Console.Listen}} {
		optional := a.name != "server.listen" && a.value == ""
		check(optional || IsHostPort(a.value), "%s: %q is not an address and port such as 127.0.0.1:8080", a.name,
			a.value)
	}
	check((c.Server.TLS.Cert == "") == (c.Server.TLS.Key == ""), "server.tls: set cert and key together")
	check(c.Server.TLS.ClientCA == "" ||
		c.Server.TLS.Cert != "", "server.tls.client_ca: needs server.tls.cert and server.tls.key")
	c.validateServer(check)
	c.validateConsole(check)
	check(c.Tracing.Endpoint == "" || isWebAddress(c.Tracing.Endpoint),
		"tracing.endpoint: %q is not the address of a collector such as http://127.0.0.1:4318", c.Tracing.Endpoint)
	c.validateJournal(check)
	check(c.Server.AttestBodyLimit > 0, "server.attest_body_limit: must be more than zero")
	check(c.Limits.DefaultRate != appliance.Rate{}, "limits.default_rate: must be a rate such as 100/s")
	check(c.Limits.AnonymousRate != appliance.Rate{}, "limits.anonymous_rate: must be a rate such as 100/s")
	check(c.Limits.LogRate != appliance.Rate{}, "limits.log_rate: must be a rate such as 100/s")
	check(c.Limits.Streams > 0, "limits.streams: must be at least 1")
	check(c.Limits.ErrorRate != appliance.Rate{}, "limits.error_rate: must be a rate such as 600/m, or unlimited")
	check(c.Limits.MaxWaiting > 0, "limits.max_waiting: must be more than zero")
	check(c.HSM.Sessions >= 0 && c.HSM.Sessions <= maxSessions, "hsm.sessions: must be 0 to %d", maxSessions)
	check(c.HSM.CallTimeout >= 0 && c.HSM.CallTimeout < max(c.Server.RequestTimeout, 1),
		"hsm.call_timeout: must be shorter than server.request_timeout (%s), and not less than zero",
		c.Server.RequestTimeout)
	c.validateWorker(check)
	c.validateGraphQL(check)
	c.validateUpstream(check)
	c.validateSinks(check)
	c.validateOrigins(check)
	c.validateChain(check)
	c.validateIndexer(check)
	c.validateQuorum(check)
	check(slices.Contains([]string{"debug", "info", "warn", "error"}, c.Log.Level),
		"log.level: %q is not debug, info, warn or error", c.Log.Level)
	check(slices.Contains([]string{"auto", "text", "json"}, c.Log.Format), "log.format: %q is not auto, text or json",
		c.Log.Format)
	return errors.Join(failures...)
}

func (c *Config) validateGraphQL(check func(ok bool, format string, args ...any)) {
	check(slices.Contains([]string{FromReplica, FromChains, FromProxy, FromOff}, c.GraphQL.Source),
		"graphql.source: %q is not replica, chains, proxy or off", c.GraphQL.Source)
	check(c.Limits.GraphQLRate != appliance.Rate{}, "limits.graphql_rate: must be a rate such as 100/s, or unlimited")
	g := c.GraphQL
	for name, value := range map[string]int64{
		"max_query": int64(g.MaxQuery), "max_variables": int64(g.MaxVariables), "max_response": int64(g.MaxResponse),
		"cache_size":    int64(g.CacheSize),
		"answer_memory": int64(g.AnswerMemory),
		"max_tokens":    int64(g.MaxTokens), "max_depth": int64(g.MaxDepth), "max_root_fields": int64(g.MaxRootFields),
		"max_aliases": int64(g.MaxAliases), "max_cost": int64(g.MaxCost), "timeout": int64(g.Timeout),
	} {
		check(value > 0 && value <= math.MaxInt32 || name == "timeout" &&
			value > 0, "graphql.%s: must be more than zero, and less than 2 GiB", name)
	}
	check(g.AnswerMemory >= 2*g.MaxResponse, "graphql.answer_memory: must be at least twice graphql.max_response")
	check(g.Executions >= 0 && g.Executions <= maxExecutions, "graphql.executions: must be 0 to %d", maxExecutions)
}

// maxWitnessInterval bounds the time until a checkpoint is witnessed.
const maxWitnessInterval = 24 * time.Hour

// minBackupAge is the smallest backup.max_age. A backup of a large journal takes minutes.
const minBackupAge = time.Minute

func (c *Config) validateJournal(check func(ok bool, format string, args ...any)) {
	check(c.Journal.MaxAhead > 0, "journal.max_ahead: must be more than zero")
	check(c.Journal.WitnessInterval >= minInterval && c.Journal.WitnessInterval <= maxWitnessInterval,
		"journal.witness_interval: must be %s to %s", minInterval, maxWitnessInterval)
	check(c.Backup.MaxAge == 0 || c.Backup.MaxAge >= minBackupAge, "backup.max_age: must be at least %s, or 0s",
		minBackupAge)
	check(c.Backup.Recipient == "" ||
		c.Backup.PassphraseFile == "", "backup: set recipient or passphrase_file, not both")
	if c.Backup.Recipient != "" {
		_, err := age.ParseRecipients(strings.NewReader(c.Backup.Recipient))
		check(err == nil, "backup.recipient: %q is not an age recipient such as age1…, which age-keygen prints",
			c.Backup.Recipient)
	}
}

// validateWorker checks the permissions of the HSM's worker.
func (c *Config) validateWorker(check func(ok bool, format string, args ...any)) {
	check(slices.Contains([]string{"auto", "none", "unix", "any"}, c.HSM.WorkerNetwork),
		"hsm.worker_network: %q is not auto, none, unix or any", c.HSM.WorkerNetwork)
	for _, path := range c.HSM.WorkerPaths {
		check(filepath.IsAbs(path), "hsm.worker_paths: %q is not an absolute path", path)
	}
}

// validateServer checks the timeouts and limits of the API's server.
func (c *Config) validateServer(check func(ok bool, format string, args ...any)) {
	for _, d := range []struct {
		name  string
		value time.Duration
	}{
		{"request_timeout", c.Server.RequestTimeout}, {"read_timeout", c.Server.ReadTimeout},
		{"write_timeout", c.Server.WriteTimeout},
		{"idle_timeout", c.Server.IdleTimeout}, {"shutdown_timeout", c.Server.ShutdownTimeout},
		{"anonymous_idle_timeout", c.Server.AnonymousIdleTimeout},
	} {
		check(d.value > 0, "server.%s: must be more than zero", d.name)
	}
	check(c.Server.MaxConnections > 0 &&
		c.Server.MaxConnections <= maxConnections, "server.max_connections: must be 1 to %d", maxConnections)
	check(c.Server.MaxConnectionsPerAddress > 0, "server.max_connections_per_address: must be more than zero")
}

// maxConnections is far above the number that memory allows.
const maxConnections = 1 << 20

// maxSessions is far above the sessions that any HSM needs, and maxExecutions far above any number of processors.
const (
	maxSessions   = 1024
	maxExecutions = 1024
)

// The values of graphql.source. FromProxy is also a value of graphql.fallback.
const (
	FromReplica = "replica"
	FromChains  = "chains"
	FromProxy   = "proxy"
	FromOff     = "off"
)

// Scheme returns the configured digest scheme.
func (c *Config) Scheme() (appliance.Scheme, error) {
	e := c.Attestation.EIP712
	domain := appliance.EIP712Domain{Name: e.Name, Version: e.Version, ChainID: e.ChainID}
	if e.VerifyingContract != "" {
		contract, err := appliance.ParseAddress(e.VerifyingContract)
		if err != nil {
			return appliance.Scheme{}, fmt.Errorf("attestation.eip712.verifying_contract %w", err)
		}
		domain.VerifyingContract = &contract
	}
	var given *appliance.EIP712Domain
	if domain != (appliance.EIP712Domain{}) {
		given = &domain
	}
	scheme, err := appliance.NewScheme(appliance.SchemeName(c.Attestation.Scheme), given)
	if err != nil {
		err = fmt.Errorf("attestation.scheme: %w", err)
	}
	return scheme, err
}

// HSMCallTimeout returns hsm.call_timeout. If that is zero, it is a third of the request timeout.
func (c *Config) HSMCallTimeout() time.Duration {
	if c.HSM.CallTimeout > 0 {
		return c.HSM.CallTimeout
	}
	return c.Server.RequestTimeout / 3
}

// Level returns log.level, which validate has checked.
func (c *Config) Level() (level slog.Level) {
	if level.UnmarshalText([]byte(c.Log.Level)) != nil {
		return slog.LevelInfo
	}
	return level
}

func (c *Config) validateOrigins(check func(ok bool, format string, args ...any)) {
	for name, origins := range map[string][]string{"server.origins": c.Server.Origins,
		"graphql.origins": c.GraphQL.Origins} {
		for _, origin := range origins {
			check(isOrigin(origin), "%s: %q is not an origin such as https://app.example.com, or * for any", name,
				origin)
		}
	}
}

// isOrigin reports whether s is an origin as browsers send it (RFC 6454, section 6.2), or * for any.
func isOrigin(s string) bool {
	u, err := url.Parse(s)
	return s == "*" || err == nil && u.Host != "" && s == strings.ToLower(u.Scheme+"://"+u.Host)
}

// IsHostPort reports whether s is an address to listen on.
func IsHostPort(s string) bool {
	_, port, found := SplitPort(s)
	n, err := strconv.ParseUint(port, 10, 16)
	return found && err == nil && n <= 65535
}

// SplitPort splits an address to listen on at its last colon.
func SplitPort(address string) (host, port string, found bool) {
	i := strings.LastIndex(address, ":")
	if i < 0 {
		return address, "", false
	}
	return address[:i], address[i+1:], true
}

// IsLoopback reports whether an address to listen on is reachable from this machine only.
func IsLoopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.IsLoopback()
}
