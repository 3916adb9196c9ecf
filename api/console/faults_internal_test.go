package console

import (
	"strings"
	"testing"

	"github.com/attestd/attestd/appliance/health"
)

func TestTheOverviewShowsEachFaultOnce(t *testing.T) {
	t.Parallel()
	named := func(check string, f health.Finding) health.Finding { return health.Named(check, f)[0] }
	checks := []health.Finding{
		named("sinks", health.Warning("mend it", "siem is away")),
		named("hsm", health.Failure(health.RecoveryRemedy, "CKR_DEVICE_ERROR")),
		named("witnesses", health.Good("all cosign")),
	}
	found := findings{Bad: []finding{
		{named("sinks", health.Failure("mend it", "siem is away for an hour"))},               // older than the status
		{named("witnesses", health.Warning("wait", "w1 is away"))},                            // it works again
		{named("daemon", health.Failure(health.RecoveryRemedy, "hsm: CKR_DEVICE_ERROR"))},     // repeats
		{named("token", health.Failure("attestd hsm init", "there is no token \"attestd\""))}, // the cause
	}}
	var got []string
	for _, f := range faults(checks, found) {
		got = append(got, string(f.State)+" "+f.Check)
	}
	if want := "fail hsm, fail token, warn sinks"; strings.Join(got, ", ") != want {
		t.Errorf("%s, want %s", strings.Join(got, ", "), want)
	}
}
