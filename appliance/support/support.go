// Package support writes support bundles. A bundle is a tar.gz of diagnostic text files from which secrets and
// addresses were removed.
package support

import (
	"archive/tar"
	"compress/gzip"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Redactor removes secrets and addresses from texts. The zero value recognises them only by their form.
type Redactor struct{ known []string }

// shortestSecret is the length in bytes of the shortest value that Learn records as a secret. Removing shorter values,
// such as 1m, would garble the texts.
const shortestSecret = 4

// secretName matches a setting with a secret value, in YAML (even if it is invalid) or in the environment.
var secretName = regexp.MustCompile(`(?im)(?:^|[\s{,"'])([\w.-]*(?:pin|passw|secret|token|headers|passphrase|api[_-]?key)` +
	`[\w.-]*)(?:["']?\s*:|=)\s*(.*)$`)

// placeName matches names of settings that locate a secret instead of containing it, such as a file.
var placeName = regexp.MustCompile(`(?i)(?:file|path|source|url|uri)$`)

// piece matches a part of a value that may be a secret.
var piece = regexp.MustCompile(`[^\s"'\[\]{},;?&]+`)

// Learn finds the secrets in a configuration, even an invalid one. Redact then removes them wherever they occur.
func (r *Redactor) Learn(configuration string) {
	add := func(secret string) {
		if len(secret) >= shortestSecret && !slices.Contains(r.known, secret) {
			r.known = append(r.known, secret)
		}
	}
	for _, m := range secretName.FindAllStringSubmatch(configuration, -1) {
		if placeName.MatchString(m[1]) || strings.HasPrefix(strings.Trim(m[2], `"' `), "file:") {
			continue
		}
		for _, part := range piece.FindAllString(m[2], -1) {
			add(part)
		}
	}
	for _, m := range pinValue.FindAllStringSubmatch(configuration, -1) {
		add(m[2])
	}
	for _, m := range userinfo.FindAllStringSubmatch(configuration, -1) {
		add(m[2])
	}
	// the longest first, so that no part of one remains
	slices.SortFunc(r.known, func(a, b string) int { return len(b) - len(a) })
}

var (
	userinfo = regexp.MustCompile(`(://[^\s:/@"']*:)([^\s@"']+)@`)
	pinValue = regexp.MustCompile(`(?i)(pin-value=)([^\s;&?"'\\]+)`)
)

// forms are the patterns of secrets and addresses, each with its replacement.
var forms = []struct {
	form *regexp.Regexp
	by   string
}{
	{regexp.MustCompile(`(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\z)`), "[private key]"},
	{regexp.MustCompile(`PRIVATE\+KEY\+[^\s"'\\]+`), "[log key]"},
	{regexp.MustCompile(`AGE-SECRET-KEY-[0-9A-Za-z]+`), "[age key]"},
	{regexp.MustCompile(`attestd_[0-9a-z]{16}_[0-9a-f]{8,}`), "[API key]"},
	{regexp.MustCompile(`whsec_[\w+/=-]+`), "[webhook secret]"},
	{regexp.MustCompile(`eyJ[\w-]{8,}\.[\w-]+\.[\w-]*`), "[token]"},
	{regexp.MustCompile(`(?i)\b(bearer|basic) +[\w.~+/=-]{6,}`), "$1 [token]"},
	{pinValue, "$1[PIN]"},
	{regexp.MustCompile(`(?i)(x-api-key["']?\s*[:=]\s*["']?)[^\s"',\\]+`), "$1[API key]"},
	{regexp.MustCompile(`(?i)([?&](?:[\w-]*key|[\w-]*token|secret|password|sslpassword)=)[^\s&"'\\]+`), "$1[secret]"},
	{userinfo, "$1[password]@"},
	{regexp.MustCompile(`/link/[A-Za-z0-9_-]{16,}`), "/link/[token]"},
	// addresses, digests and keys in hex: a digest confirms a guessed pair of addresses
	{regexp.MustCompile(`(?i)(?:0x)?\b[0-9a-f]{40,}\b|0x[0-9a-f]{40,}`), "[hex]"},
}

// Redact returns a text without secrets and addresses.
func (r *Redactor) Redact(text string) string {
	for _, f := range forms {
		text = f.form.ReplaceAllString(text, f.by)
	}
	for _, secret := range r.known {
		text = strings.ReplaceAll(text, secret, "[removed]")
	}
	return text
}

// Bundle writes a support bundle. It is not safe for concurrent use.
type Bundle struct {
	redactor *Redactor
	gzip     *gzip.Writer
	tar      *tar.Writer
	now      time.Time
	names    []string
}

// New begins a bundle. The redactor cleans each file.
func New(w io.Writer, r *Redactor, now time.Time) *Bundle {
	z := gzip.NewWriter(w)
	return &Bundle{redactor: r, gzip: z, tar: tar.NewWriter(z), now: now}
}

// Add redacts a text and adds it as a file. If why is not nil, the file ends with it as the reason for missing text.
func (b *Bundle) Add(name, text string, why error) error {
	if why != nil {
		text += fmt.Sprintf("not available: %s\n", why)
	}
	text = b.redactor.Redact(text)
	b.names = append(b.names, name)
	if err := b.tar.WriteHeader(&tar.Header{Name: "attestd-support/" + name, Mode: 0o600, Size: int64(len(text)),
		ModTime: b.now}); err != nil {
		return err
	}
	_, err := io.WriteString(b.tar, text)
	return err
}

// Names returns the names of the files that were added.
func (b *Bundle) Names() []string { return b.names }

// Close completes the bundle.
func (b *Bundle) Close() error {
	if err := b.tar.Close(); err != nil {
		return err
	}
	return b.gzip.Close()
}
