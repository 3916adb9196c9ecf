package config

import (
	"fmt"
	"net"
	"net/url"
	"regexp"
	"strings"
	"time"

	"golang.org/x/mod/sumdb/note"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/journal"
)

// QuorumMember is an entry of quorum.members.
type QuorumMember struct {
	Name   string `koanf:"name"`
	Signer string `koanf:"signer"`
	URL    string `koanf:"url"`
	APIKey string `koanf:"api_key"`
	CA     string `koanf:"ca"`

	VerifierKey string `koanf:"verifier_key"`
}

func quorumSettings() []Setting {
	return []Setting{
		{"quorum.contract", "",
			"address of the contract that accepts the signatures of the members together (ERC-1271; docs/quorum.md)"},
		{"quorum.threshold", 0,
			"number of members that must sign an attestation, this appliance included; with 0, this appliance signs alone"},
		{"quorum.timeout", "5s", "time limit for a member to sign; must be shorter than server.request_timeout"},
		{"quorum.members", Objects{
			{"name", "", "name of the member in answers, the log and the metrics"},
			{"signer", "", "address of the member's attestor key; other signatures do not count"},
			{"url", "", "address of the member's API: https, or http on this machine; of a member that is a cluster, the " +
				"addresses of its appliances, separated by commas"},
			{"api_key", "",
				"location of an API key of scope cosign that the member made for this appliance: file:/path or credential:NAME"},
			{"ca", "", "PEM file of the certificate authorities for the member's certificate; if empty, the system's"},
			{"verifier_key", "",
				"verifier key of the member's log, confirmed by its operator (attestd doctor shows it); if empty, the " +
					"watchtower does not accept its proofs"},
		}, "the other members of the quorum; this appliance is always a member"},
	}
}

// HasQuorum reports whether other appliances sign with this one.
func (c *Config) HasQuorum() bool { return c.Quorum.Threshold > 0 }

var memberName = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,63}$`)

// maxMembers bounds quorum.members. Each signature costs gas on chain.
const maxMembers = 32

// validateQuorum checks the quorum settings without opening files or connections.
func (c *Config) validateQuorum(check func(ok bool, format string, args ...any)) {
	q := c.Quorum
	if q.Threshold == 0 {
		check(len(q.Members) == 0 && q.Contract == "",
			"quorum.threshold: must be the number of members that sign, since quorum.members or quorum.contract is set")
		return
	}
	check(q.Threshold > 0 && q.Threshold <= len(q.Members)+1,
		"quorum.threshold: must be 1 to %d, the number of quorum.members and this appliance", len(q.Members)+1)
	check(len(q.Members) <= maxMembers, "quorum.members: has %d entries, and may have %d", len(q.Members), maxMembers)
	check(q.Timeout >= minInterval && q.Timeout < max(c.Server.RequestTimeout, 1),
		"quorum.timeout: must be at least %s and shorter than server.request_timeout (%s)", minInterval,
		c.Server.RequestTimeout)
	_, err := appliance.ParseAddress(q.Contract)
	check(err == nil, "quorum.contract %v", err)
	own, _ := c.SignerAddresses() // validateKeys reports the error
	names, signers, logs := make(map[string]bool), make(map[appliance.Address]bool), make(map[string]bool)
	for _, address := range own {
		signers[address] = true
	}
	for i, m := range q.Members {
		one := func(ok bool, format string, args ...any) {
			check(ok, "quorum.members: entry %d: %s", i+1, fmt.Sprintf(format, args...))
		}
		one(memberName.MatchString(m.Name), "name: %q is not a name of a-z, 0-9, - and _, such as geneva", m.Name)
		one(!names[m.Name], "name: %s is another member's", m.Name)
		names[m.Name] = true
		signer, err := appliance.ParseAddress(m.Signer)
		one(err == nil, "signer %v", err)
		one(err != nil || !signers[signer],
			"signer: %s is another member's, or this appliance's: each member has its own key", m.Signer)
		signers[signer] = true
		one(m.VerifierKey == "" || !logs[m.VerifierKey],
			"verifier_key: is another member's: each member has its own journal")
		logs[m.VerifierKey] = true
		one(m.VerifierKey != "" || !c.Chain.Halt, "verifier_key: must be set with chain.halt, because redemptions of "+
			"attestations that only the other members have would halt this one")
		m.validate(one)
	}
}

func (m QuorumMember) validate(check func(ok bool, format string, args ...any)) {
	for _, address := range m.URLs() {
		err := checkMemberURL(address)
		check(err == nil, "url: %v", err)
	}
	_, err := m.LogVerifier()
	check(err == nil, "verifier_key: %v", err)
	key := m.APIKeyHeader()
	check(m.APIKey != "" &&
		key.Kept(), "api_key: must be a location, file:/path or credential:NAME, not the key itself")
	if m.APIKey != "" && key.Kept() {
		err := key.Check()
		check(err == nil, "api_key: %v", err)
	}
}

// URLs returns the addresses of the member's appliances.
func (m QuorumMember) URLs() []string {
	all := strings.Split(m.URL, ",")
	for i, address := range all {
		all[i] = strings.TrimSuffix(strings.TrimSpace(address), "/")
	}
	return all
}

// LogVerifier returns the key of the member's log, or nil if verifier_key is empty.
func (m QuorumMember) LogVerifier() (note.Verifier, error) {
	if m.VerifierKey == "" {
		return nil, nil
	}
	return journal.ParseVerifier(m.VerifierKey)
}

// APIKeyHeader returns the header of requests to the member.
func (m QuorumMember) APIKeyHeader() Header { return Header{Name: "x-api-key", Value: m.APIKey} }

// checkMemberURL validates a URL. Its errors do not repeat parts that may be secret.
func checkMemberURL(address string) error {
	u, err := url.Parse(address)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http":
		return fmt.Errorf("must be like https://attest.geneva.example")
	case u.User != nil || u.RawQuery != "" || u.Fragment != "" || u.Path != "" && u.Path != "/":
		return fmt.Errorf("must have no user or password, path, query or fragment")
	case u.Scheme == "http" && !IsLoopback(net.JoinHostPort(u.Hostname(), "0")):
		return fmt.Errorf("http:// is for this machine only, because the network could read the API key: use https://")
	}
	return nil
}

// quorumConfig is the section quorum.
type quorumConfig struct {
	Contract  string         `koanf:"contract"`
	Threshold int            `koanf:"threshold"`
	Timeout   time.Duration  `koanf:"timeout"`
	Members   []QuorumMember `koanf:"members"`
}
