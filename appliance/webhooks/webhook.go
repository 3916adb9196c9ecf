// Package webhooks delivers events to URLs, as Standard Webhooks 1.0 (standardwebhooks.com) with CloudEvents 1.0 as
// the body. Package sinks follows the journal for it. An event that a receiver does not accept is kept, with later
// events of its subject, and sent again; events of other subjects are not delayed.
package webhooks

import (
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/events"
)

// Prefixes of the text of secrets and keys (Standard Webhooks).
const (
	prefixSecret  = "whsec_"
	prefixPrivate = "whsk_"
	prefixPublic  = "whpk_"
)

const (
	secretBytes = 32
	maxURL      = 2048
	maxOverlap  = 30 * 24 * time.Hour
)

// Request describes a new webhook.
type Request struct {
	Name      string   `json:"name"` // unique; also a label of metrics
	URL       string   `json:"url"`
	Types     []string `json:"types"`           // as in events.Filter; empty means all
	Addresses []string `json:"addresses"`       // as in events.Filter; empty means all
	KeyID     string   `json:"keyId,omitempty"` // the API key whose events are sent; empty means the operators' events
}

// Webhook is a webhook with its secrets.
type Webhook struct {
	Request
	Created  time.Time `json:"created"`
	By       string    `json:"by,omitempty"` // who created it
	Secrets  []Secret  `json:"secrets"`      // newest first; each signs
	Resumed  time.Time `json:"resumed,omitzero"`
	Disabled time.Time `json:"disabled,omitzero"` // by an operator; State.Disabled is by attestd
}

// Secret signs deliveries in two ways.
type Secret struct {
	Symmetric string    `json:"secret"`         // whsec_ and base64; signs v1
	Private   string    `json:"privateKey"`     // whsk_ and base64 of an Ed25519 seed; signs v1a
	Until     time.Time `json:"until,omitzero"` // it was replaced and signs until then
	Public    string    `json:"publicKey"`      // whpk_ and base64; verifies v1a
}

var webhookName = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,63}$`)

// invalid is the error for a field of a request.
func invalid(field, format string, args ...any) error {
	return appliance.Errorf(appliance.CodeInvalidField, format, args...).In(field)
}

// filter returns which events are sent.
func (r Request) filter() events.Filter { return events.Filter{Types: r.Types, Addresses: r.Addresses} }

// viewer returns who gets the events.
func (r Request) viewer() events.Viewer {
	return events.Viewer{Operator: r.KeyID == "", KeyID: r.KeyID}
}

// check returns CodeInvalidField, or CodeScopeRequired for types that the API key may not see.
func (r *Request) check(plain bool) error {
	if !webhookName.MatchString(r.Name) {
		return invalid("name", "%q is not a name of a-z, 0-9, - and _, such as billing", r.Name)
	}
	at, err := url.Parse(r.URL)
	switch {
	case err != nil || at.Hostname() == "" || len(r.URL) > maxURL || at.User != nil || at.Fragment != "":
		return invalid("url", "must be a URL such as https://example.com/hooks, without user and fragment")
	case at.Scheme != "https" && (at.Scheme != "http" || !plain):
		return invalid("url", "must begin with https://, or set webhooks.allow_plain_http")
	}
	for i, address := range r.Addresses {
		parsed, err := appliance.ParseAddress(address)
		if err != nil {
			return invalid("addresses", "%s", err)
		}
		r.Addresses[i] = strings.ToLower(parsed.String())
	}
	if len(r.Types) > events.MaxFiltered || len(r.Addresses) > events.MaxFiltered {
		return invalid("types", "at most %d types and addresses", events.MaxFiltered)
	}
	if err := r.filter().Check(); err != nil {
		return err
	}
	for _, t := range r.Types {
		switch group := events.Type(t).Group(); {
		case group == events.TransferUpdated.Group(), group == events.PacketUpdated.Group(), t == string(events.Checkpoint):
			return invalid("types", "%s is not a record of the journal: only GET /v1/events has it", t)
		}
	}
	return r.filter().Allowed(r.viewer())
}

func newSecret() Secret {
	var key [secretBytes]byte
	rand.Read(key[:])                                        // never fails (Go 1.24)
	public, private, err := ed25519.GenerateKey(rand.Reader) // neither does this
	if err != nil {
		panic(err)
	}
	text := base64.StdEncoding.EncodeToString
	return Secret{Symmetric: prefixSecret + text(key[:]), Private: prefixPrivate + text(private.Seed()),
		Public: prefixPublic + text(public)}
}

// sign returns both signatures of a delivery.
func (s Secret) sign(signed []byte) (string, error) {
	key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(s.Symmetric, prefixSecret))
	if err != nil {
		return "", fmt.Errorf("secret: %w", err)
	}
	seed, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(s.Private, prefixPrivate))
	if err != nil || len(seed) != ed25519.SeedSize {
		return "", fmt.Errorf("private key: it does not have %d bytes in base64", ed25519.SeedSize)
	}
	mac := hmac.New(sha256.New, key)
	mac.Write(signed)
	text := base64.StdEncoding.EncodeToString
	return "v1," + text(mac.Sum(nil)) + " v1a," + text(ed25519.Sign(ed25519.NewKeyFromSeed(seed), signed)), nil
}

// rotate adds a new secret. The previous ones sign until the overlap is over.
func (w *Webhook) rotate(now time.Time, overlap time.Duration) {
	kept := []Secret{newSecret()}
	for _, s := range w.Secrets {
		if until := now.Add(overlap); s.Until.IsZero() || until.Before(s.Until) {
			s.Until = until
		}
		if now.Before(s.Until) {
			kept = append(kept, s)
		}
	}
	w.Secrets = kept
}

// headers returns the headers of one attempt to deliver an event (Standard Webhooks 1.0).
func (w Webhook) headers(id string, now time.Time, body []byte) (http.Header, error) {
	seconds := strconv.FormatInt(now.Unix(), 10)
	signed := []byte(id + "." + seconds + "." + string(body))
	var signatures []string
	for _, s := range w.Secrets {
		if !s.Until.IsZero() && !now.Before(s.Until) {
			continue
		}
		both, err := s.sign(signed)
		if err != nil {
			return nil, err
		}
		signatures = append(signatures, both)
	}
	h := make(http.Header)
	h.Set("Webhook-Id", id)
	h.Set("Webhook-Timestamp", seconds)
	h.Set("Webhook-Signature", strings.Join(signatures, " "))
	return h, nil
}
