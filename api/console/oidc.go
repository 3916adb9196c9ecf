package console

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"
	"golang.org/x/time/rate"
)

// OIDC configures sign-in through a provider (OpenID Connect Core 1.0), in addition to links, and maps groups to roles.
type OIDC struct {
	Issuer   string
	ClientID string
	Secret   func() (string, error) // returns the client secret, for each sign-in; "" for a public client
	Scopes   []string
	Claim    string            // the claim that lists groups
	Roles    map[string]Role   // by group; a user gets the highest role of its groups
	HTTP     http.RoundTripper // nil means http.DefaultTransport
}

const (
	// oidcTimeout bounds the requests to a provider for one sign-in.
	oidcTimeout = 15 * time.Second
	// pendingLife is how long a user may take to sign in at the provider.
	pendingLife = 10 * time.Minute
	// mostPending bounds memory. Beyond it, new sign-ins are refused, so that an anonymous client cannot evict a
	// pending one.
	mostPending = 4096
	// One address may begin startBurst sign-ins at once, and then one every startEvery. So one address cannot fill
	// mostPending.
	startBurst = 20
	startEvery = 20 * time.Second
	// maxAuthAge is sent as max_age, because providers must then return the time of the sign-in (auth_time).
	maxAuthAge = 12 * time.Hour
)

// pending is a sign-in that has begun, until the provider sends the browser back.
type pending struct {
	browser  secret // hash of the cookie in the browser that began the sign-in
	nonce    string
	verifier string // of PKCE (RFC 7636)
	next     string
	expires  time.Time
}

// provider implements sign-in through an OIDC provider. It runs discovery at the first sign-in, so the console starts
// even if the provider is down.
type provider struct {
	OIDC
	redirect string
	now      func() time.Time

	mu         sync.Mutex
	discovered *oidc.Provider
	pending    map[secret]pending           // by state
	starts     map[netip.Addr]*rate.Limiter // of each address that began a sign-in recently
}

func newProvider(o *OIDC, redirect string, now func() time.Time) *provider {
	if o == nil {
		return nil
	}
	return &provider{OIDC: *o, redirect: redirect, now: now, pending: make(map[secret]pending),
		starts: make(map[netip.Addr]*rate.Limiter)}
}

// bounded returns the context of requests to the provider.
func (p *provider) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(oidc.ClientContext(ctx, &http.Client{Transport: p.HTTP, Timeout: oidcTimeout}),
		oidcTimeout)
}

// client returns the console's OAuth 2.0 client configuration. It runs discovery if needed.
func (p *provider) client(ctx context.Context) (*oidc.Provider, *oauth2.Config, error) {
	p.mu.Lock()
	known := p.discovered
	p.mu.Unlock()
	if known == nil {
		var err error
		// The discovered provider later fetches keys with this context, so the context keeps the HTTP client but must
		// outlive this sign-in.
		lasting := oidc.ClientContext(context.WithoutCancel(ctx), &http.Client{Transport: p.HTTP, Timeout: oidcTimeout})
		if known, err = oidc.NewProvider(lasting, p.Issuer); err != nil {
			return nil, nil, fmt.Errorf("read the configuration of %s: %w", p.Issuer, err)
		}
		p.mu.Lock()
		p.discovered = known
		p.mu.Unlock()
	}
	secret, err := p.Secret()
	if err != nil {
		return nil, nil, fmt.Errorf("console.oidc.client_secret: %w", err)
	}
	return known, &oauth2.Config{
		ClientID: p.ClientID, ClientSecret: secret, Endpoint: known.Endpoint(), RedirectURL: p.redirect,
		Scopes: p.Scopes,
	}, nil
}

// errTooMany means that too many sign-ins have begun.
var errTooMany = errors.New("too many sign-ins are in progress")

// mayBegin counts a sign-in against the rate limit of an address.
//
// Errors: errTooMany.
func (p *provider) mayBegin(from netip.Addr) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.now()
	maps.DeleteFunc(p.pending, func(_ secret, begun pending) bool { return !now.Before(begun.expires) })
	starts := p.starts[from]
	if starts == nil {
		if len(p.starts) >= mostPending {
			maps.DeleteFunc(p.starts, func(_ netip.Addr, of *rate.Limiter) bool {
				return of.TokensAt(now) >= startBurst
			})
		}
		if len(p.starts) >= mostPending {
			return errTooMany
		}
		starts = rate.NewLimiter(rate.Every(startEvery), startBurst)
		p.starts[from] = starts
	}
	if len(p.pending) >= mostPending || !starts.AllowN(now, 1) {
		return errTooMany
	}
	return nil
}

// begin returns the URL at which the browser signs in, and the cookie that identifies the browser afterwards.
//
// Errors: errTooMany.
func (p *provider) begin(ctx context.Context, next string, again bool) (to, cookie string, err error) {
	var from netip.Addr
	if c := connectionOf(ctx); c != nil {
		from = c.network
	}
	if err := p.mayBegin(from); err != nil {
		return "", "", err
	}
	ctx, cancel := p.bounded(ctx)
	defer cancel()
	_, client, err := p.client(ctx)
	if err != nil {
		return "", "", err
	}
	state, begun := rand.Text(),
		pending{nonce: rand.Text(), verifier: oauth2.GenerateVerifier(), next: next, expires: p.now().Add(pendingLife)}
	cookie = rand.Text()
	begun.browser = hashed(cookie)
	p.mu.Lock()
	p.pending[hashed(state)] = begun
	p.mu.Unlock()
	options := []oauth2.AuthCodeOption{oidc.Nonce(begun.nonce), oauth2.S256ChallengeOption(begun.verifier)}
	if again {
		options = append(options, oauth2.SetAuthURLParam("prompt", "login"), oauth2.SetAuthURLParam("max_age", "0"))
	} else {
		options = append(options, oauth2.SetAuthURLParam("max_age", fmt.Sprint(int(maxAuthAge.Seconds()))))
	}
	return client.AuthCodeURL(state, options...), cookie, nil
}

// takePending removes and returns the pending sign-in with the given state, if it began in the browser with the given
// cookie.
func (p *provider) takePending(state, cookie string) (pending, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	begun, ok := p.pending[hashed(state)]
	delete(p.pending, hashed(state))
	return begun, ok && begun.browser == hashed(cookie) && p.now().Before(begun.expires)
}

// errNoGroup means that a user has signed in without a group that may open the console.
var errNoGroup = errors.New("your groups do not allow access to the console")

// claims are the ID token's claims that the console uses.
type claims struct {
	Subject  string `json:"sub"`
	Email    string `json:"email"`
	Username string `json:"preferred_username"`
	AuthTime int64  `json:"auth_time"`
}

// finish exchanges the provider's code and returns the signed-in user.
func (p *provider) finish(ctx context.Context, code string, begun pending) (Principal, error) {
	ctx, cancel := p.bounded(ctx)
	defer cancel()
	known, client, err := p.client(ctx)
	if err != nil {
		return Principal{}, err
	}
	token, err := client.Exchange(ctx, code, oauth2.VerifierOption(begun.verifier))
	if err != nil {
		return Principal{}, fmt.Errorf("exchange the code: %w", err)
	}
	raw, _ := token.Extra("id_token").(string)
	id, err := known.VerifierContext(ctx, &oidc.Config{ClientID: p.ClientID, Now: p.now}).Verify(ctx, raw)
	if err != nil {
		return Principal{}, fmt.Errorf("the ID token: %w", err)
	}
	if id.Nonce != begun.nonce {
		return Principal{}, errors.New("the ID token belongs to another sign-in: wrong nonce")
	}
	var of claims
	all := make(map[string]any)
	if err := errors.Join(id.Claims(&of), id.Claims(&all)); err != nil {
		return Principal{}, fmt.Errorf("the ID token: %w", err)
	}
	if all[p.Claim] == nil { // many providers return groups only from UserInfo
		if err := p.addUserInfo(ctx, known, client.TokenSource(ctx, token), id.Subject, &of, all); err != nil {
			return Principal{}, err
		}
	}
	of.Subject = id.Subject
	if len(of.Subject) > maxSubject {
		return Principal{}, fmt.Errorf("the ID token: its subject has more than %d characters", maxSubject)
	}
	who := Principal{Name: of.name(), Role: p.roleOf(all[p.Claim]), SignedIn: of.signedIn()}
	if who.Role == 0 {
		return who, errNoGroup
	}
	return who, nil
}

// addUserInfo adds the claims from the provider's UserInfo endpoint for the same subject.
func (p *provider) addUserInfo(ctx context.Context, known *oidc.Provider, token oauth2.TokenSource, subject string,
	of *claims, all map[string]any) error {
	if known.UserInfoEndpoint() == "" {
		return nil
	}
	info, err := known.UserInfo(ctx, token)
	if err != nil {
		return fmt.Errorf("read the user info: %w", err)
	}
	if info.Subject != subject {
		return errors.New("the provider's user info belongs to another user")
	}
	said := make(map[string]any)
	var more claims
	if err := errors.Join(info.Claims(&more), info.Claims(&said)); err != nil {
		return fmt.Errorf("the provider's user info: %w", err)
	}
	maps.Copy(all, said)
	of.Email, of.Username = cmp.Or(of.Email, more.Email), cmp.Or(of.Username, more.Username)
	return nil
}

// roleOf returns the highest role of a user's groups, or 0. The claim is a list of strings, or one string.
func (p *provider) roleOf(claim any) (role Role) {
	groups, isList := claim.([]any)
	if !isList {
		groups = []any{claim}
	}
	for _, group := range groups {
		if name, ok := group.(string); ok {
			role = max(role, p.Roles[name])
		}
	}
	return role
}

const (
	maxSubject = 255 // OpenID Connect Core 1.0, section 2
	maxName    = 64  // of the chosen name that events add to the subject
)

// signedIn returns the time of the last authentication at the provider. Without auth_time it is long ago, so that the
// session cannot make changes.
func (c claims) signedIn() time.Time { return time.Unix(c.AuthTime, 0) }

// name returns the name of a user in events: the provider's unique identifier, followed by the name that the user may
// have chosen. The identifier comes first and is never cut, so that no chosen name can hide it.
func (c claims) name() string {
	name := []rune(printable(cmp.Or(c.Email, c.Username)))
	if len(name) == 0 {
		return printable(c.Subject)
	}
	return printable(c.Subject) + " (" + string(name[:min(len(name), maxName)]) + ")"
}

func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return -1
		}
		return r
	}, strings.TrimSpace(text))
}
