package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/archive"
	"github.com/attestd/attestd/appliance/config"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/appliance/text"
	"github.com/attestd/attestd/store/bolt"
	"github.com/attestd/attestd/store/highwater"
)

// PlainHTTPRemedy is the remedy for an API without TLS that other machines can reach.
const PlainHTTPRemedy = "set server.tls.cert and server.tls.key; or listen on 127.0.0.1; or, behind a proxy that terminates TLS, set server.allow_plain_http: true"

// CheckPlainHTTP returns an error if other machines would reach the API at server.listen by plain HTTP, unless
// server.allow_plain_http is set: API keys would cross the network in plain text.
func CheckPlainHTTP(c *config.Config) error {
	if config.IsLoopback(c.Server.Listen) {
		return nil
	}
	return plainHTTP(c, c.Server.Listen)
}

// checkListeners is CheckPlainHTTP for the sockets in use, which may come from systemd.
func checkListeners(c *config.Config, listeners []net.Listener) error {
	for _, l := range listeners {
		if tcp, isTCP := l.Addr().(*net.TCPAddr); isTCP && !tcp.IP.IsLoopback() {
			if err := plainHTTP(c, l.Addr().String()); err != nil {
				return err
			}
		}
	}
	return nil
}

func plainHTTP(c *config.Config, address string) error {
	if c.Server.TLS.Cert != "" || c.Server.AllowPlainHTTP {
		return nil
	}
	return fmt.Errorf("the API on %s would be plain HTTP, and API keys would cross the network unencrypted: %s",
		address, PlainHTTPRemedy)
}

// Secret is a file that only the daemon may read.
type Secret struct {
	Name, Path string
	Most       fs.FileMode // the maximum permissions
}

// Secrets returns the files that hold secrets. A group may read the PIN and the TLS key: systemd passes credentials
// that way, and Debian keeps keys for the group ssl-cert. Credentials are left out, because systemd protects them.
func Secrets(c *config.Config) []Secret {
	secrets := []Secret{
		{"journal", filepath.Join(c.DataDir, archive.StoreFile), 0o600},
		{"write-ahead log", bolt.WALPath(filepath.Join(c.DataDir, archive.StoreFile)), 0o600},
		{"high-water mark", filepath.Join(c.DataDir, highwater.FileName), 0o600},
		{"newest commit", highwater.NewestPath(filepath.Join(c.DataDir, highwater.FileName)), 0o600},
		{"log key", filepath.Join(c.DataDir, archive.LogKeyFile), 0o600},
	}
	uris, _ := TokenURIs(c) // opening them reports errors
	for i, uri := range uris {
		if uri.Credential() != "" || uri.PINSource == "" {
			continue
		}
		if path, err := uri.PINFile(); err == nil {
			secrets = append(secrets, Secret{pinName(i, len(uris)), path, 0o640})
		}
	}
	if c.Server.TLS.Key != "" {
		secrets = append(secrets, Secret{"TLS key", c.Server.TLS.Key, 0o640})
	}
	return secrets
}

// pinName returns the name of the PIN of token i of several.
func pinName(i, of int) string {
	if of == 1 {
		return "PIN"
	}
	return fmt.Sprintf("PIN of token %d", i+1)
}

// checkModes returns an error for each secret with too many permissions.
func checkModes(c *config.Config) error {
	var failures []error
	for _, s := range Secrets(c) {
		stat, err := os.Stat(s.Path)
		if err != nil {
			continue // opening it reports the error
		}
		if mode := stat.Mode().Perm(); mode&^s.Most&0o077 != 0 {
			failures = append(failures, fmt.Errorf("%s: %s has mode %04o, so other users have access: chmod %04o %s",
				s.Name, s.Path, mode, mode&s.Most, text.ShellWord(s.Path)))
		}
	}
	return errors.Join(failures...)
}

// OtherKey means that the key is not the expected key.
type OtherKey struct{ Detail, Remedy string }

func (e *OtherKey) Error() string { return e.Detail + ": " + e.Remedy }

// CheckSigner returns an OtherKey if the address differs from the one that the configuration pins for the attestor key.
// Without a pinned address, it compares with newest, the signer of the journal's newest record, which may be nil.
func CheckSigner(k config.AttestorKey, address appliance.Address, newest *appliance.Address) error {
	expected, err := expectedSigner(k, newest)
	if err != nil || expected == nil || *expected == address {
		return err
	}
	if k.Name != "" {
		return &OtherKey{
			Detail: fmt.Sprintf("the key %s of hsm.keys has the address %s, but its setting address says %s", k.Name,
				address, expected),
			Remedy: "correct the token and key in its uri, or its address; or restore the HSM's backup",
		}
	}
	says := "the journal's newest record was signed by"
	if k.Address != "" {
		says = "hsm.address says"
	}
	return &OtherKey{
		Detail: fmt.Sprintf("the key of hsm.uri has the address %s, but %s %s", address, says, expected),
		Remedy: fmt.Sprintf(
			"correct token and key in hsm.uri, or restore the HSM's backup. If the new key is intended, set its address as attestor "+
				"on chain, then in the configuration, under hsm, address: %q", address),
	}
}

// expectedSigner returns the address that an attestor key must have: the one that the configuration pins, or else the
// signer of the journal's newest record; nil if there is neither.
func expectedSigner(k config.AttestorKey, newest *appliance.Address) (*appliance.Address, error) {
	if k.Address == "" {
		return newest, nil
	}
	return k.Expected()
}

// newestSigner returns the signer of the journal's newest record, nil if there is none.
func newestSigner(ctx context.Context, j journal.Journal) (*appliance.Address, error) {
	entries, err := j.List(ctx, journal.Query{Limit: 1, AttestationsOnly: true})
	if err != nil || len(entries) == 0 {
		return nil, err
	}
	return &entries[0].Record.SignerAddress, nil
}
