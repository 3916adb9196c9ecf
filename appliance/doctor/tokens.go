package doctor

import (
	"context"
	"fmt"

	"github.com/attestd/attestd/appliance/config"
	"github.com/attestd/attestd/appliance/daemon"
	"github.com/attestd/attestd/hsm"
)

// token is one of the configured tokens, with the results of its inspection.
type token struct {
	key        config.AttestorKey // the key in the token
	position   int                // from 1, among the tokens of all keys
	ofKey      int                // from 0, among the tokens of its key
	uri        hsm.URI
	hsm        Inspection
	hsmErr     error         // why the token could not be inspected
	credential error         // why its PIN cannot be decrypted
	standing   *hsm.Standing // the daemon's status of the token, if there are several
}

// tokensOf returns the configured tokens. checkConfiguration has validated their URIs.
func (p *subject) tokensOf(ctx context.Context) []token {
	uris, _ := daemon.TokenURIs(p.config)
	tokens := make([]token, len(uris))
	for i, uri := range uris {
		key, ofKey := p.config.KeyOfToken(i)
		tokens[i] = token{key: key, position: i + 1, ofKey: ofKey, uri: uri, credential: p.tryCredential(ctx, uri)}
	}
	return tokens
}

// setStatus stores the token's part of the daemon's status.
func (t *token) setStatus(status hsm.Status, err error) {
	if t.key.Name != "" && err == nil {
		status = t.ofItsKey(status)
	}
	t.hsm.Status, t.hsmErr = status, err
	if t.ofKey < len(status.Tokens) {
		t.standing = &status.Tokens[t.ofKey]
		t.hsm.Status = t.standing.Status
	}
}

// ofItsKey returns the status of the token's attestor key. If the daemon has not opened the key, or does not know it
// yet, the token's standing is hsm.TokenFailing.
func (t *token) ofItsKey(status hsm.Status) hsm.Status {
	t.standing = &hsm.Standing{KeyName: t.key.Name, Position: t.position, Name: t.uri.Label(), State: hsm.TokenFailing,
		Reason: notLoaded}
	for _, k := range status.Keys {
		if k.Name != t.key.Name {
			continue
		}
		if t.standing.Reason = k.LastError; k.Module.Path != "" {
			t.standing = nil
		}
		return k.Status
	}
	return hsm.Status{LastError: notLoaded}
}

// notLoaded is the reason for a key that only the configuration has.
const notLoaded = "the daemon has not loaded it"

// out reports whether the daemon does not use the token. checkTokens reports such tokens.
func (t *token) out() bool { return t.standing != nil && !t.standing.Ready }

// ofEachToken runs a check for each token in use. If there are several tokens, findings begin with the token's name.
func ofEachToken(check func(context.Context, *subject) []Finding) func(context.Context, *subject) []Finding {
	return func(ctx context.Context, p *subject) (all []Finding) {
		for _, t := range p.tokens {
			if t.out() {
				continue
			}
			one := *p
			one.token = t
			for _, f := range check(ctx, &one) {
				if name := p.nameOf(t); name != "" {
					f.Detail = name + ": " + f.Detail
				}
				all = append(all, f)
			}
		}
		return all
	}
}

// nameOf names a token. It is empty if there is only one.
func (p *subject) nameOf(t token) string {
	switch {
	case t.key.Name == "" && len(p.tokens) < 2:
		return ""
	case t.key.Name == "":
		return fmt.Sprintf("token %d", t.position)
	case len(t.key.TokenURIs()) < 2:
		return "key " + t.key.Name
	}
	return fmt.Sprintf("key %s, token %d", t.key.Name, t.position)
}

// checkTokens compares the tokens of each key that has several, and counts those in use.
func checkTokens(_ context.Context, p *subject) (all []Finding) {
	for i := 0; i < len(p.tokens); {
		n := len(p.tokens[i].key.TokenURIs())
		if n > 1 {
			for _, f := range checkTokensOf(p.tokens[i : i+n]) {
				if name := p.tokens[i].key.Name; name != "" {
					f.Detail = "key " + name + ": " + f.Detail
				}
				all = append(all, f)
			}
		}
		i += n
	}
	return all
}

func checkTokensOf(tokens []token) (all []Finding) {
	if tokens[0].key.Address == "" {
		all = append(all, warn("set the attestor's address as hsm.address",
			"hsm.address is empty, so attestd cannot tell which key is right if the tokens differ"))
	}
	well := 0
	for _, t := range tokens {
		switch s := t.standing; {
		case s == nil && t.hsmErr == nil && t.hsm.Ready, s != nil && s.Ready:
			well++
		case s == nil: // its own checks report it
		case s.State == hsm.TokenRefused:
			all = append(all,
				fail(
					"correct its entry in hsm.uris and its PIN, or import the key with the HSM vendor's tools; then: systemctl restart attestd",
					"token %d, %s, is refused: %s", s.Position, s.Name, s.Reason))
		default:
			all = append(all,
				warn("attestd uses it again after a series of successful test signatures, see: attestd hsm status",
					"token %d, %s, is out of use: %s", s.Position, s.Name, s.Reason))
		}
	}
	switch well {
	case 0:
		return append(all,
			fail("repair a token, as the findings above say", "none of the %d tokens can sign", len(tokens)))
	case 1:
		return append(all, warn("repair the others: if the last token fails, attestd cannot attest",
			"only 1 of %d tokens can sign", len(tokens)))
	}
	return append(all, ok("%d of %d tokens can sign", well, len(tokens)))
}
