package appliance_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"math"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/store/bolt"
)

var noon = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

// openStore opens a real store in its own folder.
func openStore(t *testing.T) *bolt.Store {
	t.Helper()
	return openStoreAt(t, filepath.Join(t.TempDir(), "attestd.db"))
}

func openStoreAt(t *testing.T, path string) *bolt.Store {
	t.Helper()
	log, _, err := journal.NewLogKey("test.example/log")
	if err != nil {
		t.Fatal(err)
	}
	store, err := bolt.Open(path, bolt.Options{Signer: log.Signer, Verifier: log.Verifier})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	return store
}

// newKey makes and stores an API key.
func newKey(t *testing.T, keys appliance.Keys, req appliance.KeyRequest) (appliance.APIKey, string) {
	t.Helper()
	if req.Name == "" {
		req.Name = "test-" + rand.Text() // no two usable keys have one name
	}
	key, token, err := appliance.NewAPIKey(req, noon)
	if err != nil {
		t.Fatal(err)
	}
	if err := keys.Create(context.Background(), key); err != nil {
		t.Fatal(err)
	}
	return key, token
}

func TestATokenAuthenticatesItsKeyAndNothingElseDoes(t *testing.T) {
	keys := openStore(t).Keys()
	key, token := newKey(t, keys, appliance.KeyRequest{})
	_, other := newKey(t, keys, appliance.KeyRequest{})
	parts, otherParts := strings.Split(token, "_"), strings.Split(other, "_")

	got, err := appliance.Authenticate(t.Context(), keys, token)
	if err != nil || got.ID != key.ID {
		t.Fatalf("got %q, %v", got.ID, err)
	}
	for name, c := range map[string]struct {
		token string
		code  appliance.Code
	}{
		"none":             {"", appliance.CodeMissingAPIKey},
		"rubbish":          {"rubbish", appliance.CodeInvalidAPIKey},
		"prefix only":      {"attestd_", appliance.CodeInvalidAPIKey},
		"id only":          {"attestd_" + key.ID, appliance.CodeInvalidAPIKey},
		"another's secret": {parts[0] + "_" + parts[1] + "_" + otherParts[2], appliance.CodeInvalidAPIKey},
		"unknown id":       {parts[0] + "_aaaaaaaaaaaaaaaa_" + parts[2], appliance.CodeInvalidAPIKey},
		"secret in capitals": {parts[0] + "_" + parts[1] + "_" + strings.ToUpper(parts[2]),
			appliance.CodeInvalidAPIKey},
		"space after": {token + " ", appliance.CodeInvalidAPIKey},
		"very long":   {token + strings.Repeat("a", 1<<20), appliance.CodeInvalidAPIKey},
	} {
		_, err := appliance.Authenticate(t.Context(), keys, c.token)
		if appliance.CodeOf(err) != c.code || !strings.Contains(err.Error(), ": send ") { // the remedy
			t.Errorf("%s: %v, want %s", name, err, c.code)
		}
	}
}

func TestTheSecretIsNotKept(t *testing.T) {
	path := filepath.Join(t.TempDir(), "attestd.db")
	keys := openStoreAt(t, path).Keys()
	key, token := newKey(t, keys, appliance.KeyRequest{Name: "payments"})
	secret := token[strings.LastIndex(token, "_")+1:]
	bits, err := hex.DecodeString(secret)
	if err != nil || len(bits) != 32 {
		t.Fatalf("the secret is %q, not 64 hexadecimal digits", secret)
	}
	if _, another := newKey(t, keys, appliance.KeyRequest{}); strings.HasSuffix(another, secret) {
		t.Fatal("two API keys have the same secret")
	}
	file, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(file, []byte(key.Name)) {
		t.Fatal("the file does not have the API key")
	}
	if bytes.Contains(file, []byte(secret)) || bytes.Contains(file, bits) {
		t.Error("the file has the secret")
	}
}

func TestAuthorizeSaysWhyNot(t *testing.T) {
	from := netip.MustParseAddr("10.1.2.3")
	good := appliance.APIKey{Scopes: []appliance.Scope{appliance.ScopeAttest}}
	with := func(change func(*appliance.APIKey)) appliance.APIKey { k := good; change(&k); return k }
	for name, c := range map[string]struct {
		key  appliance.APIKey
		from netip.Addr
		code appliance.Code
	}{
		"good": {good, from, ""},
		"revoked": {with(func(k *appliance.APIKey) {
			k.Revoked = noon
		}), from, appliance.CodeAPIKeyRevoked},
		"expires now": {with(func(k *appliance.APIKey) {
			k.Expires = noon
		}), from, appliance.CodeAPIKeyExpired},
		"expires in a second": {with(func(k *appliance.APIKey) { k.Expires = noon.Add(time.Second) }), from, ""},
		"no scope": {with(func(k *appliance.APIKey) {
			k.Scopes = nil
		}), from, appliance.CodeScopeRequired},
		"another scope": {with(func(k *appliance.APIKey) {
			k.Scopes = []appliance.Scope{appliance.ScopeGraphQL}
		}), from, appliance.CodeScopeRequired},
		"inside the network": {with(func(k *appliance.APIKey) {
			k.AllowFrom = prefixes("192.168.0.0/16", "10.0.0.0/8")
		}), from, ""},
		"outside the network": {with(func(k *appliance.APIKey) {
			k.AllowFrom = prefixes("192.168.0.0/16")
		}), from, appliance.CodeAddressNotAllowed},
		"IPv4 in IPv6 is the same": {with(func(k *appliance.APIKey) {
			k.AllowFrom = prefixes("10.0.0.0/8")
		}), netip.MustParseAddr("::ffff:10.1.2.3"), ""},
		"no address": {with(func(k *appliance.APIKey) {
			k.AllowFrom = prefixes("0.0.0.0/0")
		}), netip.Addr{}, appliance.CodeAddressNotAllowed},
	} {
		if err := c.key.Authorize(appliance.ScopeAttest, c.from, noon); appliance.CodeOf(err) != c.code {
			t.Errorf("%s: %v, want %q", name, err, c.code)
		}
	}
}

func prefixes(texts ...string) (p []netip.Prefix) {
	for _, text := range texts {
		p = append(p, netip.MustParsePrefix(text))
	}
	return p
}

func TestKeysThatMakeNoSenseAreNotMade(t *testing.T) {
	for name, c := range map[string]struct {
		req   appliance.KeyRequest
		field string
	}{
		"no name":         {appliance.KeyRequest{}, "name"},
		"name too long":   {appliance.KeyRequest{Name: strings.Repeat("n", 129)}, "name"},
		"line break":      {appliance.KeyRequest{Name: "a\nb"}, "name"},
		"escape sequence": {appliance.KeyRequest{Name: "a\x1b[31m"}, "name"},
		"unknown scope":   {appliance.KeyRequest{Name: "n", Scopes: []appliance.Scope{"root"}}, "scopes"},
		"already expired": {appliance.KeyRequest{Name: "n", Expires: noon}, "expires"},
	} {
		_, _, err := appliance.NewAPIKey(c.req, noon)
		e, ok := errors.AsType[*appliance.Error](err)
		if !ok || e.Code != appliance.CodeInvalidField || e.Field != c.field {
			t.Errorf("%s: %v, want %s of %s", name, err, appliance.CodeInvalidField, c.field)
		}
	}
}

func TestRatesReadBackAsTheyAreWritten(t *testing.T) {
	for text, want := range map[string]appliance.Rate{
		"10/s": {PerSecond: 10}, "1/m": {PerSecond: 1.0 / 60}, "90/m": {PerSecond: 1.5},
		"1000/h":    {PerSecond: 1000.0 / 3600},
		"unlimited": appliance.Unlimited, "default": {},
	} {
		got, err := appliance.ParseRate(text)
		if err != nil || math.Abs(got.PerSecond-want.PerSecond) > 1e-12 || got.String() != text {
			t.Errorf("%s: %v (%s), %v", text, got.PerSecond, got, err)
		}
	}
	for _, text := range []string{"10", "0/s", "-1/s", "1.5/s", "10/d", "/s", "s", "99999999999/s", "unlimited/s"} {
		if r, err := appliance.ParseRate(text); err == nil {
			t.Errorf("%s: accepted as %s", text, r)
		}
	}
}

func TestABurstIsASecondsWorthAndAtLeastOne(t *testing.T) {
	for text, want := range map[string]int{"10/s": 10, "1/h": 1, "90/m": 2, "unlimited": math.MaxInt32} {
		r, err := appliance.ParseRate(text)
		if err != nil || r.Burst() != want {
			t.Errorf("%s: %d, %v, want %d", text, r.Burst(), err, want)
		}
	}
}
