// Package config is the configuration of an appliance. It defines every setting with its default, its validation and
// its description. 'attestd config show', the installed reference file, attestd.yaml(5) and docs/configuration.md are
// generated from it.
package config

//go:generate go run ./generate ../../docs/configuration.md

import (
	"net/netip"
	"slices"
	"time"

	"github.com/attestd/attestd/appliance"
)

// DefaultFile is the configuration file unless --config names another. If it is missing, all values are defaults. It
// belongs to the operator: 'attestd setup' writes it, and the packages do not contain it.
const DefaultFile = "/etc/attestd/attestd.yaml"

// ReferenceFile is the packages' list of all settings with their defaults, for people. attestd does not read it.
const ReferenceFile = "/usr/share/attestd/attestd.yaml"

// debianSoftHSM is the path of SoftHSM's library on Debian.
const debianSoftHSM = "/usr/lib/softhsm/libsofthsm2.so"

// envPrefix is the prefix of environment variables: ATTESTD_SERVER_LISTEN sets server.listen.
const envPrefix = "ATTESTD_"

// envOther are variables with this prefix that are not settings.
var envOther = []string{"ATTESTD_CONFIG", "ATTESTD_API_KEY", "ATTESTD_URL"}

// Config is the configuration. The path of koanf tags is the name of a setting.
type Config struct {
	DataDir string `koanf:"data_dir"`
	Server  struct {
		Listen         string `koanf:"listen"`
		AllowPlainHTTP bool   `koanf:"allow_plain_http"`
		TLS            struct {
			Cert     string `koanf:"cert"`
			Key      string `koanf:"key"`
			ClientCA string `koanf:"client_ca"`
		} `koanf:"tls"`
		Origins         []string       `koanf:"origins"`
		TrustedProxies  []netip.Prefix `koanf:"trusted_proxies"`
		AttestBodyLimit Size           `koanf:"attest_body_limit"`
		RequestTimeout  time.Duration  `koanf:"request_timeout"`
		ReadTimeout     time.Duration  `koanf:"read_timeout"`
		WriteTimeout    time.Duration  `koanf:"write_timeout"`
		IdleTimeout     time.Duration  `koanf:"idle_timeout"`
		ShutdownTimeout time.Duration  `koanf:"shutdown_timeout"`

		MaxConnections           int           `koanf:"max_connections"`
		MaxConnectionsPerAddress int           `koanf:"max_connections_per_address"`
		AnonymousIdleTimeout     time.Duration `koanf:"anonymous_idle_timeout"`
	} `koanf:"server"`
	Limits struct {
		DefaultRate   appliance.Rate `koanf:"default_rate"`
		AnonymousRate appliance.Rate `koanf:"anonymous_rate"`
		GraphQLRate   appliance.Rate `koanf:"graphql_rate"`
		LogRate       appliance.Rate `koanf:"log_rate"`
		ErrorRate     appliance.Rate `koanf:"error_rate"`
		MaxWaiting    int            `koanf:"max_waiting"`
	} `koanf:"limits"`
	Admin struct {
		Socket string `koanf:"socket"`
	} `koanf:"admin"`
	Metrics struct {
		Listen string `koanf:"listen"`
	} `koanf:"metrics"`
	Console struct {
		Listen string `koanf:"listen"`
		URL    string `koanf:"url"`
		OIDC   struct {
			Issuer       string   `koanf:"issuer"`
			ClientID     string   `koanf:"client_id"`
			ClientSecret string   `koanf:"client_secret"`
			Scopes       []string `koanf:"scopes"`
			GroupsClaim  string   `koanf:"groups_claim"`
			Viewers      []string `koanf:"viewers"`
			Auditors     []string `koanf:"auditors"`
			Operators    []string `koanf:"operators"`
		} `koanf:"oidc"`
	} `koanf:"console"`
	Tracing struct {
		Endpoint string `koanf:"endpoint"`
	} `koanf:"tracing"`
	HSM struct {
		URI              string        `koanf:"uri"`
		URIs             []string      `koanf:"uris"`
		Keys             []AttestorKey `koanf:"keys"`
		Sessions         int           `koanf:"sessions"`
		CallTimeout      time.Duration `koanf:"call_timeout"`
		Address          string        `koanf:"address"`
		AllowExtractable bool          `koanf:"allow_extractable"`
		WorkerPaths      []string      `koanf:"worker_paths"`
		WorkerNetwork    string        `koanf:"worker_network"`
	} `koanf:"hsm"`
	Attestation struct {
		Scheme        string `koanf:"scheme"`
		ScreeningList string `koanf:"screening_list"`
		Policy        string `koanf:"policy"`
		EIP712        struct {
			Name              string `koanf:"name"`
			Version           string `koanf:"version"`
			ChainID           uint64 `koanf:"chain_id"`
			VerifyingContract string `koanf:"verifying_contract"`
		} `koanf:"eip712"`
	} `koanf:"attestation"`
	Store struct {
		URL DatabaseURL `koanf:"url"`
	} `koanf:"store"`
	Cluster struct {
		Name string `koanf:"name"`
	} `koanf:"cluster"`
	Journal struct {
		Origin   string        `koanf:"origin"`
		MinFree  Size          `koanf:"min_free"`
		MaxAhead time.Duration `koanf:"max_ahead"`

		Witnesses       string        `koanf:"witnesses"`
		WitnessInterval time.Duration `koanf:"witness_interval"`
	} `koanf:"journal"`
	Backup struct {
		Recipient      string `koanf:"recipient"`
		PassphraseFile string `koanf:"passphrase_file"`
	} `koanf:"backup"`
	Chain struct {
		Contracts    []Contract    `koanf:"contracts"`
		PollInterval time.Duration `koanf:"poll_interval"`
		Halt         bool          `koanf:"halt"`
	} `koanf:"chain"`
	GraphQL struct {
		Source            string         `koanf:"source"`
		Upstream          string         `koanf:"upstream"`
		UpstreamHeaders   []Header       `koanf:"upstream_headers"`
		UpstreamCA        string         `koanf:"upstream_ca"`
		UpstreamAllowHTTP bool           `koanf:"upstream_allow_http"`
		UpstreamTimeout   time.Duration  `koanf:"upstream_timeout"`
		UpstreamRate      appliance.Rate `koanf:"upstream_rate"`
		PollInterval      time.Duration  `koanf:"poll_interval"`
		RefreshInterval   time.Duration  `koanf:"refresh_interval"`
		Overlap           time.Duration  `koanf:"overlap"`
		MaxLag            time.Duration  `koanf:"max_lag"`
		Fallback          string         `koanf:"fallback"`
		ServeUnverified   bool           `koanf:"serve_unverified"`
		StaleIfError      time.Duration  `koanf:"stale_if_error"`

		RequireKey    bool          `koanf:"require_key"`
		Introspection bool          `koanf:"introspection"`
		Playground    bool          `koanf:"playground"`
		Origins       []string      `koanf:"origins"`
		CacheSize     Size          `koanf:"cache_size"`
		Executions    int           `koanf:"executions"`
		AnswerMemory  Size          `koanf:"answer_memory"`
		MaxQuery      Size          `koanf:"max_query"`
		MaxVariables  Size          `koanf:"max_variables"`
		MaxResponse   Size          `koanf:"max_response"`
		MaxTokens     int           `koanf:"max_tokens"`
		MaxDepth      int           `koanf:"max_depth"`
		MaxRootFields int           `koanf:"max_root_fields"`
		MaxAliases    int           `koanf:"max_aliases"`
		MaxCost       int           `koanf:"max_cost"`
		Timeout       time.Duration `koanf:"timeout"`
	} `koanf:"graphql"`
	Audit struct {
		Sinks []Sink `koanf:"sinks"`
	} `koanf:"audit"`
	Log struct {
		Level  string `koanf:"level"`
		Format string `koanf:"format"`
	} `koanf:"log"`

	origins map[string]string // source of each value that is not a default; see Origin
	file    string
}

// File returns the path of the configuration file, which may not exist.
func (c *Config) File() string { return c.file }

// Setting describes one setting.
type Setting struct {
	Name    string // dotted: server.listen is listen in section server
	Default any    // as in the file; Objects for a list of objects
	Doc     string // description
}

// Settings returns all settings in display order.
func Settings() []Setting {
	return slices.Concat(attestingSettings(), consoleSettings(), auditSettings(), chainSettings(), graphqlSettings(), []Setting{
		{"log.level", "info", "debug, info, warn or error"},
		{"log.format", "auto", "text, json, or auto: text on a terminal, else json"},
	})
}

func attestingSettings() []Setting {
	return []Setting{
		{"data_dir", "/var/lib/attestd", "where attestd.db (API keys, journal) and log.key are kept"},
		{"server.listen", "127.0.0.1:8080", "address and port of the API"},
		{"server.allow_plain_http", false, "serve the API without TLS on an address that other machines reach, as behind a proxy that speaks TLS"},
		{"server.tls.cert", "", "PEM file of the certificate chain; with server.tls.key, serves HTTPS"},
		{"server.tls.key", "", "PEM file of the certificate's private key"},
		{"server.tls.client_ca", "", "PEM file of authorities; if set, clients must present a certificate of theirs"},
		{"server.trusted_proxies", []string{}, "networks of reverse proxies, such as 10.0.0.0/8: their X-Forwarded-For is believed"},
		{"server.origins", []string{}, "origins whose pages may ask for attestations and read them (CORS), such as https://app.example.com, or * for any; none means no page: whoever opens a page can read the API key in it"},
		{"server.attest_body_limit", "16KiB", "largest body of an attestation request"},
		{"server.request_timeout", "10s", "longest time an attestation may take, waiting for the HSM included"},
		{"server.read_timeout", "10s", "longest time to send a request"},
		{"server.write_timeout", "30s", "longest time to take an answer"},
		{"server.idle_timeout", "2m", "how long an idle connection is kept open"},
		{"server.anonymous_idle_timeout", "15s", "instead of server.idle_timeout until a connection showed a valid API key; trusted proxies and clients on this machine have server.idle_timeout"},
		{"server.max_connections", 4096, "most connections at once; for one more, the one that is idle for longest is closed, those without an API key first; an API key may have a quarter of them"},
		{"server.max_connections_per_address", 512, "most connections of one client address (IPv6: one /64); trusted proxies and clients on this machine may have server.max_connections"},
		{"server.shutdown_timeout", "30s", "longest time to finish accepted requests when stopping"},
		{"limits.default_rate", "100/s", "requests a key may make whose own rate is default: N/s, N/m, N/h or unlimited"},
		{"limits.anonymous_rate", "100/s", "requests without a valid key from one client address (IPv6: one /64)"},
		{"limits.graphql_rate", "100/s", "GraphQL requests without a key from one client address (IPv6: one /64); a costly one counts as several"},
		{"limits.log_rate", "100/s", "checkpoints and tiles of the log from one client address (IPv6: one /64), of which ten minutes' worth may come at once"},
		{"limits.error_rate", "600/m", "requests of one client that may end in an error of its own (4xx); its rates are a tenth while it makes more"},
		{"limits.max_waiting", appliance.DefaultMaxWaiting, "attestations that may wait for the HSM, over all API keys; more are refused at once"},
		{"admin.socket", "/run/attestd/admin.sock", "Unix socket of the administrative interface, mode 0600"},
		{"metrics.listen", "127.0.0.1:9464", "address and port of /metrics for Prometheus; empty for none"},
		{"tracing.endpoint", "", "OpenTelemetry collector that gets traces of attestations by OTLP over HTTP, such as http://127.0.0.1:4318; empty: the one of OTEL_EXPORTER_OTLP_ENDPOINT, or none"},
		{"hsm.uri", "pkcs11:token=attestd;object=attestor?module-path=" + debianSoftHSM + "&pin-source=file:/etc/attestd/pin", "RFC 7512 URI of the module, the token, the key and the file that holds the PIN"},
		{"hsm.uris", []string{}, "instead of hsm.uri, up to 8 such URIs of tokens that hold the same key, in the order in which they are used: the next where one fails"},
		{"hsm.keys", attestorKeyMembers(), "instead of hsm.uri, several attestor keys, as while one takes another's place; the first that is active signs for API keys that are bound to none"},
		{"hsm.sessions", 0, "signatures made at once; 0 finds out how many the HSM has use for, up to the token's maximum"},
		{"hsm.call_timeout", "0s", "longest time of one call of the HSM's library, after which its process is replaced; shorter than server.request_timeout; 0s is a third of that"},
		{"hsm.address", "", "address of the key, which setup writes; with another key attestd does not start. Empty: that of the journal's newest record. Keys of hsm.keys have their own"},
		{"hsm.allow_extractable", false, "accept a key that could leave the HSM"},
		{"hsm.worker_paths", []string{}, "files and folders that the HSM's library may read and write, as far as attestd's user may, beyond those that attestd knows it needs"},
		{"hsm.worker_network", "auto", "sockets that the HSM's library may make: none, unix (Unix sockets only), any, or auto: none for SoftHSM, unix for p11-kit's client and openCryptoki, any for others"},
		{"attestation.scheme", string(appliance.SchemeNames[0]), "digest scheme: keccak256-bn254, mimc-bn254, keccak256 or eip712"},
		{"attestation.screening_list", "", "file of addresses for which nothing is attested, one a line; read again by attestd reload"},
		{"attestation.policy", "", "file of rules that say what is attested, for whom, how much and when (docs/policy.md); empty for none; read again by attestd reload"},
		{"attestation.eip712.name", "", "name in the EIP-712 domain"},
		{"attestation.eip712.version", "", "version in the EIP-712 domain"},
		{"attestation.eip712.chain_id", 0, "chainId in the EIP-712 domain; 0 leaves it out"},
		{"attestation.eip712.verifying_contract", "", "verifyingContract in the EIP-712 domain"},
		{"store.url", "", "PostgreSQL that holds API keys and journal for several appliances, such as postgres://attestd@db.example.com/attestd; empty: the file attestd.db in data_dir"},
		{"cluster.name", "", "name of this appliance among those that share store.url; empty: the host's name"},
		{"journal.origin", "", "name of the log in its checkpoints, used when log.key is made; empty derives it from the host's name"},
		{"journal.min_free", "64MiB", "stop signing when the disk has less free than this"},
		{"journal.max_ahead", "5m", "stop signing while the newest record is further ahead of the clock than this: the clock jumped"},
		{"journal.witnesses", "", "policy file (C2SP tlog-policy) that names the witnesses who cosign checkpoints, and how many must have; empty for none; read again by attestd reload"},
		{"journal.witness_interval", "1m", "how often the newest checkpoint is shown to the witnesses, if the journal grew"},
		{"backup.recipient", "", "recipient of age (age1…, made by age-keygen on another machine) to whom attestd backup encrypts log.key; empty, and no backup.passphrase_file: backups leave log.key out"},
		{"backup.passphrase_file", "", "in place of backup.recipient: file with the passphrase by which attestd backup encrypts log.key"},
	}
}

func graphqlSettings() []Setting {
	return []Setting{
		{"graphql.source", FromReplica, "what answers GraphQL: replica (the local copy), proxy (graphql.upstream) or off"},
		{"graphql.upstream", "", "another GraphQL endpoint of the same API, such as https://example.com/v1/graphql, which the replica follows or the proxy forwards to; empty for none"},
		{"graphql.upstream_headers", []string{}, "sent to the upstream, each \"Name: value\"; instead of the value, file:/path or credential:NAME says where it is"},
		{"graphql.upstream_ca", "", "PEM file of the authorities that the upstream's certificate may be of; empty for the system's"},
		{"graphql.upstream_allow_http", false, "whether the upstream may be asked without TLS; on this machine it may anyway"},
		{"graphql.upstream_timeout", "30s", "longest time of one request to the upstream"},
		{"graphql.upstream_rate", "unlimited", "most requests of the follower, which makes one at a time: N/s, N/m, N/h or unlimited"},
		{"graphql.poll_interval", "1s", "how often the follower looks for newer rows when there were none"},
		{"graphql.refresh_interval", "1m", "how often it reads chains, tokens, channels, clients and connections again"},
		{"graphql.overlap", "10m", "how far back, by the time of sending, it reads again for rows that come late"},
		{"graphql.max_lag", "0s", "/readyz fails when the replica is further behind its upstream than this; 0s never"},
		{"graphql.fallback", "", "proxy: forward to the upstream what asks for more than the replica has; empty: refuse it"},
		{"graphql.serve_unverified", false, "serve also packets and transfers that contradict what can be checked of them"},
		{"graphql.stale_if_error", "0s", "how long past its ttl a @cached answer may be served while the upstream fails; 0s not at all"},
		{"graphql.require_key", false, "whether GraphQL needs an API key of scope graphql"},
		{"graphql.introspection", true, "answer __schema and __type, which clients and the playground read the schema by"},
		{"graphql.playground", true, "serve the playground at /graphiql"},
		{"graphql.origins", []string{}, "origins whose pages may read answers (CORS), such as https://app.example.com; none means any"},
		{"graphql.cache_size", "64MiB", "memory for the answers that @cached keeps"},
		{"graphql.executions", 0, "queries executed at once; 0 leaves one of the processors to signing"},
		{"graphql.answer_memory", "64MiB", "memory for the answers that are being made or sent"},
		{"graphql.max_query", "64KiB", "largest query text"},
		{"graphql.max_variables", "64KiB", "largest JSON of variables"},
		{"graphql.max_response", "16MiB", "largest answer"},
		{"graphql.max_tokens", 5000, "most tokens of a query text"},
		{"graphql.max_depth", 12, "most levels of fields in fields"},
		{"graphql.max_root_fields", 20, "most fields of the query itself"},
		{"graphql.max_aliases", 50, "most aliases"},
		{"graphql.max_cost", 2_000_000, "most values an answer may have, estimated before execution: rows times fields"},
		{"graphql.timeout", "10s", "longest execution"},
	}
}

// Reloadable returns the settings that a running daemon reloads.
func Reloadable() []string {
	return []string{
		"log.level", "limits.default_rate", "limits.anonymous_rate",
		"hsm.uri", "hsm.uris", "hsm.keys", "hsm.address",
		"attestation.screening_list", "attestation.policy", "audit.sinks", "store.url", "journal.witnesses", "server.tls.cert", "server.tls.key", "server.tls.client_ca",
	}
}

func settingNames() []string {
	all := Settings()
	names := make([]string, len(all))
	for i, s := range all {
		names[i] = s.Name
	}
	return names
}

func isSetting(name string) bool { return slices.Contains(settingNames(), name) }

// DefaultText returns the default of a text setting.
func DefaultText(name string) string {
	for _, s := range Settings() {
		if s.Name == name {
			return s.Default.(string)
		}
	}
	panic("Settings: no " + name)
}
