package doctor

import (
	"context"
	"fmt"

	"github.com/attestd/attestd/appliance/config"
	"github.com/attestd/attestd/appliance/daemon"
	"github.com/attestd/attestd/hsm"
)

// token is one of the configured tokens, and what was found of it.
type token struct {
	key        config.AttestorKey // that it holds
	position   int                // in hsm.uris, from 1; among the tokens of all keys, where there are several
	ofKey      int                // among the tokens of its key, from 0
	uri        hsm.URI
	hsm        Inspection
	hsmErr     error         // why nothing is known of the token
	credential error         // why the PIN cannot be had of it
	standing   *hsm.Standing // what the daemon has to say of it, where there are several
}

// tokensOf are the configured tokens; checkConfiguration has read their URIs before.
func (p *subject) tokensOf(ctx context.Context) []token {
	uris, _ := daemon.TokenURIs(p.config)
	tokens := make([]token, len(uris))
	for i, uri := range uris {
		key, ofKey := p.config.KeyOfToken(i)
		tokens[i] = token{key: key, position: i + 1, ofKey: ofKey, uri: uri, credential: p.tryCredential(ctx, uri)}
	}
	return tokens
}

// told takes from the daemon's status what is of this token.
func (t *token) told(status hsm.Status, err error) {
	if t.key.Name != "" && err == nil {
		status = t.ofItsKey(status)
	}
	t.hsm.Status, t.hsmErr = status, err
	if t.ofKey < len(status.Tokens) {
		t.standing = &status.Tokens[t.ofKey]
		t.hsm.Status = t.standing.Status
	}
}

// ofItsKey is the status of the token's attestor key. One that the daemon has not opened, or does not know yet, stands outside.
func (t *token) ofItsKey(status hsm.Status) hsm.Status {
	t.standing = &hsm.Standing{KeyName: t.key.Name, Position: t.position, Name: t.uri.Label(), State: hsm.TokenFailing, Reason: notLoaded}
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

// notLoaded is said of a key that stands in the configuration only.
const notLoaded = "the daemon has not loaded it"

// out says whether the daemon does not use the token, of which checkTokens tells.
func (t *token) out() bool { return t.standing != nil && !t.standing.Ready }

// ofEachToken has a check look at one token after the other, and say which it speaks of where there are several.
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

// nameOf says which token it is, where there are several.
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

// checkTokens looks at what several tokens of a key must have in common, and at how many are left.
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
		all = append(all, warn("set the attestor's address as hsm.address", "nothing says which key the tokens must have where they differ"))
	}
	well := 0
	for _, t := range tokens {
		switch s := t.standing; {
		case s == nil && t.hsmErr == nil && t.hsm.Ready, s != nil && s.Ready:
			well++
		case s == nil: // its own checks have told
		case s.State == hsm.TokenRefused:
			all = append(all, fail("correct its entry in hsm.uris and its PIN, or bring the key into it by the HSM's own tools; then: systemctl restart attestd",
				"token %d, %s, is refused: %s", s.Position, s.Name, s.Reason))
		default:
			all = append(all, warn("attestd uses it again when it has signed trials for a while: attestd hsm status",
				"token %d, %s, is out of use: %s", s.Position, s.Name, s.Reason))
		}
	}
	switch well {
	case 0:
		return append(all, fail("mend one of them first", "none of %d can sign", len(tokens)))
	case 1:
		return append(all, warn("mend the others: where this one fails, too, nothing is attested", "one of %d is left", len(tokens)))
	}
	return append(all, ok("%d of %d can sign", well, len(tokens)))
}
