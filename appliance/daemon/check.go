package daemon

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"

	"github.com/attestd/attestd/api/upstream"
	"github.com/attestd/attestd/appliance/config"
	"github.com/attestd/attestd/appliance/files"
)

// RequireSetup returns an error on a machine that nobody has set up: there is no configuration, the environment sets no
// token, and the PIN that its default names is not there either.
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
	return fmt.Errorf("no configuration yet: run 'attestd setup', which writes %s", path)
}

// CheckReferences checks what the configuration points at, as far as that can be done without the HSM.
func CheckReferences(c *config.Config) error {
	if _, err := TokenURIs(c); err != nil {
		return err
	}
	for name, path := range map[string]string{"cert": c.Server.TLS.Cert, "key": c.Server.TLS.Key, "client_ca": c.Server.TLS.ClientCA} {
		if path == "" {
			continue
		}
		if _, err := os.Stat(path); err != nil {
			return fmt.Errorf("server.tls.%s: %w", name, err)
		}
	}
	_, err := ReadPolicy(c)
	_, witnessErr := readWitnesses(c)
	return errors.Join(err, witnessErr, checkUpstreamReferences(c), checkSinkReferences(c))
}

// CheckClients checks what the clients of a database, of an upstream, of RPCs and of sinks refuse.
func CheckClients(c *config.Config) error {
	return errors.Join(CheckStore(c), CheckUpstream(c), CheckChain(c), CheckSinks(c))
}

// CheckUpstream checks what the client of an upstream refuses.
func CheckUpstream(c *config.Config) error {
	var failures []error
	if g := c.GraphQL; g.Upstream != "" {
		if err := upstream.CheckURL(g.Upstream, g.UpstreamAllowHTTP); err != nil {
			failures = append(failures, fmt.Errorf("graphql.upstream: %w", err))
		}
	}
	for i, h := range c.GraphQL.UpstreamHeaders {
		if h.Check() != nil {
			continue // which is told already
		}
		if err := upstream.CheckHeaders(http.Header{h.Name: {h.Value}}); err != nil {
			failures = append(failures, fmt.Errorf("graphql.upstream_headers: entry %d: %w", i+1, err))
		}
	}
	return errors.Join(failures...)
}

// checkUpstreamReferences checks what graphql.upstream and what belongs to it point at, as far as anybody may who may not
// read the secrets.
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
