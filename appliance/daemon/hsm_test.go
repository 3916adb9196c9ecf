package daemon

import (
	"fmt"
	"strings"
	"testing"

	"github.com/attestd/attestd/hsm"
)

// A wrong remedy prolongs the outage.
func TestTheRemedyFitsWhatIsMissing(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		err           error
		with, without string
	}{
		"a mistyped key": {fmt.Errorf("%w: %w", hsm.ErrNotFound, hsm.ErrOtherKeys), "correct object or id",
			"hsm init"},
		"no such token": {hsm.ErrNotFound, "attestd hsm init", "server"},
		"no token at all": {fmt.Errorf("%w: %w", hsm.ErrNotFound, hsm.ErrNoToken), "device or server of the HSM",
			"hsm init"},
		"a wrong PIN": {hsm.ErrPIN, "PIN", "hsm init"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := WithRemedy(test.err).Error(); !strings.Contains(got, test.with) ||
				strings.Contains(got, test.without) {
				t.Errorf("%q, want %q and not %q", got, test.with, test.without)
			}
		})
	}
}
