package doctor

import (
	"context"
	"fmt"

	"github.com/attestd/attestd/appliance/daemon"
	"github.com/attestd/attestd/hsm"
)

// token is one of the configured tokens, and what was found of it.
type token struct {
	position   int // in hsm.uris, from 1
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
		tokens[i] = token{position: i + 1, uri: uri, credential: p.tryCredential(ctx, uri)}
	}
	return tokens
}

// told takes from the daemon's status what is of this token.
func (t *token) told(status hsm.Status, err error) {
	t.hsm.Status, t.hsmErr = status, err
	if i := t.position - 1; i < len(status.Tokens) {
		t.standing = &status.Tokens[i]
		t.hsm.Status = t.standing.Status
	}
}

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
				if len(p.tokens) > 1 {
					f.Detail = fmt.Sprintf("token %d: %s", t.position, f.Detail)
				}
				all = append(all, f)
			}
		}
		return all
	}
}

// checkTokens looks at what several tokens must have in common, and at how many are left.
func checkTokens(_ context.Context, p *subject) (all []Finding) {
	if len(p.tokens) < 2 {
		return nil
	}
	if p.config.HSM.Address == "" {
		all = append(all, warn("set the attestor's address as hsm.address", "nothing says which key the tokens must have where they differ"))
	}
	well := 0
	for _, t := range p.tokens {
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
		return append(all, fail("mend one of them first", "none of %d can sign", len(p.tokens)))
	case 1:
		return append(all, warn("mend the others: where this one fails, too, nothing is attested", "one of %d is left", len(p.tokens)))
	}
	return append(all, ok("%d of %d can sign", well, len(p.tokens)))
}
