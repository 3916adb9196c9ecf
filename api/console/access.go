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

// Role is what a signed-in user may do. Each role includes the permissions of the roles before it.
type Role int

// The roles, least privileged first.
const (
	Viewer   Role = iota + 1 // sees the appliance's state, but no attested addresses
	Auditor                  // sees the whole journal, and verifies it
	Operator                 // makes the changes that the console offers
)

var roleNames = []string{Viewer: "viewer", Auditor: "auditor", Operator: "operator"}

// Roles returns the names of all roles, least privileged first.
func Roles() []string { return roleNames[Viewer:] }

func (r Role) String() string { return roleNames[r] }

// ParseRole parses the name of a role.
func ParseRole(name string) (Role, error) {
	if i := slices.Index(Roles(), name); i >= 0 {
		return Viewer + Role(i), nil
	}
	return 0, fmt.Errorf("unknown role %q: use one of %s", name, strings.Join(Roles(), ", "))
}

// Principal is a signed-in user.
type Principal struct {
	// Name is "alice (uid 1000)" for the user that made the link, or "7f3a (alice@example.com)" from the provider.
	Name     string
	Role     Role
	SignedIn time.Time // time of the last authentication: by a link, or at the provider
}

// By returns the principal's name in the journal's events.
func (p Principal) By() string { return "console: " + p.Name }

// IsAuditor reports whether the principal may see addresses.
func (p Principal) IsAuditor() bool { return p.Role >= Auditor }

// IsOperator reports whether the principal may make changes.
func (p Principal) IsOperator() bool { return p.Role >= Operator }

// freshFor is how long after signing in a user may make changes. After that, the user must sign in again, because
// another person may sit at the browser.
const freshFor = 5 * time.Minute

// verb holds the permissions for one request of the admin socket.
type verb struct {
	least  Role
	writes bool // requires a sign-in within the last five minutes
	// redacted removes the addresses, and the hash that covers them, from answers for roles below Auditor.
	redacted bool
}

// verbs lists the only requests that the console may send to the admin socket; all others are refused for every role.
// None of them reaches a PIN, an HSM key or a restore.
var verbs = map[string]verb{
	"GET /status":                  {least: Viewer},
	"GET /activity":                {least: Viewer},
	"GET /history":                 {least: Viewer},
	"GET /hsm":                     {least: Viewer},
	"GET /stop":                    {least: Viewer},
	"GET /cluster":                 {least: Viewer},
	"GET /chain":                   {least: Viewer},
	"GET /sinks":                   {least: Viewer},
	"GET /log/witnesses":           {least: Viewer},
	"GET /settings":                {least: Viewer},
	"GET /doctor":                  {least: Viewer},
	"GET /keys":                    {least: Viewer},
	"GET /keys/use":                {least: Viewer},
	"GET /quorum":                  {least: Viewer},
	"GET /indexer":                 {least: Viewer},
	"GET /replica":                 {least: Viewer},
	"GET /replica/lag":             {least: Viewer},
	"GET /replica/unverified":      {least: Viewer},
	"GET /log/key":                 {least: Viewer},
	"GET /log/checkpoint":          {least: Viewer},
	"GET /log/published":           {least: Viewer},
	"GET /log/records":             {least: Viewer, redacted: true},
	"GET /log/records/{id}":        {least: Viewer, redacted: true},
	"GET /log/records/{id}/proof":  {least: Viewer, redacted: true},
	"POST /log/verify":             {least: Auditor},
	"POST /log/report":             {least: Auditor},
	"GET /approvals":               {least: Auditor},
	"GET /approvers":               {least: Auditor},
	"POST /approvals/{id}/approve": {least: Auditor, writes: true},
	"POST /approvals/{id}/deny":    {least: Operator, writes: true},
	"POST /approvers":              {least: Operator, writes: true},
	"POST /approvers/remove":       {least: Operator, writes: true},
	"POST /keys":                   {least: Operator, writes: true},
	"POST /keys/{id}/revoke":       {least: Operator, writes: true},
	"POST /keys/{id}/bind":         {least: Operator, writes: true},
	"POST /pause":                  {least: Operator, writes: true},
	"POST /resume":                 {least: Operator, writes: true},
	"GET /backup":                  {least: Operator, writes: true},

	"GET /webhooks":                         {least: Auditor},
	"GET /webhooks/{name}/deliveries":       {least: Auditor},
	"POST /webhooks":                        {least: Operator, writes: true},
	"POST /webhooks/{name}/test":            {least: Operator, writes: true},
	"POST /webhooks/{name}/disable":         {least: Operator, writes: true},
	"POST /webhooks/{name}/resume":          {least: Operator, writes: true},
	"POST /webhooks/{name}/rotate":          {least: Operator, writes: true},
	"DELETE /webhooks/{name}":               {least: Operator, writes: true},
	"POST /webhooks/{name}/deliveries/{id}": {least: Operator, writes: true},
}

// Errors of an adminTransport that refuses a request.
var (
	errRole  = errors.New("your role does not allow this")
	errStale = errors.New("sign in again: your sign-in is older than five minutes")
)

// adminTransport is the only way from a page to the admin socket. It names the principal as the caller, and refuses
// requests that the principal's role does not allow. So no page can reveal more than the table of verbs permits.
type adminTransport struct {
	next  http.RoundTripper
	known *http.ServeMux // patterns of verbs
	who   Principal
	now   func() time.Time
}

// newKnown returns a mux that matches requests with the patterns of verbs.
func newKnown() *http.ServeMux {
	known := http.NewServeMux()
	for pattern := range verbs {
		known.Handle(pattern, http.NotFoundHandler())
	}
	return known
}

// RoundTrip implements http.RoundTripper.
func (g adminTransport) RoundTrip(r *http.Request) (*http.Response, error) {
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
			return nil, errRole // the answer would reveal whether an address was attested
		}
		query.Set(wire.RedactQuery, string(sinks.RedactAddresses))
		r.URL.RawQuery = query.Encode()
	}
	return g.next.RoundTrip(r)
}
