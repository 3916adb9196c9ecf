package api_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/attestd/attestd/api"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/attest"
	"github.com/attestd/attestd/appliance/audit"
)

func TestWhatIsUnavailableIsSaidWithRetryAfter(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	inside := errors.New("CKR_DEVICE_REMOVED on slot 7")
	unavailable := appliance.Errorf(appliance.CodeHSMUnavailable, "the HSM cannot sign").Because(inside)
	unavailable.RetryAfter = 1500 * time.Millisecond
	r.signer.fail(func() error { return unavailable })
	a := r.attest()
	if a.status != 503 || a.problem().Code != appliance.CodeHSMUnavailable || a.header.Get("Retry-After") != "2" {
		t.Errorf("%s, Retry-After %q", a, a.header.Get("Retry-After"))
	}
	ready := r.do("GET", "/readyz", "")
	if ready.status != 503 || string(ready.body) != `{"status":"unavailable","failing":{"hsm":"hsm_unavailable"}}` {
		t.Error(ready)
	}
	r.signer.fail(func() error { return errors.New("a defect with a secret in it") })
	defect := r.attest()
	if defect.status != 500 || defect.problem().Code != appliance.CodeInternal {
		t.Error(defect)
	}
	if strings.Contains(a.String()+ready.String()+defect.String(), "CKR") ||
		strings.Contains(defect.String(), "secret") {
		t.Error("internals were shown")
	}
	if !strings.Contains(r.logs.String(), inside.Error()) {
		t.Error("the operator is not told the cause")
	}
	r.signer.fail(nil)
	r.clock.move(time.Second)
	if a := r.do("GET", "/readyz", ""); a.status != 200 || string(a.body) != `{"status":"ok"}` {
		t.Error(a)
	}
	if r.size() != 0 {
		t.Error("something was recorded")
	}
}

func TestARequestThatTakesTooLongIsATimeout(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(o *api.Options) { o.RequestTimeout = 20 * time.Millisecond })
	_, release := r.signer.close()
	defer release()
	if a := r.attest(); a.status != 503 || a.problem().Code != appliance.CodeTimeout ||
		a.header.Get("Retry-After") == "" {
		t.Error(a)
	}
}

func TestAPanicIsAnsweredLoggedAndSurvived(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.signer.fail(func() error { panic("the roof is on fire") })
	if a := r.attest("X-Request-Id", "p1"); a.status != 500 || a.problem().Code != appliance.CodeInternal ||
		a.problem().RequestID != "p1" || strings.Contains(a.String(), "roof") {
		t.Error(a)
	}
	if logged := r.logs.String(); !strings.Contains(logged, "the roof is on fire") ||
		!strings.Contains(logged, "attest.go") {
		t.Errorf("no stack in the log: %s", logged)
	}
	r.signer.fail(nil)
	if a := r.attest(); a.status != 200 {
		t.Error(a)
	}
}

func TestHEADAndOPTIONS(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	get, head := r.do("GET", "/functions/v1/attestor", ""), r.do("HEAD", "/functions/v1/attestor", "")
	if head.status != 200 || len(head.body) != 0 || head.header.Get("Content-Length") != fmt.Sprint(len(get.body)) {
		t.Errorf("HEAD: %s %v", head, head.header)
	}
	for path, allow := range map[string]string{attestPath: "POST OPTIONS", "/healthz": "GET HEAD OPTIONS"} {
		a := r.do("OPTIONS", path, "")
		listed := strings.Join(a.header.Values("Allow"), ", ")
		for _, method := range strings.Fields(allow) {
			if !strings.Contains(listed, method) {
				t.Errorf("OPTIONS %s allows %q, not %s", path, listed, method)
			}
		}
		if a.status != 204 || a.header.Get("Access-Control-Allow-Origin") != "" {
			t.Errorf("OPTIONS %s: %s %v", path, a, a.header)
		}
	}
	if a := r.do("OPTIONS", "/nowhere", ""); a.status != 404 {
		t.Error(a)
	}
}

func TestNewNamesEveryOptionThatIsMissing(t *testing.T) {
	t.Parallel()
	names := []string{
		"Attestor", "DefaultRate", "AnonymousRate", "AttestBodyLimit", "RequestTimeout", "ReadTimeout", "WriteTimeout",
		"IdleTimeout",
	}
	s, err := api.New(api.Options{})
	if s != nil || err == nil {
		t.Fatalf("%v, %v, want an error", s, err)
	}
	for _, name := range names {
		if !strings.Contains(err.Error(), name) {
			t.Errorf("%v\ndoes not name %s", err, name)
		}
		opts := testOptions(&attest.Attestor{})
		reflect.ValueOf(&opts).Elem().FieldByName(name).SetZero()
		if _, err := api.New(opts); err == nil || err.Error() != "api.Options: "+name+" must be set" {
			t.Errorf("without %s: %v", name, err)
		}
	}
}

func TestNewRefusesAMalformedVerifierKey(t *testing.T) {
	t.Parallel()
	opts := testOptions(&attest.Attestor{})
	opts.LogVerifier = "example.com/attestd"
	if _, err := api.New(opts); err == nil || !strings.Contains(err.Error(), "LogVerifier") {
		t.Errorf("%v, want an error that names LogVerifier", err)
	}
}

// These stores do not answer before the context ends.
type (
	stuckJournal struct{ audit.Journal }
	stuckKeys    struct{ appliance.Keys }
)

func (stuckJournal) Checkpoint(ctx context.Context) ([]byte, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func (stuckJournal) Tile(ctx context.Context, _ tlog.Tile) ([]byte, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func (stuckKeys) Key(ctx context.Context, _ string) (appliance.APIKey, error) {
	<-ctx.Done()
	return appliance.APIKey{}, ctx.Err()
}

func TestNothingWaitsLongerThanTheRequestTimeout(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		path    string
		withKey bool
	}{
		"the checkpoint":   {path: "/log/checkpoint"},
		"a tile":           {path: "/log/tile/0/000"},
		"the caller's key": {path: "/functions/v1/attestor", withKey: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, func(o *api.Options) {
				o.Attestor.Journal, o.Attestor.Keys = stuckJournal{o.Attestor.Journal}, stuckKeys{o.Attestor.Keys}
				o.RequestTimeout = 20 * time.Millisecond
			})
			var headers []string
			if test.withKey {
				headers = []string{"x-api-key", r.token}
			}
			if a := r.do("GET", test.path, "", headers...); a.status != 503 ||
				a.problem().Code != appliance.CodeTimeout {
				t.Error(a)
			}
		})
	}
}
