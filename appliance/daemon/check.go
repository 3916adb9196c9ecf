package daemon

import (
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"strings"

	"github.com/attestd/attestd/api"
	"github.com/attestd/attestd/api/upstream"
	"github.com/attestd/attestd/appliance/config"
	"github.com/attestd/attestd/appliance/files"
)

// RequireSetup returns an error on a machine without setup: there is no configuration, the environment names no token,
// and the PIN file of the default configuration does not exist.
func RequireSetup(from *config.Source, c *config.Config) error {
	path := from.Path()
	_, one := from.Lookup(config.EnvName("hsm.uri"))
	_, several := from.Lookup(config.EnvName("hsm.uris"))
	if one || several || files.Exists(path) {
		return nil
	}
	uris, err := TokenURIs(c)
	if err != nil {
		return err
	}
	if files.Exists(strings.TrimPrefix(uris[0].PINSource, "file:")) {
		return nil
	}
	return fmt.Errorf("no configuration in %s: create it with: attestd setup", path)
}

// CheckReferences checks the files and URIs that the configuration names, as far as that is possible without the HSM.
func CheckReferences(c *config.Config) error {
	last, err := readRules(c.DataDir)
	if errors.Is(err, fs.ErrPermission) {
		err = nil // the daemon can read it and compares then
	}
	if err == nil {
		_, err = last.read(c)
	}
	return errors.Join(err, checkReferences(c))
}

// checkReferences is CheckReferences without the policy and the screening list.
func checkReferences(c *config.Config) error {
	_, tokens := TokenURIs(c)
	if c.Journal.Key != "" {
		_, err := parseLogKeyURI(c)
		tokens = errors.Join(tokens, err)
	}
	_, witnesses := readWitnesses(c)
	return errors.Join(tokens, checkTLS(c), witnesses, checkUpstreamReferences(c), checkSinkReferences(c),
		checkQuorumReferences(c))
}

// checkTLS returns an error if a certificate or key file does not exist.
func checkTLS(c *config.Config) error {
	files := c.Server.TLS
	var missing []error
	for _, f := range []struct{ name, path string }{{"cert", files.Cert}, {"key", files.Key},
		{"client_ca", files.ClientCA}} {
		if f.path == "" {
			continue
		}
		if _, err := os.Stat(f.path); err != nil {
			missing = append(missing, fmt.Errorf("server.tls.%s: %w", f.name, err))
		}
	}
	return errors.Join(missing...)
}

// CheckCertificate returns an error if certificate and key do not belong together. It ignores files that do not exist,
// which CheckReferences reports, and files that this user may not read.
func CheckCertificate(c *config.Config) error {
	files := c.Server.TLS
	if files.Cert == "" || files.Key == "" {
		return nil
	}
	_, err := api.LoadCertificates(files.Cert, files.Key, files.ClientCA)
	if err == nil || errors.Is(err, fs.ErrPermission) || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return fmt.Errorf("server.tls: %w", err)
}

// NotChecked lists what CheckReferences leaves out because it needs other machines. doctor checks that.
func NotChecked(c *config.Config) []string {
	open := []string{"the HSM, its PIN and its key", "whether the ports are free", "owners and modes of the files"}
	for _, other := range []struct {
		asked bool
		what  string
	}{
		{c.Store.URL != "", "the database (store.url)"},
		{c.AsksUpstream(), "the upstream (graphql.upstream)"},
		{len(c.Chain.Contracts) > 0, "the RPCs (chain.contracts)"},
		{c.Indexes(), "the RPCs (indexer.chains)"},
		{c.Journal.Witnesses != "", "the witnesses (journal.witnesses)"},
		{len(c.Audit.Sinks) > 0, "the sinks (audit.sinks)"},
		{len(c.Quorum.Members) > 0, "the other members of the quorum (quorum.members)"},
	} {
		if other.asked {
			open = append(open, other.what)
		}
	}
	return open
}

// CheckClients returns an error if the client of a database, an upstream, an RPC or a sink refuses its configuration.
func CheckClients(c *config.Config) error {
	return errors.Join(CheckStore(c), CheckUpstream(c), CheckChain(c), CheckIndexer(c), CheckSinks(c))
}

// CheckUpstream returns an error if the client of an upstream refuses its configuration.
func CheckUpstream(c *config.Config) error {
	var failures []error
	if g := c.GraphQL; g.Upstream != "" {
		if err := upstream.CheckURL(g.Upstream, g.UpstreamAllowHTTP); err != nil {
			failures = append(failures, fmt.Errorf("graphql.upstream: %w", err))
		}
	}
	for i, h := range c.GraphQL.UpstreamHeaders {
		if h.Check() != nil {
			continue // it is reported already
		}
		if err := upstream.CheckHeaders(http.Header{h.Name: {h.Value}}); err != nil {
			failures = append(failures, fmt.Errorf("graphql.upstream_headers: entry %d: %w", i+1, err))
		}
	}
	return errors.Join(failures...)
}

// checkUpstreamReferences checks the files that the settings of the upstream name. It needs no permission to read
// secrets.
func checkUpstreamReferences(c *config.Config) error {
	if !c.AsksUpstream() {
		return nil
	}
	for _, h := range c.GraphQL.UpstreamHeaders {
		if path, err := HeaderFile(h); err == nil && path != "" {
			if _, err := os.Stat(path); err != nil {
				return fmt.Errorf("graphql.upstream_headers: %s: %w", h.Name, err)
			}
		}
	}
	_, err := upstreamClient(c, "", nil, nil)
	return err
}
