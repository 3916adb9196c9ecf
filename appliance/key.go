package appliance

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base32"
	"encoding/hex"
	"fmt"
	"math"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// APIKey is a client's credential with its permissions. Only the SHA-256 of the secret is stored. A fast hash suffices
// because the secret has 256 random bits.
type APIKey struct {
	ID         string         `json:"id"` // public: 16 lower-case base32 characters
	Name       string         `json:"name"`
	SecretHash Digest         `json:"secretHash"` // SHA-256 of the secret's text
	Scopes     []Scope        `json:"scopes"`
	Rate       Rate           `json:"rate"`
	AllowFrom  []netip.Prefix `json:"allowFrom,omitempty"` // empty means any client address
	Attestor   string         `json:"attestor,omitempty"`  // name of its attestor key; empty means the default
	Created    time.Time      `json:"created"`
	Expires    time.Time      `json:"expires,omitzero"`
	LastUsed   time.Time      `json:"lastUsed,omitzero"` // accurate to about a minute
	Revoked    time.Time      `json:"revoked,omitzero"`
}

// DetailKeyID is the event detail with the API key's id.
const DetailKeyID = "id"

// Details returns the details of an event about the key: every field that decides who may use it and for which
// requests. The secret has 256 random bits, so its hash does not reveal it.
func (k APIKey) Details() map[string]string {
	d := map[string]string{DetailKeyID: k.ID, "name": k.Name, "secretHash": k.SecretHash.String(),
		"scopes": joinNames(k.Scopes), "rate": k.Rate.String()}
	if len(k.AllowFrom) > 0 {
		d["allowFrom"] = strings.Trim(fmt.Sprint(k.AllowFrom), "[]")
	}
	if !k.Expires.IsZero() {
		d["expires"] = k.Expires.Format(time.RFC3339)
	}
	if k.Attestor != "" {
		d["attestor"] = k.Attestor
	}
	return d
}

// Scope is a permission of an API key.
type Scope string

// The scopes.
const (
	ScopeAttest  Scope = "attest"  // request attestations and read back one's own
	ScopeGraphQL Scope = "graphql" // run GraphQL queries, if graphql.require_key is set
	ScopeCosign  Scope = "cosign"  // request signatures as another member of the quorum
)

// Scopes lists all scopes. DefaultScopes are those of a key that is created without any: it is a client's.
var (
	Scopes        = []Scope{ScopeAttest, ScopeGraphQL, ScopeCosign}
	DefaultScopes = []Scope{ScopeAttest, ScopeGraphQL}
)

// ParseScope returns the named scope.
func ParseScope(s string) (Scope, error) {
	if scope := Scope(s); slices.Contains(Scopes, scope) {
		return scope, nil
	}
	return "", fmt.Errorf("unknown scope %q; use one of %s", s, joinNames(Scopes))
}

// KeyRequest describes a new API key.
type KeyRequest struct {
	Name      string         `json:"name"`
	Scopes    []Scope        `json:"scopes"` // empty means DefaultScopes
	Rate      Rate           `json:"rate"`
	AllowFrom []netip.Prefix `json:"allowFrom,omitempty"`
	Attestor  string         `json:"attestor,omitempty"` // see attest.CheckBinding
	Expires   time.Time      `json:"expires,omitzero"`   // zero means never
}

// ParseNetwork reads a network of APIKey.AllowFrom, such as 10.1.0.0/16, or a single address.
func ParseNetwork(s string) (netip.Prefix, error) {
	if addr, err := netip.ParseAddr(s); err == nil {
		return netip.PrefixFrom(addr, addr.BitLen()), nil
	}
	prefix, err := netip.ParsePrefix(s)
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("%q is not a network such as 10.1.0.0/16", s)
	}
	return prefix.Masked(), nil
}

const (
	tokenPrefix  = "attestd_" // recognisable for people and secret scanners
	keyIDBytes   = 10
	secretBytes  = 32
	maxNameBytes = 128
)

var keyIDEncoding = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// NewAPIKey makes a key and its token, attestd_ID_SECRET. The token is shown once and cannot be recovered.
//
// Errors: CodeInvalidField with Field set, for a name that is empty, too long or not printable, an unknown scope, an
// invalid name of an attestor key, or an expiry in the past.
func NewAPIKey(req KeyRequest, now time.Time) (key APIKey, token string, err error) {
	if err := req.Validate(now); err != nil {
		return APIKey{}, "", err
	}
	id := keyIDEncoding.EncodeToString(randomBytes(keyIDBytes))
	secret := hex.EncodeToString(randomBytes(secretBytes))
	key = APIKey{
		ID: id, Name: req.Name, SecretHash: sha256.Sum256([]byte(secret)),
		Scopes: req.Scopes, Rate: req.Rate, AllowFrom: req.AllowFrom, Attestor: req.Attestor,
		Created: now.UTC().Truncate(time.Second), Expires: req.Expires.UTC(),
	}
	if len(key.Scopes) == 0 {
		key.Scopes = slices.Clone(DefaultScopes)
	}
	return key, tokenPrefix + id + "_" + secret, nil
}

// Validate returns the error that NewAPIKey would return.
func (req KeyRequest) Validate(now time.Time) error {
	printable := func(r rune) bool { return strconv.IsPrint(r) }
	if req.Name == "" || len(req.Name) > maxNameBytes || strings.IndexFunc(req.Name, func(r rune) bool {
		return !printable(r)
	}) >= 0 {
		return Errorf(CodeInvalidField, "must be 1 to %d bytes of printable text", maxNameBytes).In("name")
	}
	for _, scope := range req.Scopes {
		if _, err := ParseScope(string(scope)); err != nil {
			return Errorf(CodeInvalidField, "%s", err).In("scopes")
		}
	}
	if req.Attestor != "" && !ValidAttestorKeyName(req.Attestor) {
		return Errorf(CodeInvalidField, "is not a valid name of an attestor key").In("attestor")
	}
	if !req.Expires.IsZero() && !req.Expires.After(now) {
		return Errorf(CodeInvalidField, "must be in the future").In("expires")
	}
	return nil
}

// CheckNewName returns CodeInvalidField for the name of a key that can still be used.
func CheckNewName(keys []APIKey, name string, now time.Time) error {
	for _, k := range keys {
		if k.Name == name && k.State(now) == KeyActive {
			return Errorf(CodeInvalidField, "%q is the name of the API key %s: choose another name, or revoke that key",
				name, k.ID).In("name")
		}
	}
	return nil
}

func randomBytes(n int) []byte {
	b := make([]byte, n)
	rand.Read(b) // never fails (Go 1.24)
	return b
}

// Keys stores API keys. When a method returns, its change is on disk and in effect.
type Keys interface {
	// Create stores a new key from NewAPIKey. If another key that can still be used has its name, it returns the error
	// of CheckNewName: of several concurrent callers with one name, on any appliance that shares the keys, one succeeds.
	Create(ctx context.Context, key APIKey) error
	// Key returns the key with that id, even if it is revoked or expired, or CodeNotFound. It does not read from the
	// disk.
	Key(ctx context.Context, id string) (APIKey, error)
	// List returns all keys, oldest first.
	List(ctx context.Context) ([]APIKey, error)
	// Revoke revokes a key permanently and returns it. Revoking it again has no effect. An unknown id returns
	// CodeNotFound.
	Revoke(ctx context.Context, id string, now time.Time) (APIKey, error)
	// Bind makes the named attestor key sign for an API key from now on, and returns the API key. An empty name means
	// the default attestor key. An unknown id returns CodeNotFound. The previous attestor key may still sign requests
	// that are in progress.
	Bind(ctx context.Context, id, attestor string) (APIKey, error)
	// Used notes that a key was used. It is cheap: the note reaches the disk with a later write.
	Used(id string, now time.Time)
}

// Authenticate returns the key of a token.
//
// Errors: CodeMissingAPIKey for an empty token; CodeInvalidAPIKey for a token that is malformed, unknown or has a wrong
// secret, without saying which.
func Authenticate(ctx context.Context, keys Keys, token string) (APIKey, error) {
	if token == "" {
		return APIKey{}, Errorf(CodeMissingAPIKey, "an API key is required: send its token in the x-api-key header")
	}
	id, secret, ok := splitToken(token)
	if !ok {
		return APIKey{}, invalidKey()
	}
	key, err := keys.Key(ctx, id)
	switch {
	case CodeOf(err) == CodeNotFound:
		// An unknown key is compared with the zero hash, so that the response time does not reveal whether an id
		// exists.
	case err != nil:
		return APIKey{}, err
	}
	hash := sha256.Sum256([]byte(secret))
	if subtle.ConstantTimeCompare(hash[:], key.SecretHash[:]) != 1 {
		return APIKey{}, invalidKey()
	}
	return key, nil
}

func invalidKey() error {
	return Errorf(CodeInvalidAPIKey,
		"the API key is not valid: send the complete token, attestd_…, as it was shown when the key was created")
}

func splitToken(token string) (id, secret string, ok bool) {
	rest, ok := strings.CutPrefix(token, tokenPrefix)
	if !ok {
		return "", "", false
	}
	id, secret, ok = strings.Cut(rest, "_")
	return id, secret, ok && len(id) == keyIDEncoding.EncodedLen(keyIDBytes) &&
		len(secret) == hex.EncodedLen(secretBytes)
}

// KeyState says whether a key may be used.
type KeyState string

// The states of a key.
const (
	KeyActive  KeyState = "active"
	KeyExpired KeyState = "expired"
	KeyRevoked KeyState = "revoked"
)

// State returns the state of the key at the given time.
func (k APIKey) State(now time.Time) KeyState {
	switch {
	case !k.Revoked.IsZero():
		return KeyRevoked
	case !k.Expires.IsZero() && !now.Before(k.Expires):
		return KeyExpired
	}
	return KeyActive
}

// Usable returns nil if the key is active, and CodeAPIKeyRevoked or CodeAPIKeyExpired otherwise.
func (k APIKey) Usable(now time.Time) error {
	switch k.State(now) {
	case KeyRevoked:
		return Errorf(CodeAPIKeyRevoked, "the API key was revoked: ask the operator of the appliance for a new key")
	case KeyExpired:
		return Errorf(CodeAPIKeyExpired, "the API key expired at %s: ask the operator of the appliance for a new key",
			k.Expires.Format(time.RFC3339))
	}
	return nil
}

// Authorize returns nil if a client at that address may use the key for the scope now. Every key has the empty scope.
//
// Errors: CodeAPIKeyRevoked, CodeAPIKeyExpired, CodeScopeRequired, CodeAddressNotAllowed.
func (k APIKey) Authorize(scope Scope, from netip.Addr, now time.Time) error {
	if err := k.Usable(now); err != nil {
		return err
	}
	switch {
	case scope != "" && !slices.Contains(k.Scopes, scope):
		return Errorf(CodeScopeRequired, "the API key lacks the scope %s", scope)
	case len(k.AllowFrom) > 0 && !slices.ContainsFunc(k.AllowFrom, func(p netip.Prefix) bool {
		return p.Contains(from.Unmap())
	}):
		return Errorf(CodeAddressNotAllowed, "the API key is not allowed from this network address")
	}
	return nil
}

// Rate is the rate limit of a key, a token bucket. The zero Rate means the configured default. Its text form is "N/s",
// "N/m", "N/h", "unlimited" or "default".
type Rate struct {
	PerSecond float64 // math.Inf(1) means unlimited
}

// Unlimited means no rate limit.
var Unlimited = Rate{PerSecond: math.Inf(1)}

// Burst is how many requests may come at once: the requests of one second, at least 1.
func (r Rate) Burst() int {
	if r == Unlimited || r.PerSecond > math.MaxInt32 {
		return math.MaxInt32
	}
	return max(1, int(math.Ceil(r.PerSecond)))
}

var ratePeriods = map[string]time.Duration{"s": time.Second, "m": time.Minute, "h": time.Hour}

// ParseRate reads a Rate's text form.
func ParseRate(s string) (Rate, error) {
	switch s {
	case "unlimited":
		return Unlimited, nil
	case "default", "":
		return Rate{}, nil
	}
	count, unit, _ := strings.Cut(s, "/")
	period, known := ratePeriods[unit]
	n, err := strconv.ParseUint(count, 10, 31)
	if !known || err != nil || n == 0 {
		return Rate{}, fmt.Errorf("rate %q must be like 10/s, 600/m, 1000/h or unlimited", s)
	}
	return Rate{PerSecond: float64(n) / period.Seconds()}, nil
}

// String returns the text form, in the first of the units s, m and h that keeps the number whole.
func (r Rate) String() string {
	switch r {
	case Unlimited:
		return "unlimited"
	case Rate{}:
		return "default"
	}
	for _, unit := range []string{"s", "m", "h"} {
		n := r.PerSecond * ratePeriods[unit].Seconds()
		if whole := math.Round(n); math.Abs(n-whole) < 1e-6 {
			return fmt.Sprintf("%.0f/%s", whole, unit)
		}
	}
	return fmt.Sprintf("%g/s", r.PerSecond)
}

// MarshalText returns the text form.
func (r Rate) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText calls ParseRate.
func (r *Rate) UnmarshalText(text []byte) error {
	parsed, err := ParseRate(string(text))
	if err != nil {
		return err
	}
	*r = parsed
	return nil
}

var attestorKeyName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

// ValidAttestorKeyName reports whether s is a valid name of an attestor key: 1 to 64 letters, digits, dots, dashes and
// underscores, beginning with a letter or a digit.
func ValidAttestorKeyName(s string) bool { return attestorKeyName.MatchString(s) }
