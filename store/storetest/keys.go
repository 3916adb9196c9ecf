package storetest

import (
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/attestd/attestd/appliance"
)

// TestKeys tests an implementation of appliance.Keys. open returns an empty one.
func TestKeys(t *testing.T, open func(t *testing.T) appliance.Keys) {
	for name, test := range map[string]func(t *testing.T, keys appliance.Keys){
		"a created key is found with all its fields":    keyKeepsAll,
		"an unknown key is not found":                   keyNotFound,
		"an id is created once":                         keyCreatedOnce,
		"a name is created once at a time":              nameCreatedOnce,
		"a created key authenticates by its token only": keyAuthenticates,
		"keys are listed oldest first":                  keysListed,
		"revocation is immediate and final":             keyRevoked,
		"a key is bound to an attestor key and unbound": keyBound,
		"the last use is noted":                         keyUsed,
		"keys can be used from many goroutines":         keysConcurrent,
	} {
		t.Run(name, func(t *testing.T) { test(t, open(t)) })
	}
}

func newKey(t *testing.T, keys appliance.Keys, request appliance.KeyRequest, now time.Time) (appliance.APIKey, string) {
	t.Helper()
	key, token, err := appliance.NewAPIKey(request, now)
	check(t, err)
	check(t, keys.Create(t.Context(), key))
	return key, token
}

func keyKeepsAll(t *testing.T, keys appliance.Keys) {
	for _, request := range []appliance.KeyRequest{
		{Name: "plain"},
		{Name: "ünïcode 🔑", Rate: appliance.Unlimited},
		{
			Name: "all", Scopes: []appliance.Scope{appliance.ScopeAttest}, Rate: appliance.Rate{PerSecond: 2.5},
			AllowFrom: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("2001:db8::/32")},
			Expires:   epoch().Add(time.Hour), Attestor: "attestor-2027",
		},
	} {
		want, _ := newKey(t, keys, request, epoch())
		got, err := keys.Key(t.Context(), want.ID)
		check(t, err)
		if !reflect.DeepEqual(got, want) {
			t.Errorf("created %+v, found %+v", want, got)
		}
	}
}

func keyNotFound(t *testing.T, keys appliance.Keys) {
	_, err := keys.Key(t.Context(), "aaaaaaaaaaaaaaaa")
	wantCode(t, err, appliance.CodeNotFound)
	_, err = keys.Revoke(t.Context(), "aaaaaaaaaaaaaaaa", epoch())
	wantCode(t, err, appliance.CodeNotFound)
	keys.Used("aaaaaaaaaaaaaaaa", epoch()) // must not create it
	_, err = keys.Key(t.Context(), "aaaaaaaaaaaaaaaa")
	wantCode(t, err, appliance.CodeNotFound)
}

func keyCreatedOnce(t *testing.T, keys appliance.Keys) {
	key, _ := newKey(t, keys, appliance.KeyRequest{Name: "first"}, epoch())
	second := key
	second.Name = "second"
	if keys.Create(t.Context(), second) == nil {
		t.Error("the id was created twice")
	}
	if got, _ := keys.Key(t.Context(), key.ID); got.Name != "first" {
		t.Errorf("the first key is now %q", got.Name)
	}
}

func nameCreatedOnce(t *testing.T, keys appliance.Keys) { nameAcross(t, keys) }

// nameAcross creates keys of one name by many goroutines at once. One creation succeeds, and the others return the error
// of a name in use. After the key's revocation, or its expiry, its name is free again.
func nameAcross(t *testing.T, stores ...appliance.Keys) {
	create := func(i int, expires time.Time) (appliance.APIKey, error) {
		key, _, err := appliance.NewAPIKey(appliance.KeyRequest{Name: "payments", Expires: expires}, epoch())
		check(t, err)
		return key, stores[i%len(stores)].Create(t.Context(), key)
	}
	for round := range 3 {
		var wg sync.WaitGroup
		var created atomic.Pointer[appliance.APIKey]
		for i := range 24 {
			wg.Go(func() {
				key, err := create(i, time.Time{})
				problem, _ := errors.AsType[*appliance.Error](err)
				switch {
				case err == nil && !created.CompareAndSwap(nil, &key):
					t.Error("two keys of one name were created")
				case err != nil && (appliance.CodeOf(err) != appliance.CodeInvalidField || problem.Field != "name"):
					t.Errorf("a name in use: %v", err)
				}
			})
		}
		wg.Wait()
		if created.Load() == nil {
			t.Fatal("no key was created")
		}
		list, err := stores[0].List(t.Context())
		check(t, err)
		if len(list) != round+1 {
			t.Errorf("%d keys are listed, not %d", len(list), round+1)
		}
		_, err = stores[round%len(stores)].Revoke(t.Context(), created.Load().ID, epoch())
		check(t, err)
	}
	_, err := create(0, epoch().Add(time.Minute)) // has expired long ago
	check(t, err)
	_, err = create(0, time.Time{})
	check(t, err)
}

func keyAuthenticates(t *testing.T, keys appliance.Keys) {
	key, token := newKey(t, keys, appliance.KeyRequest{Name: "one"}, epoch())
	got, err := appliance.Authenticate(t.Context(), keys, token)
	check(t, err)
	if got.ID != key.ID {
		t.Errorf("authenticated as %s, not %s", got.ID, key.ID)
	}
	_, other, err := appliance.NewAPIKey(appliance.KeyRequest{Name: "never stored"}, epoch())
	check(t, err)
	for _, wrong := range []string{other, token[:len(token)-1] + "!", token + "0", "attestd_" + key.ID + "_"} {
		_, err := appliance.Authenticate(t.Context(), keys, wrong)
		wantCode(t, err, appliance.CodeInvalidAPIKey)
	}
}

func keysListed(t *testing.T, keys appliance.Keys) {
	for _, after := range []time.Duration{3, 1, 2, 0} {
		newKey(t, keys, appliance.KeyRequest{Name: fmt.Sprint("key ", after)}, epoch().Add(after*time.Hour))
	}
	list, err := keys.List(t.Context())
	check(t, err)
	if len(list) != 4 {
		t.Fatalf("%d keys are listed, not 4", len(list))
	}
	for i := 1; i < len(list); i++ {
		if !list[i-1].Created.Before(list[i].Created) {
			t.Errorf("key %d is of %s, key %d of %s", i-1, list[i-1].Created, i, list[i].Created)
		}
	}
}

func keyRevoked(t *testing.T, keys appliance.Keys) {
	key, token := newKey(t, keys, appliance.KeyRequest{Name: "one"}, epoch())
	other, _ := newKey(t, keys, appliance.KeyRequest{Name: "other"}, epoch())
	first, err := keys.Revoke(t.Context(), key.ID, epoch().Add(time.Hour))
	check(t, err)
	if first.Revoked.IsZero() {
		t.Fatal("Revoke returned a key that is not revoked")
	}
	got, err := appliance.Authenticate(t.Context(), keys, token)
	check(t, err)
	wantCode(t, got.Authorize(appliance.ScopeAttest, netip.Addr{}, epoch()), appliance.CodeAPIKeyRevoked)

	again, err := keys.Revoke(t.Context(), key.ID, epoch().Add(2*time.Hour))
	check(t, err)
	if !again.Revoked.Equal(first.Revoked) {
		t.Errorf("revoking again moved the time from %s to %s", first.Revoked, again.Revoked)
	}
	if got, _ := keys.Key(t.Context(), other.ID); !got.Revoked.IsZero() {
		t.Error("another key was revoked, too")
	}
}

func keyBound(t *testing.T, keys appliance.Keys) {
	_, err := keys.Bind(t.Context(), "aaaaaaaaaaaaaaaa", "new")
	wantCode(t, err, appliance.CodeNotFound)
	key, token := newKey(t, keys, appliance.KeyRequest{Name: "one", Attestor: "old"}, epoch())
	other, _ := newKey(t, keys, appliance.KeyRequest{Name: "other"}, epoch())
	keys.Used(key.ID, epoch().Add(time.Hour))
	for _, attestor := range []string{"new", "new", ""} {
		bound, err := keys.Bind(t.Context(), key.ID, attestor)
		check(t, err)
		got, err := appliance.Authenticate(t.Context(), keys, token)
		check(t, err)
		want := key
		want.Attestor, want.LastUsed = attestor, got.LastUsed
		if !reflect.DeepEqual(got, want) || !reflect.DeepEqual(bound, want) {
			t.Errorf("bound to %q: %+v, found %+v", attestor, bound, got)
		}
	}
	revoked, err := keys.Revoke(t.Context(), key.ID, epoch().Add(time.Hour))
	check(t, err)
	if bound, err := keys.Bind(t.Context(), key.ID, "new"); err != nil || !bound.Revoked.Equal(revoked.Revoked) {
		t.Errorf("a revoked key was bound: revoked %s, %v", bound.Revoked, err)
	}
	if got, _ := keys.Key(t.Context(), other.ID); got.Attestor != "" {
		t.Error("another key was bound, too")
	}
}

func keyUsed(t *testing.T, keys appliance.Keys) {
	key, _ := newKey(t, keys, appliance.KeyRequest{Name: "one"}, epoch())
	use := epoch().Add(5 * time.Hour)
	keys.Used(key.ID, use)
	got, err := keys.Key(t.Context(), key.ID)
	check(t, err)
	if d := got.LastUsed.Sub(use).Abs(); d > time.Minute {
		t.Errorf("the last use is noted as %s, %s off", got.LastUsed, d)
	}
	keys.Used(key.ID, use.Add(-time.Hour)) // recorded late; the later use stays
	if got, _ := keys.Key(t.Context(), key.ID); got.LastUsed.Sub(use).Abs() > time.Minute {
		t.Errorf("the last use went back to %s", got.LastUsed)
	}
}

func keysConcurrent(t *testing.T, keys appliance.Keys) {
	var wg sync.WaitGroup
	for n := range 16 {
		wg.Go(func() {
			key, _, err := appliance.NewAPIKey(appliance.KeyRequest{Name: fmt.Sprint("one of many ", n)}, epoch())
			if err == nil {
				err = keys.Create(t.Context(), key)
			}
			for i := range 50 {
				keys.Used(key.ID, epoch().Add(time.Duration(i)*time.Minute))
				if err == nil {
					_, err = keys.Key(t.Context(), key.ID)
				}
			}
			if err == nil {
				_, err = keys.Revoke(t.Context(), key.ID, epoch())
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	list, err := keys.List(t.Context())
	check(t, err)
	for _, key := range list {
		if key.Revoked.IsZero() || key.LastUsed.IsZero() {
			t.Errorf("key %s lost a change: revoked %s, last used %s", key.ID, key.Revoked, key.LastUsed)
		}
	}
	if len(list) != 16 {
		t.Errorf("%d keys are listed, not 16", len(list))
	}
}
