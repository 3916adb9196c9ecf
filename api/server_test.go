package api_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/attestd/attestd/api"
	"github.com/attestd/attestd/appliance"
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
	if strings.Contains(a.String()+ready.String()+defect.String(), "CKR") || strings.Contains(defect.String(), "secret") {
		t.Error("internals were shown")
	}
	if !strings.Contains(r.logs.String(), inside.Error()) {
		t.Error("the operator is not told the cause")
	}
	r.signer.fail(nil)
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
	if a := r.attest(); a.status != 503 || a.problem().Code != appliance.CodeTimeout || a.header.Get("Retry-After") == "" {
		t.Error(a)
	}
}

func TestAPanicIsAnsweredLoggedAndSurvived(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.signer.fail(func() error { panic("the roof is on fire") })
	if a := r.attest("X-Request-Id", "p1"); a.status != 500 || a.problem().Code != appliance.CodeInternal || a.problem().RequestID != "p1" || strings.Contains(a.String(), "roof") {
		t.Error(a)
	}
	if logged := r.logs.String(); !strings.Contains(logged, "the roof is on fire") || !strings.Contains(logged, "attest.go") {
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
