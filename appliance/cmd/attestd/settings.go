package main

import (
	"encoding"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/agnivade/levenshtein"
	"github.com/go-viper/mapstructure/v2"
	"github.com/knadh/koanf/parsers/yaml"
	"github.com/knadh/koanf/providers/confmap"
	"github.com/knadh/koanf/providers/file"
	"github.com/knadh/koanf/v2"

	"github.com/attestd/attestd/appliance"
)

// defaultConfigFile is read where no --config names another. It may be missing: then all values are defaults. The
// packages do not have it: 'attestd setup' writes it, and it is the operator's.
const defaultConfigFile = "/etc/attestd/attestd.yaml"

// referenceFile is where the packages put all values with their defaults, for people. It is not read.
const referenceFile = "/usr/share/attestd/attestd.yaml"

// debianSoftHSM is where Debian has SoftHSM's library.
const debianSoftHSM = "/usr/lib/softhsm/libsofthsm2.so"

// envPrefix begins the name of each variable that sets a value: ATTESTD_SERVER_LISTEN sets server.listen.
const envPrefix = "ATTESTD_"

// envOther are variables with our prefix that are not configuration values.
var envOther = []string{"ATTESTD_CONFIG", "ATTESTD_API_KEY", "ATTESTD_URL"}

// config is all that can be configured. The path of koanf tags is a value's name.
type config struct {
	DataDir string `koanf:"data_dir"`
	Server  struct {
		Listen string `koanf:"listen"`
		TLS    struct {
			Cert     string `koanf:"cert"`
			Key      string `koanf:"key"`
			ClientCA string `koanf:"client_ca"`
		} `koanf:"tls"`
		TrustedProxies  []netip.Prefix `koanf:"trusted_proxies"`
		AttestBodyLimit size           `koanf:"attest_body_limit"`
		RequestTimeout  time.Duration  `koanf:"request_timeout"`
		ReadTimeout     time.Duration  `koanf:"read_timeout"`
		WriteTimeout    time.Duration  `koanf:"write_timeout"`
		IdleTimeout     time.Duration  `koanf:"idle_timeout"`
		ShutdownTimeout time.Duration  `koanf:"shutdown_timeout"`
	} `koanf:"server"`
	Limits struct {
		DefaultRate   appliance.Rate `koanf:"default_rate"`
		AnonymousRate appliance.Rate `koanf:"anonymous_rate"`
		GraphQLRate   appliance.Rate `koanf:"graphql_rate"`
	} `koanf:"limits"`
	Admin struct {
		Socket string `koanf:"socket"`
	} `koanf:"admin"`
	Metrics struct {
		Listen string `koanf:"listen"`
	} `koanf:"metrics"`
	HSM struct {
		URI              string `koanf:"uri"`
		Sessions         int    `koanf:"sessions"`
		AllowExtractable bool   `koanf:"allow_extractable"`
	} `koanf:"hsm"`
	Attestation struct {
		Scheme        string `koanf:"scheme"`
		ScreeningList string `koanf:"screening_list"`
		EIP712        struct {
			Name              string `koanf:"name"`
			Version           string `koanf:"version"`
			ChainID           uint64 `koanf:"chain_id"`
			VerifyingContract string `koanf:"verifying_contract"`
		} `koanf:"eip712"`
	} `koanf:"attestation"`
	Journal struct {
		Origin  string `koanf:"origin"`
		MinFree size   `koanf:"min_free"`
	} `koanf:"journal"`
	GraphQL struct {
		Source            string         `koanf:"source"`
		Upstream          string         `koanf:"upstream"`
		UpstreamHeaders   []header       `koanf:"upstream_headers"`
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
		CacheSize     size          `koanf:"cache_size"`
		MaxQuery      size          `koanf:"max_query"`
		MaxVariables  size          `koanf:"max_variables"`
		MaxResponse   size          `koanf:"max_response"`
		MaxTokens     int           `koanf:"max_tokens"`
		MaxDepth      int           `koanf:"max_depth"`
		MaxRootFields int           `koanf:"max_root_fields"`
		MaxAliases    int           `koanf:"max_aliases"`
		MaxCost       int           `koanf:"max_cost"`
		Timeout       time.Duration `koanf:"timeout"`
	} `koanf:"graphql"`
	Log struct {
		Level  string `koanf:"level"`
		Format string `koanf:"format"`
	} `koanf:"log"`
}

// setting describes one value: its default and what it is for. This table is all that `config show`, the
// reference in the documentation and the check of names know.
type setting struct {
	name  string
	value any // the default
	doc   string
}

func settings() []setting {
	return []setting{
		{"data_dir", "/var/lib/attestd", "where attestd.db (API keys, journal) and log.key are kept"},
		{"server.listen", "127.0.0.1:8080", "address and port of the API"},
		{"server.tls.cert", "", "PEM file of the certificate chain; with server.tls.key, serves HTTPS"},
		{"server.tls.key", "", "PEM file of the certificate's private key"},
		{"server.tls.client_ca", "", "PEM file of authorities; if set, clients must present a certificate of theirs"},
		{"server.trusted_proxies", []string{}, "networks whose X-Forwarded-For is believed, such as 10.0.0.0/8"},
		{"server.attest_body_limit", "16KiB", "largest body of an attestation request"},
		{"server.request_timeout", "10s", "longest time an attestation may take, waiting for the HSM included"},
		{"server.read_timeout", "10s", "longest time to send a request"},
		{"server.write_timeout", "30s", "longest time to take an answer"},
		{"server.idle_timeout", "2m", "how long an idle connection is kept open"},
		{"server.shutdown_timeout", "30s", "longest time to finish accepted requests when stopping"},
		{"limits.default_rate", "100/s", "requests a key may make whose own rate is default: N/s, N/m, N/h or unlimited"},
		{"limits.anonymous_rate", "100/s", "requests without a valid key from one client address (IPv6: one /64)"},
		{"limits.graphql_rate", "unlimited", "GraphQL requests without a key from one client address (IPv6: one /64)"},
		{"admin.socket", "/run/attestd/admin.sock", "Unix socket of the administrative interface, mode 0600"},
		{"metrics.listen", "127.0.0.1:9464", "address and port of /metrics for Prometheus; empty for none"},
		{"hsm.uri", "pkcs11:token=attestd;object=attestor?module-path=" + debianSoftHSM + "&pin-source=file:/etc/attestd/pin", "RFC 7512 URI of the module, the token, the key and the file that holds the PIN"},
		{"hsm.sessions", 0, "signatures made at once; 0 chooses by cores and by what the token allows"},
		{"hsm.allow_extractable", false, "accept a key that could leave the HSM"},
		{"attestation.scheme", string(appliance.SchemeNames[0]), "digest scheme: keccak256-bn254, mimc-bn254, keccak256 or eip712"},
		{"attestation.screening_list", "", "file of addresses for which nothing is attested, one a line; read again by attestd reload"},
		{"attestation.eip712.name", "", "name in the EIP-712 domain"},
		{"attestation.eip712.version", "", "version in the EIP-712 domain"},
		{"attestation.eip712.chain_id", 0, "chainId in the EIP-712 domain; 0 leaves it out"},
		{"attestation.eip712.verifying_contract", "", "verifyingContract in the EIP-712 domain"},
		{"journal.origin", "", "name of the log in its checkpoints, used when log.key is made; empty derives it from the host's name"},
		{"journal.min_free", "64MiB", "stop signing when the disk has less free than this"},
		{"graphql.source", sourceReplica, "what answers GraphQL: replica (the local copy), proxy (graphql.upstream) or off"},
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
		{"graphql.max_query", "64KiB", "largest query text"},
		{"graphql.max_variables", "64KiB", "largest JSON of variables"},
		{"graphql.max_response", "16MiB", "largest answer"},
		{"graphql.max_tokens", 5000, "most tokens of a query text"},
		{"graphql.max_depth", 12, "most levels of fields in fields"},
		{"graphql.max_root_fields", 20, "most fields of the query itself"},
		{"graphql.max_aliases", 50, "most aliases"},
		{"graphql.max_cost", 2_000_000, "most values an answer may have, estimated before execution: rows times fields"},
		{"graphql.timeout", "10s", "longest execution"},
		{"log.level", "info", "debug, info, warn or error"},
		{"log.format", "auto", "text, json, or auto: text on a terminal, else json"},
	}
}

// reloadable are the values that a running daemon follows.
func reloadable() []string {
	return []string{
		"log.level", "limits.default_rate", "limits.anonymous_rate",
		"attestation.screening_list", "server.tls.cert", "server.tls.key", "server.tls.client_ca",
	}
}

// loadFile reads defaults, then the file, then the environment, then flags, each over the one before. An empty path means
// the default file, if there is one.
func (s *source) loadFile(path string, flags map[string]any) (*config, error) {
	k := koanf.New(".")
	fromFile, err := readConfigFile(path)
	if err != nil {
		return nil, err
	}
	fromEnv, err := readEnv(s.environ)
	if err != nil {
		return nil, err
	}
	for _, layer := range []map[string]any{s.defaults(), fromFile, fromEnv, flags} {
		if err := k.Load(confmap.Provider(layer, "."), nil); err != nil {
			return nil, err
		}
	}
	var c config
	if err := decode(k, &c); err != nil {
		return nil, err
	}
	err = c.validate()
	if s.check != nil {
		err = errors.Join(err, s.check(&c))
	}
	return &c, err
}

// defaults are those of settings, with SoftHSM where this machine has it.
func (s *source) defaults() map[string]any {
	values := make(map[string]any)
	for _, d := range settings() {
		values[d.name] = d.value
	}
	if s.softHSM != "" {
		values["hsm.uri"] = strings.ReplaceAll(values["hsm.uri"].(string), debianSoftHSM, s.softHSM)
	}
	return values
}

// readConfigFile returns the file's values by name. Names that do not exist are errors.
func readConfigFile(path string) (map[string]any, error) {
	optional := path == ""
	if optional {
		path = defaultConfigFile
	}
	k := koanf.New(".")
	if err := k.Load(file.Provider(path), yaml.Parser()); err != nil {
		switch missing := errors.Is(err, fs.ErrNotExist); {
		case missing && optional:
			return nil, nil
		case missing:
			return nil, fmt.Errorf("configuration %s is not there: 'attestd setup' writes one", path)
		}
		return nil, fmt.Errorf("configuration %s: %w", path, err)
	}
	var unknown []error
	for _, name := range k.Keys() {
		if !isSetting(name) && !isEmptySection(k, name) {
			unknown = append(unknown, fmt.Errorf("configuration %s: no value %q; did you mean %s?", path, name, nearest(name, settingNames())))
		}
	}
	return k.All(), errors.Join(unknown...)
}

// isEmptySection says whether name is a section written with nothing in it, as in "tls:".
func isEmptySection(k *koanf.Koanf, name string) bool {
	section := slices.ContainsFunc(settingNames(), func(s string) bool { return strings.HasPrefix(s, name+".") })
	v := k.Get(name)
	m, isMap := v.(map[string]any)
	if section && (v == nil || isMap && len(m) == 0) {
		k.Delete(name)
		return true
	}
	return false
}

// readEnv returns the values that variables set, by name.
func readEnv(environ []string) (map[string]any, error) {
	byVariable := make(map[string]string)
	for _, name := range settingNames() {
		byVariable[envName(name)] = name
	}
	values := make(map[string]any)
	for _, kv := range environ {
		variable, value, _ := strings.Cut(kv, "=")
		if !strings.HasPrefix(variable, envPrefix) || slices.Contains(envOther, variable) {
			continue
		}
		name, known := byVariable[variable]
		if !known {
			variables := make([]string, 0, len(byVariable))
			for v := range byVariable {
				variables = append(variables, v)
			}
			return nil, fmt.Errorf("environment: no value %s; did you mean %s?", variable, nearest(variable, variables))
		}
		values[name] = value
	}
	return values, nil
}

func envName(name string) string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(name, ".", "_"))
}

func settingNames() []string {
	all := settings()
	names := make([]string, len(all))
	for i, s := range all {
		names[i] = s.name
	}
	return names
}

func isSetting(name string) bool { return slices.Contains(settingNames(), name) }

// nearest returns the name of the smallest edit distance.
func nearest(name string, names []string) string {
	slices.Sort(names)
	return slices.MinFunc(names, func(a, b string) int {
		return levenshtein.ComputeDistance(name, a) - levenshtein.ComputeDistance(name, b)
	})
}

// differing returns the names of the values that differ from those of another configuration.
func (c *config) differing(other *config) (names []string) {
	for _, s := range settings() {
		one, another := field(reflect.ValueOf(c).Elem(), s.name), field(reflect.ValueOf(other).Elem(), s.name)
		if !reflect.DeepEqual(one.Interface(), another.Interface()) {
			names = append(names, s.name)
		}
	}
	return names
}

// decode fills c value by value, so that an error names the value at fault.
func decode(k *koanf.Koanf, c *config) error {
	var failures []error
	for _, s := range settings() {
		target := field(reflect.ValueOf(c).Elem(), s.name)
		if err := decodeValue(k.Get(s.name), target); err != nil {
			failures = append(failures, fmt.Errorf("%s: %w", s.name, err))
		}
	}
	return errors.Join(failures...)
}

// field finds the field that the dotted name's koanf tags lead to.
func field(v reflect.Value, name string) reflect.Value {
	head, rest, nested := strings.Cut(name, ".")
	for i := range v.NumField() {
		if v.Type().Field(i).Tag.Get("koanf") == head {
			if nested {
				return field(v.Field(i), rest)
			}
			return v.Field(i)
		}
	}
	panic("settings(): no field " + name)
}

func decodeValue(value any, target reflect.Value) error {
	if value == nil {
		return nil // written with nothing behind the colon: keeps its zero
	}
	decoder, err := mapstructure.NewDecoder(&mapstructure.DecoderConfig{
		Result: target.Addr().Interface(),
		// Only text is read as something else: from the environment everything is text.
		WeaklyTypedInput: reflect.TypeOf(value).Kind() == reflect.String,
		DecodeHook: mapstructure.ComposeDecodeHookFunc(
			stringOnly,
			mapstructure.StringToTimeDurationHookFunc(),
			mapstructure.TextUnmarshallerHookFunc(),
			mapstructure.StringToWeakSliceHookFunc(","),
		),
	})
	if err != nil {
		return err
	}
	if err := decoder.Decode(value); err != nil {
		return plainError(value, target, err)
	}
	return nil
}

// stringOnly refuses a bare number where a unit is needed: 30 is not a duration, 30s is.
func stringOnly(from, to reflect.Type, value any) (any, error) {
	needsUnit := to == reflect.TypeFor[time.Duration]() || to == reflect.TypeFor[size]()
	if needsUnit && from.Kind() != reflect.String {
		return nil, fmt.Errorf("%v needs a unit", value)
	}
	return value, nil
}

// plainError says what was expected instead of how the decoder failed.
func plainError(value any, target reflect.Value, err error) error {
	switch target.Interface().(type) {
	case time.Duration:
		return fmt.Errorf("%v is not a duration such as 30s or 2m", value)
	case size:
		return fmt.Errorf("%v is not a size such as 16KiB or 64MiB", value)
	case bool:
		return fmt.Errorf("%v is not true or false", value)
	case int, uint64:
		return fmt.Errorf("%v is not a whole number", value)
	case string:
		return fmt.Errorf("%v is not text", value)
	case []header: // the error may repeat a secret
		return errors.New(`is not a list of quoted texts such as "x-api-key: file:/etc/attestd/upstream-key"`)
	case []netip.Prefix:
		return fmt.Errorf("%v is not a list of networks such as 10.0.0.0/8", value)
	case encoding.TextUnmarshaler, appliance.Rate:
		return fmt.Errorf("%v is not like 10/s, 600/m, 1000/h or unlimited", value)
	}
	return err
}

// validate checks what can be checked without opening anything.
func (c *config) validate() error {
	var failures []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			failures = append(failures, fmt.Errorf(format, args...))
		}
	}
	if _, err := c.scheme(); err != nil {
		failures = append(failures, fmt.Errorf("attestation: %w", err))
	}
	check(c.DataDir != "", "data_dir: must not be empty")
	for _, a := range []struct{ name, value string }{{"server.listen", c.Server.Listen}, {"metrics.listen", c.Metrics.Listen}} {
		optional := a.name == "metrics.listen" && a.value == ""
		check(optional || isHostPort(a.value), "%s: %q is not an address and port such as 127.0.0.1:8080", a.name, a.value)
	}
	check((c.Server.TLS.Cert == "") == (c.Server.TLS.Key == ""), "server.tls: cert and key go together")
	check(c.Server.TLS.ClientCA == "" || c.Server.TLS.Cert != "", "server.tls.client_ca: needs server.tls.cert and server.tls.key")
	for _, d := range []struct {
		name  string
		value time.Duration
	}{
		{"request_timeout", c.Server.RequestTimeout}, {"read_timeout", c.Server.ReadTimeout}, {"write_timeout", c.Server.WriteTimeout},
		{"idle_timeout", c.Server.IdleTimeout}, {"shutdown_timeout", c.Server.ShutdownTimeout},
	} {
		check(d.value > 0, "server.%s: must be more than zero", d.name)
	}
	check(c.Server.AttestBodyLimit > 0, "server.attest_body_limit: must be more than zero")
	check(c.Limits.DefaultRate != appliance.Rate{}, "limits.default_rate: is the default itself; give a rate such as 100/s")
	check(c.Limits.AnonymousRate != appliance.Rate{}, "limits.anonymous_rate: has no default to fall back to; give a rate such as 100/s")
	check(c.HSM.Sessions >= 0 && c.HSM.Sessions <= maxSessions, "hsm.sessions: must be 0 to %d", maxSessions)
	check(slices.Contains([]string{sourceReplica, sourceProxy, sourceOff}, c.GraphQL.Source), "graphql.source: %q is not replica, proxy or off", c.GraphQL.Source)
	c.validateUpstream(check)
	check(c.Limits.GraphQLRate != appliance.Rate{}, "limits.graphql_rate: has no default to fall back to; give a rate such as 100/s, or unlimited")
	g := c.GraphQL
	for name, value := range map[string]int64{
		"max_query": int64(g.MaxQuery), "max_variables": int64(g.MaxVariables), "max_response": int64(g.MaxResponse), "cache_size": int64(g.CacheSize),
		"max_tokens": int64(g.MaxTokens), "max_depth": int64(g.MaxDepth), "max_root_fields": int64(g.MaxRootFields),
		"max_aliases": int64(g.MaxAliases), "max_cost": int64(g.MaxCost), "timeout": int64(g.Timeout),
	} {
		check(value > 0 && value <= math.MaxInt32 || name == "timeout" && value > 0, "graphql.%s: must be more than zero, and less than 2 GiB", name)
	}
	check(slices.Contains([]string{"debug", "info", "warn", "error"}, c.Log.Level), "log.level: %q is not debug, info, warn or error", c.Log.Level)
	check(slices.Contains([]string{"auto", "text", "json"}, c.Log.Format), "log.format: %q is not auto, text or json", c.Log.Format)
	return errors.Join(failures...)
}

const maxSessions = 1024

// The values of graphql.source. The second is also one of graphql.fallback.
const (
	sourceReplica = "replica"
	sourceProxy   = "proxy"
	sourceOff     = "off"
)

// scheme returns the digest scheme that is configured.
func (c *config) scheme() (appliance.Scheme, error) {
	e := c.Attestation.EIP712
	domain := appliance.EIP712Domain{Name: e.Name, Version: e.Version, ChainID: e.ChainID}
	if e.VerifyingContract != "" {
		contract, err := appliance.ParseAddress(e.VerifyingContract)
		if err != nil {
			return appliance.Scheme{}, fmt.Errorf("eip712.verifying_contract %w", err)
		}
		domain.VerifyingContract = &contract
	}
	if domain == (appliance.EIP712Domain{}) {
		return appliance.NewScheme(appliance.SchemeName(c.Attestation.Scheme), nil)
	}
	return appliance.NewScheme(appliance.SchemeName(c.Attestation.Scheme), &domain)
}

// level is log.level, which is validated.
func (c *config) level() (level slog.Level) {
	if level.UnmarshalText([]byte(c.Log.Level)) != nil {
		return slog.LevelInfo
	}
	return level
}

// isHostPort says whether s is an address to listen on.
func isHostPort(s string) bool {
	_, port, found := splitPort(s)
	n, err := strconv.ParseUint(port, 10, 16)
	return found && err == nil && n <= 65535
}

// splitPort splits an address to listen on at its last colon.
func splitPort(address string) (host, port string, found bool) {
	i := strings.LastIndex(address, ":")
	if i < 0 {
		return address, "", false
	}
	return address[:i], address[i+1:], true
}

// size is a number of bytes. Its text form has a unit: B, KiB, MiB or GiB.
type size int64

var sizeUnits = []struct {
	suffix string
	bytes  int64
}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"B", 1}}

// UnmarshalText reads a size.
func (s *size) UnmarshalText(text []byte) error {
	for _, unit := range sizeUnits {
		digits, found := strings.CutSuffix(string(text), unit.suffix)
		if !found {
			continue
		}
		n, err := strconv.ParseInt(strings.TrimSpace(digits), 10, 64)
		if err != nil || n < 0 || n > (1<<62)/unit.bytes {
			return errors.New("not a size")
		}
		*s = size(n * unit.bytes)
		return nil
	}
	return errors.New("not a size")
}

// String returns the size in the largest unit that keeps it whole.
func (s size) String() string {
	for _, unit := range sizeUnits {
		if s != 0 && int64(s)%unit.bytes == 0 {
			return strconv.FormatInt(int64(s)/unit.bytes, 10) + unit.suffix
		}
	}
	return "0B"
}
