package api_test

import (
	"context"
	"net/netip"
	"strconv"
	"testing"
	"time"

	"github.com/gofiber/fiber/v2"

	"github.com/attestd/attestd/api"
	"github.com/attestd/attestd/appliance"
)

// readsRoutes are open to all clients and accept keys of scope graphql, like the GraphQL route. A request to /costly is
// charged as four.
func readsRoutes() []api.Route {
	ok := func(*fiber.Ctx) error { return nil }
	costly := func(c *fiber.Ctx) error { api.Charge(c, 3); return nil }
	return []api.Route{
		{Method: fiber.MethodGet, Path: "/reads", Scope: appliance.ScopeGraphQL, Open: true, Handler: ok},
		{Method: fiber.MethodPost, Path: "/reads", Scope: appliance.ScopeGraphQL, Open: true, ReadsBody: true,
			Handler: ok},
		{Method: fiber.MethodGet, Path: "/costly", Scope: appliance.ScopeGraphQL, Open: true, Handler: costly},
	}
}

func perSecond(n float64) appliance.Rate { return appliance.Rate{PerSecond: n} }

// allowed sends up to 100 requests until one is refused for the rate, and returns the number of requests before it.
func (r *rig) allowed(path, token string) (n int) {
	r.Helper()
	for ; n < 100; n++ {
		a := r.do("GET", path, "", "x-api-key", token)
		if a.status == 429 {
			if a.problem().Code != appliance.CodeRateLimited || a.header.Get("Retry-After") == "" {
				r.Errorf("%s, Retry-After %q", a, a.header.Get("Retry-After"))
			}
			break
		}
	}
	return n
}

func TestAKeyCountsOnlyWhereItMayBeUsedAndPaysThereItself(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(o *api.Options) {
		o.AnonymousRate, o.DefaultRate, o.Routes = perSecond(3), perSecond(7), readsRoutes()
	})
	revoked, id := r.newKey(appliance.KeyRequest{Rate: appliance.Unlimited})
	_, err := r.attestor.Keys.Revoke(context.Background(), id, r.clock.Now())
	r.must(err)
	expired, _ := r.newKey(appliance.KeyRequest{Rate: appliance.Unlimited, Expires: r.clock.Now().Add(time.Second)})
	elsewhere, _ := r.newKey(appliance.KeyRequest{Rate: appliance.Unlimited,
		AllowFrom: []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")}})
	attests, _ := r.newKey(
		appliance.KeyRequest{Rate: appliance.Unlimited, Scopes: []appliance.Scope{appliance.ScopeAttest}})
	usual, _ := r.newKey(appliance.KeyRequest{})
	five, _ := r.newKey(appliance.KeyRequest{Rate: perSecond(5)})
	for _, c := range []struct {
		name, path, token string
		want              int // requests per second that are answered; 100 means no refusal
	}{
		{"no key", "/reads", "", 3},
		{"an unknown key", "/reads", "attestd_x", 3},
		{"a revoked key", "/reads", revoked, 3},
		{"a revoked key, on an open route", "/functions/v1/attestor", revoked, 3},
		{"an expired key", "/reads", expired, 3},
		{"an expired key, on an open route", "/functions/v1/attestor", expired, 3},
		{"a key from elsewhere", "/reads", elsewhere, 3},
		{"a key from elsewhere, on an open route", "/functions/v1/attestor", elsewhere, 3},
		{"a key of another scope", "/reads", attests, 3},
		{"a key of any scope, on an open route", "/functions/v1/attestor", attests, 100},
		{"a key of the default rate", "/reads", usual, 7},
		{"a key of the default rate, on an open route", "/functions/v1/attestor", usual, 7},
		{"a key of a rate of its own", "/reads", five, 5},
		{"a waived key", "/reads", r.token, 100},
		{"a costly request, no key", "/costly", "", 1},
		{"a costly request, with a key", "/costly", usual, 2},
		{"a costly request, waived", "/costly", r.token, 100},
	} {
		r.clock.move(2 * time.Minute)
		if got := r.allowed(c.path, c.token); got != c.want {
			t.Errorf("%s: %d were answered, want %d", c.name, got, c.want)
		}
	}
	a := r.do("GET", "/reads", "", "x-api-key", revoked)
	r.clock.move(2 * time.Minute)
	if b := r.do("GET", "/reads", "", "x-api-key", revoked); a.status != 429 && b.status != 200 {
		t.Errorf("a revoked key is not answered as nobody: %s", b)
	}
}

func TestAClientHasOneBucketOverMethodsAndRoutes(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(o *api.Options) { o.AnonymousRate, o.Routes = perSecond(4), readsRoutes() })
	five, _ := r.newKey(appliance.KeyRequest{Rate: perSecond(5)})
	for name, token := range map[string]string{"no key": "", "a key": five} {
		answered := 0
		for _, one := range [][2]string{
			{"GET", "/reads"}, {"POST", "/reads"}, {"GET", "/functions/v1/attestor"}, {"GET", "/nowhere"},
			{"GET", "/openapi.yaml"}, {"HEAD", "/reads"}, {"PUT", "/reads"},
		} {
			if a := r.do(one[0], one[1], "", "x-api-key", token); a.status != 429 {
				answered++
			}
		}
		if want := map[string]int{"no key": 4, "a key": 5}[name]; answered != want {
			t.Errorf("%s: %d of 7 were answered, want %d", name, answered, want)
		}
		for _, probe := range []string{"/healthz", "/readyz"} {
			if a := r.do("GET", probe, "", "x-api-key", token); a.status != 200 {
				t.Errorf("%s: %s is %s", name, probe, a)
			}
		}
	}
}

func TestRatesTightenWhileTheHSMIsSaturatedAndLoosenAgain(t *testing.T) {
	t.Parallel()
	r, _, signAll := queueRig(t, 4, func(o *api.Options) {
		o.AnonymousRate, o.DefaultRate, o.Routes = perSecond(32), perSecond(16), readsRoutes()
	})
	usual, _ := r.newKey(appliance.KeyRequest{})
	five, _ := r.newKey(appliance.KeyRequest{Rate: perSecond(5)})
	is := func(when string, factor float64, anonymous, ofKey int) {
		t.Helper()
		if f := counted(t, r.registry, "attestd_rate_factor", ""); f != factor {
			t.Errorf("%s: the factor is %v, want %v", when, f, factor)
		}
		if got := r.allowed("/reads", ""); got != anonymous {
			t.Errorf("%s: %d without a key, want %d", when, got, anonymous)
		}
		if got := r.allowed("/reads", usual); got != ofKey {
			t.Errorf("%s: %d with a key, want %d", when, got, ofKey)
		}
		if got := r.allowed("/reads", five); got != 5 {
			t.Errorf("%s: %d with a key of its own rate, want 5", when, got)
		}
		if got := r.allowed("/reads", r.token); got != 100 {
			t.Errorf("%s: %d with a waived key", when, got)
		}
	}
	is("at first", 1, 32, 16)
	greedy, _ := r.newKey(appliance.KeyRequest{Rate: appliance.Unlimited})
	r.askMany(greedy, 1+4, 4)
	r.clock.move(time.Second)
	is("saturated for a second", .5, 16, 8)
	r.clock.move(time.Second)
	is("for two", .25, 8, 4)
	for range 10 {
		r.clock.move(time.Second)
		counted(t, r.registry, "attestd_rate_factor", "")
	}
	is("for long", 1.0/16, 2, 1)
	signAll()
	r.untilWaiting(0)
	r.clock.move(time.Second)
	is("a second after", 1.25/16, 2, 1)
	r.clock.move(time.Minute)
	is("a minute after", 1, 32, 16)
}

func TestAClientThatMakesManyErrorsIsTightenedAndLoosenedAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(o *api.Options) {
		o.AnonymousRate, o.DefaultRate, o.ErrorRate, o.Routes = perSecond(20), perSecond(20), perSecond(10.0/60),
			readsRoutes()
	})
	clumsy, _ := r.newKey(appliance.KeyRequest{})
	careful, _ := r.newKey(appliance.KeyRequest{})
	err := func(token string) answer {
		return r.do("POST", attestPath, "{", "x-api-key", token, "Content-Type", "application/json")
	}
	for name, c := range map[string]struct {
		token  string
		status int
		by     string
	}{
		"a key": {clumsy, 400, "key"}, "an address": {"attestd_x", 401, "address"},
	} {
		for n := range 11 {
			if a := err(c.token); a.status != c.status {
				t.Fatalf("%s: error %d: %s", name, n, a)
			}
			r.clock.move(100 * time.Millisecond)
		}
		r.clock.move(time.Second)
		if got := r.allowed("/reads", c.token); got != 2 {
			t.Errorf("%s: tightened: %d a second, want 2", name, got)
		}
		if a := r.do("GET", "/reads", "", "x-api-key", c.token); a.status != 429 || a.header.Get("Retry-After") != "1" {
			t.Errorf("%s: %s, Retry-After %q", name, a, a.header.Get("Retry-After"))
		}
		if n := counted(t, r.registry, "attestd_clients_tightened_total", c.by); n != 1 {
			t.Errorf("%s: counted %v times", name, n)
		}
		if got := r.allowed("/reads", careful); got != 20 {
			t.Errorf("beside %s: %d a second, want 20", name, got)
		}
		r.clock.move(6 * time.Second) // restores the allowance for one more error
		if got := r.allowed("/reads", c.token); got != 20 {
			t.Errorf("%s: loosened: %d a second, want 20", name, got)
		}
		for range 100 {
			err(c.token)
		}
		r.clock.move(2*time.Minute + time.Second)
		if got := r.allowed("/reads", c.token); got != 20 {
			t.Errorf("%s: two minutes after a hundred errors: %d a second, want 20", name, got)
		}
	}
	for range 100 {
		if a := err(r.token); a.status != 400 {
			t.Fatalf("a waived key: %s", a)
		}
	}
}

func TestRetryAfterIsWhenTheNextRequestIsAnswered(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		rate   appliance.Rate
		errors int
		path   string
		most   int // maximum of Retry-After, in seconds
	}{
		{"100/s", perSecond(100), 0, "/reads", 1},
		{"2/s", perSecond(2), 0, "/reads", 1},
		{"6/m", perSecond(.1), 0, "/reads", 10},
		{"1/h", perSecond(1.0 / 3600), 0, "/reads", 3600},
		{"2/s, costly", perSecond(2), 0, "/costly", 2},
		{"6/m, costly", perSecond(.1), 0, "/costly", 40},
		{"20/s, tightened", perSecond(20), 2, "/reads", 1},
		{"1/s, tightened", perSecond(1), 2, "/reads", 10},
		{"6/m, tightened", perSecond(.1), 2, "/reads", 100},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, func(o *api.Options) { o.ErrorRate, o.Routes = perSecond(1.0/3600), readsRoutes() })
			token, _ := r.newKey(appliance.KeyRequest{Rate: c.rate})
			for range c.errors {
				if a := r.do("POST", attestPath, "{", "x-api-key", token, "Content-Type",
					"application/json"); a.status != 400 {
					t.Fatal(a)
				}
				r.clock.move(10 * time.Second)
			}
			r.allowed(c.path, token)
			after, err := strconv.Atoi(r.do("GET", c.path, "", "x-api-key", token).header.Get("Retry-After"))
			if err != nil || after < 1 || after > c.most {
				t.Fatalf("Retry-After %d, %v", after, err)
			}
			r.clock.move(time.Duration(after) * time.Second)
			if a := r.do("GET", c.path, "", "x-api-key", token); a.status != 200 {
				t.Errorf("%d seconds later: %s", after, a)
			}
		})
	}
}
