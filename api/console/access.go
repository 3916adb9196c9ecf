package console

import (
	"errors"
	"fmt"
	"net/http"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/attestd/attestd/api"
	"github.com/attestd/attestd/api/wire"
	"github.com/attestd/attestd/appliance/sinks"
)

// Role is what somebody who has signed in may do: each may do what those before it may, too.
type Role int

// The roles.
const (
	Viewer   Role = iota + 1 // sees how the appliance is, and not who was attested to whom
	Auditor                  // sees all that is in the journal, and verifies it
	Operator                 // changes what the console can change
)

var roleNames = []string{Viewer: "viewer", Auditor: "auditor", Operator: "operator"}

// Roles are the names of all roles, from what may least to what may most.
func Roles() []string { return roleNames[Viewer:] }

func (r Role) String() string { return roleNames[r] }

// ParseRole reads the name of a role.
func ParseRole(name string) (Role, error) {
	if i := slices.Index(Roles(), name); i >= 0 {
		return Viewer + Role(i), nil
	}
	return 0, fmt.Errorf("%q is no role: %s", name, strings.Join(Roles(), ", "))
}

// Principal is who has signed in.
type Principal struct {
	Name     string // "alice (uid 1000)" who made the link, or "7f3a (alice@example.com)" as the provider has it
	Role     Role
	SignedIn time.Time // when it last showed who it is: by a link, or at the provider
}

// By is the principal as the journal's events name it.
func (p Principal) By() string { return "console: " + p.Name }

// IsAuditor says whether the principal sees addresses.
func (p Principal) IsAuditor() bool { return p.Role >= Auditor }

// IsOperator says whether the principal changes things.
func (p Principal) IsOperator() bool { return p.Role >= Operator }

// freshFor is how long after signing in somebody may change things. Later, whoever sits before the browser has to show again who it is.
const freshFor = 5 * time.Minute

// verb is who may use a verb of the admin socket.
type verb struct {
	least  Role
	writes bool // it wants a sign-in of the last five minutes
	// redacted says that those below Auditor are answered without addresses, and without the hash that is of them.
	redacted bool
}

// verbs are all that the console may ask of the admin socket: what is not here is refused, whoever asks. No PIN, no key of the HSM and no
// restore has a verb there.
var verbs = map[string]verb{
	"GET /status":                 {least: Viewer},
	"GET /activity":               {least: Viewer},
	"GET /hsm":                    {least: Viewer},
	"GET /stop":                   {least: Viewer},
	"GET /cluster":                {least: Viewer},
	"GET /settings":               {least: Viewer},
	"GET /doctor":                 {least: Viewer},
	"GET /keys":                   {least: Viewer},
	"GET /keys/use":               {least: Viewer},
	"GET /replica":                {least: Viewer},
	"GET /replica/lag":            {least: Viewer},
	"GET /replica/unverified":     {least: Viewer},
	"GET /log/key":                {least: Viewer},
	"GET /log/checkpoint":         {least: Viewer},
	"GET /log/published":          {least: Viewer},
	"GET /log/records":            {least: Viewer, redacted: true},
	"GET /log/records/{id}":       {least: Viewer, redacted: true},
	"GET /log/records/{id}/proof": {least: Viewer, redacted: true},
	"POST /log/verify":            {least: Auditor},
	"POST /keys":                  {least: Operator, writes: true},
	"POST /keys/{id}/revoke":      {least: Operator, writes: true},
}

// The reasons why the gate lets nothing pass.
var (
	errRole  = errors.New("your role does not allow this")
	errStale = errors.New("sign in again: you signed in more than five minutes ago")
)

// gate is the only way from a page to the admin socket. It asks in the name of who has signed in, and refuses what that may not do: so no page
// can give away more than the table says.
type gate struct {
	next  http.RoundTripper
	known *http.ServeMux // the patterns of verbs
	who   Principal
	now   func() time.Time
}

// newKnown matches requests with the patterns of verbs.
func newKnown() *http.ServeMux {
	known := http.NewServeMux()
	for pattern := range verbs {
		known.Handle(pattern, http.NotFoundHandler())
	}
	return known
}

// RoundTrip implements http.RoundTripper.
func (g gate) RoundTrip(r *http.Request) (*http.Response, error) {
	_, pattern := g.known.Handler(r)
	v, known := verbs[pattern]
	switch {
	case !known || path.Clean(r.URL.Path) != r.URL.Path || g.who.Role < v.least:
		return nil, errRole
	case v.writes && g.now().Sub(g.who.SignedIn) > freshFor:
		return nil, errStale
	}
	r = r.Clone(r.Context())
	r.Header.Set(api.ByHeader, g.who.By())
	if v.redacted && g.who.Role < Auditor {
		query := r.URL.Query()
		if query.Has("unspendable") || query.Has("hash") {
			return nil, errRole // the answer would say whether it was attested
		}
		query.Set(wire.RedactQuery, string(sinks.RedactAddresses))
		r.URL.RawQuery = query.Encode()
	}
	return g.next.RoundTrip(r)
}
