package config

import (
	"fmt"
	"net"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"time"
)

// Sink is an entry of audit.sinks.
type Sink struct {
	Name       string        `koanf:"name"`
	Type       string        `koanf:"type"`
	URL        string        `koanf:"url"`
	Path       string        `koanf:"path"`
	Format     string        `koanf:"format"`
	Redact     string        `koanf:"redact"`
	Start      string        `koanf:"start"`
	Facility   string        `koanf:"facility"`
	CA         string        `koanf:"ca"`
	Cert       string        `koanf:"cert"`
	Key        string        `koanf:"key"`
	ServerName string        `koanf:"server_name"`
	Headers    []Header      `koanf:"headers"`
	Gzip       bool          `koanf:"gzip"`
	Batch      int           `koanf:"batch"`
	BatchBytes Size          `koanf:"batch_bytes"`
	Interval   time.Duration `koanf:"interval"`
	Timeout    time.Duration `koanf:"timeout"`
}

// The types of sinks.
const (
	SinkSyslog = "syslog"
	SinkHTTPS  = "https"
	SinkFile   = "file"
)

// The values of Sink.Start.
const (
	StartFirst = "first"
	StartNow   = "now"
)

// SyslogPort is the port of syslog over TLS (RFC 5425, section 4.1).
const SyslogPort = "6514"

func auditSettings() []Setting {
	return []Setting{{"audit.sinks", Objects{
		{"name", "",
			"name of the sink in the log, the metrics and doctor; its position in the journal is stored under this name in data_dir/sinks"},
		{"type", "", "syslog (RFC 5424, over TLS as in RFC 5425), https (JSON lines) or file"},
		{"url", "", "of type syslog: tls://siem.example.com:" + SyslogPort +
			", or tcp:// on this machine; of type https: https://…, or http:// on this machine"},
		{"path", "", "of type file: the file, which is created with mode 0600"},
		{"format", "json", "json or cef (ArcSight Common Event Format); https supports only json"},
		{"redact", "addresses",
			"fields that are left out, so that the link between the two addresses stays secret: addresses (both of them), unspendable (one of them), or none (all fields are sent)"},
		{"start", StartFirst,
			"start of a new sink: first (with the journal's first record) or now (with the next record)"},
		{"facility", "audit", "of type syslog: audit, auth, authpriv, daemon, user, or local0 to local7"},
		{"ca", "", "PEM file of the certificate authorities for the sink's certificate; if empty, the system's"},
		{"cert", "", "PEM file of a client certificate for the sink; with key"},
		{"key", "", "PEM file of the private key of cert"},
		{"server_name", "", "name that the sink's certificate must have; if empty, the host in url"},
		{"headers", []string{},
			`of type https: headers, each "Name: file:/path" or "Name: credential:NAME"; the second part is the location of the value`},
		{"gzip", false, "of type https: compress the records"},
		{"batch", 1000, "maximum number of records in one batch"},
		{"batch_bytes", "1MiB", "maximum size of one batch; a larger record is sent alone"},
		{"interval", "1s", "interval at which the journal is checked for new records"},
		{"timeout", "30s", "time limit for the sink to accept one batch"},
	}, "destinations of records and events, such as a SIEM (docs/siem.md)"}}
}

// sinkName matches valid names. A name is also a file name and a label of metrics.
var sinkName = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,63}$`)

// Limits of a batch.
const (
	maxSinkBatch = 100_000
	maxSinkBytes = 64 << 20
)

// validateSinks checks audit.sinks without opening files or connections.
func (c *Config) validateSinks(check func(ok bool, format string, args ...any)) {
	seen := make(map[string]bool)
	for i, s := range c.Audit.Sinks {
		one := func(ok bool, format string, args ...any) {
			check(ok, "audit.sinks: entry %d: %s", i+1, fmt.Sprintf(format, args...))
		}
		one(sinkName.MatchString(s.Name), "name: %q is not a name of a-z, 0-9, - and _, such as siem", s.Name)
		one(!seen[s.Name], "name: %s is another sink's", s.Name)
		seen[s.Name] = true
		s.validate(one)
	}
}

func (s Sink) validate(check func(ok bool, format string, args ...any)) {
	check(slices.Contains([]string{SinkSyslog, SinkHTTPS, SinkFile}, s.Type), "type: %q is not syslog, https or file",
		s.Type)
	check(s.Format == "json" || s.Type != SinkHTTPS, "format: must be json for type https")
	check(slices.Contains([]string{StartFirst, StartNow}, s.Start), "start: %q is not first or now", s.Start)
	check(s.Batch > 0 && s.Batch <= maxSinkBatch, "batch: must be 1 to %d", maxSinkBatch)
	check(s.BatchBytes > 0 && s.BatchBytes <= maxSinkBytes, "batch_bytes: must be more than zero, and at most 64MiB")
	check(s.Interval >= minInterval, "interval: must be at least %s", minInterval)
	check(s.Timeout > 0, "timeout: must be more than zero")
	check((s.Cert == "") == (s.Key == ""), "set cert and key together")
	if s.Type == SinkFile {
		check(filepath.IsAbs(s.Path), "path: %q is not an absolute path", s.Path)
		check(s.URL == "" && s.CA == "" && s.Cert == "" && s.ServerName == "" && len(s.Headers) == 0 &&
			!s.Gzip, "type file has path, but not url, ca, cert, server_name, headers or gzip")
		return
	}
	check(s.Path == "", "path: is for type file")
	err := s.checkURL()
	check(err == nil, "url: %v", err)
	check(s.Type == SinkHTTPS || len(s.Headers) == 0 && !s.Gzip, "headers and gzip are for type https")
	for _, h := range s.Headers {
		err := h.Check()
		check(err == nil, "headers: %v", err)
		check(err != nil || h.Kept(),
			"headers: %s: must not contain the value: write its location, such as %s: file:/path", h.Name, h.Name)
	}
}

// checkURL validates the URL. Its errors do not repeat parts that may be secret.
func (s Sink) checkURL() error {
	secure, plain := "tls", "tcp"
	if s.Type == SinkHTTPS {
		secure, plain = "https", "http"
	}
	u, err := url.Parse(s.URL)
	switch {
	case err != nil || u.Host == "" || u.Scheme != secure && u.Scheme != plain:
		return fmt.Errorf("must be like %s://siem.example.com", secure)
	case u.User != nil || u.RawQuery != "" && s.Type == SinkSyslog || u.Fragment != "":
		return fmt.Errorf("must have no user or password, query or fragment")
	case s.Type == SinkSyslog && u.Path != "":
		return fmt.Errorf("must end after the host and the port")
	case u.Scheme == plain && !IsLoopback(net.JoinHostPort(u.Hostname(), "0")):
		return fmt.Errorf("%s:// is unencrypted and allowed on this machine only: use %s://", plain, secure)
	}
	return nil
}
