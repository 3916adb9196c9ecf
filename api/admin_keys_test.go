package api_test

import (
	"testing"

	"github.com/attestd/attestd/appliance/attest"
)

func TestTheOperatorSeesHowOftenAPIKeysAreUsed(t *testing.T) {
	t.Parallel()
	o := newAdminRig(t)
	unused, err := o.client.KeyUse(t.Context())
	if err != nil || unused.Keys == nil || len(unused.Keys) != 0 || unused.StepSeconds != 900 ||
		!unused.Until.After(o.clock.Now()) {
		t.Errorf("%+v, %v", unused, err)
	}
	o.attest("Idempotency-Key", "one")
	o.attest("Idempotency-Key", "one") // replayed, not signed again
	o.attest()
	use, err := o.client.KeyUse(t.Context())
	steps := use.Keys[o.key]
	if err != nil || len(use.Keys) != 1 || len(steps) != attest.KeyUseSteps || steps[len(steps)-1] != 2 {
		t.Errorf("%+v, %v", use, err)
	}
}
