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
	"github.com/attestd/attestd/appliance/fairqueue"
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
		Streams       int            `koanf:"streams"`
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
		Key      string        `koanf:"key"`
		MinFree  Size          `koanf:"min_free"`
		MaxAhead time.Duration `koanf:"max_ahead"`

		Witnesses       string        `koanf:"witnesses"`
		WitnessInterval time.Duration `koanf:"witness_interval"`
	} `koanf:"journal"`
	Backup struct {
		Recipient      string `koanf:"recipient"`
		PassphraseFile string `koanf:"passphrase_file"`

		MaxAge time.Duration `koanf:"max_age"`
	} `koanf:"backup"`
	Chain struct {
		Contracts    []Contract    `koanf:"contracts"`
		PollInterval time.Duration `koanf:"poll_interval"`
		Halt         bool          `koanf:"halt"`
	} `koanf:"chain"`
	Indexer indexerConfig `koanf:"indexer"`
	Quorum  quorumConfig  `koanf:"quorum"`
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
		Verify            string         `koanf:"verify"`
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
	Webhooks struct {
		AllowNetworks  []netip.Prefix `koanf:"allow_networks"`
		AllowPlainHTTP bool           `koanf:"allow_plain_http"`
	} `koanf:"webhooks"`
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
	return slices.Concat(attestingSettings(), consoleSettings(), auditSettings(), chainSettings(), quorumSettings(),
		graphqlSettings(), indexerSettings(), []Setting{
			{"webhooks.allow_networks", []string{},
				"networks that webhooks may reach although their addresses are not public, such as 10.1.0.0/16 (docs/webhooks.md)"},
			{"webhooks.allow_plain_http", false, "allow webhooks with http:// URLs"},
			{"log.level", "info", "debug, info, warn or error"},
			{"log.format", "auto", "text, json, or auto: text on a terminal, otherwise json"},
		})
}

func attestingSettings() []Setting {
	return slices.Concat(serverSettings(), hsmSettings(), attestationSettings())
}

func serverSettings() []Setting {
	return []Setting{
		{"data_dir", "/var/lib/attestd", "folder of attestd.db (API keys, journal) and log.key"},
		{"server.listen", "127.0.0.1:8080", "address and port of the API"},
		{"server.allow_plain_http", false,
			"serve the API without TLS on an address that other machines can reach, for example behind a proxy that terminates TLS"},
		{"server.tls.cert", "", "PEM file of the certificate chain; with server.tls.key, enables HTTPS"},
		{"server.tls.key", "", "PEM file of the certificate's private key"},
		{"server.tls.client_ca", "",
			"PEM file of certificate authorities; if set, clients must present a certificate signed by one of them"},
		{"server.trusted_proxies", []string{},
			"networks of reverse proxies, such as 10.0.0.0/8; their X-Forwarded-For header is trusted"},
		{"server.origins", []string{},
			"origins of web pages that may ask for attestations and read them (CORS), such as https://app.example.com, or * for any; an empty list allows no page, because every visitor of a page can read its API key"},
		{"server.attest_body_limit", "16KiB", "maximum size of the body of an attestation request"},
		{"server.request_timeout", "10s", "time limit for an attestation, including the wait for the HSM"},
		{"server.read_timeout", "10s", "time limit for a client to send a request"},
		{"server.write_timeout", "30s", "time limit for a client to receive an answer"},
		{"server.idle_timeout", "2m", "time after which an idle connection is closed"},
		{"server.anonymous_idle_timeout", "15s",
			"used instead of server.idle_timeout until a connection has shown a valid API key; trusted proxies and clients on this machine have server.idle_timeout"},
		{"server.max_connections", 4096,
			"maximum number of connections; a new connection replaces the one that is idle for longest, first those without an API key; one API key may have a quarter of them"},
		{"server.max_connections_per_address", 512,
			"maximum number of connections from one client address (IPv6: one /64); trusted proxies and clients on this machine may have server.max_connections"},
		{"server.shutdown_timeout", "30s", "time limit to finish accepted requests when stopping"},
		{"limits.default_rate", "100/s", "rate of API keys without a rate of their own: N/s, N/m, N/h or unlimited"},
		{"limits.anonymous_rate", "100/s",
			"rate of requests without a valid key from one client address (IPv6: one /64)"},
		{"limits.graphql_rate", "100/s",
			"rate of GraphQL requests without a key from one client address (IPv6: one /64); a costly request counts as several"},
		{"limits.log_rate", "100/s",
			"rate of checkpoints and tiles of the log for one client address (IPv6: one /64); up to ten minutes' worth may be requested at once"},
		{"limits.streams", 64,
			"streams of events that one API key may have open, or one client address without a key; all streams together may have half of server.max_connections"},
		{"limits.error_rate", "600/m",
			"rate of requests of one client that may end in a client error (4xx); above it, the client's rates are reduced to a tenth"},
		{"limits.max_waiting", fairqueue.DefaultMaxWaiting,
			"maximum number of attestations that wait for the HSM, over all API keys; further ones are refused at once"},
		{"admin.socket", "/run/attestd/admin.sock", "Unix socket of the administrative interface, mode 0600"},
		{"metrics.listen", "127.0.0.1:9464", "address and port of /metrics for Prometheus; if empty, metrics are off"},
		{"tracing.endpoint", "",
			"OpenTelemetry collector that receives traces of attestations by OTLP over HTTP, such as http://127.0.0.1:4318; if empty, OTEL_EXPORTER_OTLP_ENDPOINT is used, if set"},
	}
}

func hsmSettings() []Setting {
	return []Setting{
		{"hsm.uri", "pkcs11:token=attestd;object=attestor?module-path=" + debianSoftHSM +
			"&pin-source=file:/etc/attestd/pin", "RFC 7512 URI of the module, the token, the key and the PIN file"},
		{"hsm.uris", []string{},
			"used instead of hsm.uri: up to 8 URIs of tokens that hold the same key, in order of use; if one fails, the next is used"},
		{"hsm.keys", attestorKeyMembers(),
			"used instead of hsm.uri: several attestor keys, for example while one replaces another; the first active key signs for API keys that are not bound to a key"},
		{"hsm.sessions", 0,
			"number of parallel signatures; with 0, attestd finds the number that the HSM can use, up to the token's maximum"},
		{"hsm.call_timeout", "0s",
			"time limit for one call of the HSM's library, after which its process is replaced; must be shorter than server.request_timeout; 0s means a third of it"},
		{"hsm.address", "",
			"address of the attestor key, which setup writes; attestd does not start with another key. If empty, the journal's newest record determines the key. Keys of hsm.keys have their own addresses"},
		{"hsm.allow_extractable", false, "accept a key that can be extracted from the HSM"},
		{"hsm.worker_paths", []string{},
			"additional files and folders that the HSM's library may read and write, within the rights of attestd's user; attestd already allows those it knows the library needs"},
		{"hsm.worker_network",
			"auto",
			"sockets that the HSM's library may open: none, unix (Unix sockets only), any, or auto: none for SoftHSM, unix for p11-kit's client and openCryptoki, any for others"},
	}
}

func attestationSettings() []Setting {
	return []Setting{
		{"attestation.scheme", string(appliance.SchemeNames[0]),
			"digest scheme: keccak256-bn254, mimc-bn254, keccak256 or eip712"},
		{"attestation.screening_list", "",
			"file of addresses for which no attestation is made, one a line; attestd reload reads it again"},
		{"attestation.policy", "",
			"file of rules that limit attestations by address, API key, number and time (docs/policy.md); if empty, no policy applies; attestd reload reads it again"},
		{"attestation.eip712.name", "", "name in the EIP-712 domain"},
		{"attestation.eip712.version", "", "version in the EIP-712 domain"},
		{"attestation.eip712.chain_id", 0, "chainId in the EIP-712 domain; 0 omits it"},
		{"attestation.eip712.verifying_contract", "", "verifyingContract in the EIP-712 domain"},
		{"store.url", "",
			"PostgreSQL database with the API keys and journal of several appliances, such as postgres://attestd@db.example.com/attestd; if empty, the file attestd.db in data_dir is used"},
		{"cluster.name", "",
			"name of this appliance among the appliances that share store.url; if empty, the host's name"},
		{"journal.origin", "",
			"name of the log in its checkpoints, used when log.key is created; if empty, derived from the host's name"},
		{"journal.key", "",
			"pkcs11 URI of an Ed25519 key in an HSM that signs the checkpoints, with object and pin-source; empty: log.key in data_dir holds the key"},
		{"journal.min_free", "64MiB", "free space on the disk below which attestd stops signing"},
		{"journal.max_ahead", "5m",
			"attestd stops signing while the newest record is further ahead of the clock than this, for example after a clock jumped"},
		{"journal.witnesses", "",
			"policy file (C2SP tlog-policy) that names the witnesses for checkpoints, and how many must have cosigned; if empty, no witnesses are asked; attestd reload reads it again"},
		{"journal.witness_interval", "1m",
			"interval at which the newest checkpoint is sent to the witnesses, if the journal grew"},
		{"backup.recipient", "",
			"age recipient (age1…, made by age-keygen on another machine) to which attestd backup encrypts log.key; if this and backup.passphrase_file are empty, backups omit log.key"},
		{"backup.passphrase_file", "",
			"used instead of backup.recipient: file with the passphrase with which attestd backup encrypts log.key"},
		{"backup.max_age", "0s",
			"age of the last complete backup above which status, doctor, the console and metrics report a failure, such as 26h for a backup each night; 0s never does"},
	}
}

func graphqlSettings() []Setting {
	return []Setting{
		{"graphql.source", FromReplica,
			"source of GraphQL answers: replica (the local copy), chains (the local copy, filled from the nodes of indexer.chains), proxy (graphql.upstream) or off"},
		{"graphql.upstream", "",
			"another GraphQL endpoint of the same API, such as https://example.com/v1/graphql, which the replica follows or to which the proxy forwards; if empty, no upstream is used"},
		{"graphql.upstream_headers", []string{},
			"headers sent to the upstream, each \"Name: value\"; file:/path or credential:NAME in place of the value refers to its location"},
		{"graphql.upstream_ca", "",
			"PEM file of the certificate authorities for the upstream's certificate; if empty, the system's"},
		{"graphql.upstream_allow_http", false,
			"allow requests to the upstream without TLS; on this machine they are always allowed"},
		{"graphql.upstream_timeout", "30s", "time limit for one request to the upstream"},
		{"graphql.upstream_rate",
			"unlimited", "maximum rate of the follower, which makes one request at a time: N/s, N/m, N/h or unlimited"},
		{"graphql.poll_interval", "1s",
			"interval at which the follower asks for newer rows after an answer without any"},
		{"graphql.refresh_interval", "1m",
			"interval at which the follower reads chains, tokens, channels, clients and connections again"},
		{"graphql.overlap", "10m", "how far back, by the time of sending, the follower reads again to find late rows"},
		{"graphql.max_lag", "0s", "lag of the replica above which /readyz fails; 0s means never"},
		{"graphql.fallback", "",
			"proxy: forward queries that the replica cannot answer to the upstream; if empty, they are refused"},
		{"graphql.serve_unverified", false,
			"serve quarantined packets and transfers, too: rows that contradict the data they can be checked against"},
		{"graphql.verify", "",
			"chain: check the upstream's packets against the nodes of indexer.chains before they are served; if empty, they are not checked (docs/proofs.md)"},
		{"graphql.stale_if_error", "0s",
			"how long past its ttl a @cached answer may be served while the upstream fails; 0s means not at all"},
		{"graphql.require_key", false, "require an API key of scope graphql for GraphQL"},
		{"graphql.introspection", true,
			"answer __schema and __type, from which clients and the playground read the schema"},
		{"graphql.playground", true, "serve the playground at /graphiql"},
		{"graphql.origins", []string{},
			"origins of web pages that may read answers (CORS), such as https://app.example.com; an empty list means any"},
		{"graphql.cache_size", "64MiB", "memory for answers of @cached"},
		{"graphql.executions", 0,
			"number of queries executed at once; 0 means one for each processor, less one while attestations are signed and 10 s after"},
		{"graphql.answer_memory", "64MiB", "memory for answers that are being made or sent"},
		{"graphql.max_query", "64KiB", "maximum size of a query text"},
		{"graphql.max_variables", "64KiB", "maximum size of the JSON of variables"},
		{"graphql.max_response", "16MiB", "maximum size of an answer"},
		{"graphql.max_tokens", 5000, "maximum number of tokens in a query text"},
		{"graphql.max_depth", 12, "maximum number of nested levels of fields"},
		{"graphql.max_root_fields", 20, "maximum number of fields of the query itself"},
		{"graphql.max_aliases", 50, "maximum number of aliases"},
		{"graphql.max_cost", 2_000_000,
			"maximum number of values in an answer, estimated before execution: rows times fields"},
		{"graphql.timeout", "10s", "time limit for execution"},
	}
}

// Reloadable returns the settings that a running daemon reloads.
func Reloadable() []string {
	return []string{
		"log.level", "limits.default_rate", "limits.anonymous_rate",
		"hsm.uri", "hsm.uris", "hsm.keys", "hsm.address",
		"attestation.screening_list", "attestation.policy", "audit.sinks", "store.url", "journal.witnesses",
		"server.tls.cert", "server.tls.key", "server.tls.client_ca",
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
