package daemon

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/chain"
	"github.com/attestd/attestd/appliance/config"
	"github.com/attestd/attestd/appliance/quorum"
)

// openQuorum leaves r.quorum nil if this appliance signs alone.
func (r *running) openQuorum() error {
	if !r.config.HasQuorum() {
		return nil
	}
	members, err := quorumMembers(r.config)
	if err != nil {
		return err
	}
	for _, m := range members {
		if slices.Contains(r.attestor.Addresses(), m.Signer) {
			return fmt.Errorf("quorum.members: %s: signer %s is the key of this appliance: each member has its own key",
				m.Name, m.Signer)
		}
	}
	contract, _ := appliance.ParseAddress(r.config.Quorum.Contract) // validated
	o := quorum.Options{
		Contract: contract, Threshold: r.config.Quorum.Threshold, Timeout: r.config.Quorum.Timeout, Members: members,
		Origin: r.store.LogKey.Verifier.Name(), Version: r.options.Version, Events: r.events, Logger: r.logger,
		Signers: func() (all []appliance.Address) {
			for _, s := range r.chainSigners() {
				all = append(all, s.Address())
			}
			return all
		},
	}
	if watched := Contracts(r.config); len(watched) > 0 {
		o.OnChain = func(ctx context.Context) []chain.QuorumContract {
			return chain.InspectQuorum(ctx, watched, contract, "attestd/"+r.options.Version)
		}
	}
	r.quorum = quorum.New(o)
	r.attestor.Cosign = r.quorum.Cosign
	r.registry.MustRegister(quorumMetrics(r.quorum))
	r.logger.Info("quorum: attestations need several members", "threshold", r.config.Quorum.Threshold,
		"members", len(members)+1, "contract", contract.String())
	return nil
}

// quorumMembers returns the other members, with their API keys.
func quorumMembers(c *config.Config) (members []quorum.Member, err error) {
	for _, m := range c.Quorum.Members {
		one := quorum.Member{Name: m.Name, URLs: m.URLs()}
		one.Signer, _ = appliance.ParseAddress(m.Signer) // validated
		one.Log, _ = m.LogVerifier()                     // validated
		one.VerifierKey = m.VerifierKey
		if one.APIKey, err = readHeader(m.APIKeyHeader()); err != nil {
			return nil, fmt.Errorf("quorum.members: %s: api_key: %w", m.Name, err)
		}
		if one.HTTP, err = memberClient(m); err != nil {
			return nil, fmt.Errorf("quorum.members: %s: ca: %w", m.Name, err)
		}
		members = append(members, one)
	}
	return members, nil
}

// coordinators returns the names of the other members, by the origin of each log.
func coordinators(c *config.Config) map[string]string {
	names := make(map[string]string)
	for _, m := range c.Quorum.Members {
		if log, _ := m.LogVerifier(); log != nil { // validated
			names[log.Name()] = m.Name
		}
	}
	return names
}

// checkQuorumReferences returns an error if the API key or the certificate authorities of a member are missing. This
// user may not be allowed to read them, and only the service can read a credential.
func checkQuorumReferences(c *config.Config) error {
	var failures []error
	for _, m := range c.Quorum.Members {
		key, _ := strings.CutPrefix(m.APIKey, "file:")
		for name, path := range map[string]string{"api_key": key, "ca": m.CA} {
			if !filepath.IsAbs(path) {
				continue
			}
			if _, err := os.Stat(path); err != nil && !errors.Is(err, fs.ErrPermission) {
				failures = append(failures, fmt.Errorf("quorum.members: %s: %s: %w", m.Name, name, err))
			}
		}
	}
	return errors.Join(failures...)
}

// memberConnections is how many idle connections to a member are kept. Each concurrent request needs one.
const memberConnections = 64

func memberClient(m config.QuorumMember) (*http.Client, error) {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.Proxy = nil // members are asked directly: a proxy would hold their API keys
	transport.MaxIdleConns, transport.MaxIdleConnsPerHost = 0, memberConnections
	if m.CA != "" {
		text, err := os.ReadFile(m.CA)
		if err != nil {
			return nil, err
		}
		roots := x509.NewCertPool()
		if !roots.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("%s has no certificate in PEM", m.CA)
		}
		transport.TLSClientConfig = &tls.Config{RootCAs: roots}
	}
	// a redirect could leak the API key
	refuse := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &http.Client{Transport: transport, CheckRedirect: refuse}, nil
}

// quorumMetrics collects the counts of the members.
func quorumMetrics(q *quorum.Quorum) collector {
	return func(s samples) {
		for _, c := range q.Counts() {
			member := prometheus.Labels{"member": c.Name}
			for result, n := range map[string]uint64{"signed": c.Signed, "refused": c.Refused, "failed": c.Failed,
				"invalid": c.Invalid} {
				s.counter("attestd_quorum_answers_total",
					"Answers of a member to this coordinator: signed, refused (by its rules), failed, or invalid: "+
						"a wrong digest or signer, or a signature that does not verify.", n,
					with(member, "result", result))
			}
			s.gauge("attestd_quorum_member_failing",
				"1 while a member's last answer was neither a signature nor a refusal, else 0.", oneIf(c.Failing),
				member)
			s.summary("attestd_quorum_signature_seconds",
				"Number of signatures of a member, and how long they took, its network included.", c.Signed,
				c.Took.Seconds(), member)
		}
	}
}
