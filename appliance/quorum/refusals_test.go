package quorum

import (
	"errors"
	"testing"
	"time"

	"github.com/attestd/attestd/appliance"
)

// A refusal has RetryAfter only if enough members may sign a repeat, in whatever order they refuse.
func TestARefusalIsRepeatedOnlyIfThatCanSucceed(t *testing.T) {
	t.Parallel()
	denied := &failure{kind: kindRefused, code: appliance.CodeApprovalDenied}
	waits := &failure{kind: kindRefused, code: appliance.CodeApprovalRequired, retryAfter: 30 * time.Second}
	capped := &failure{kind: kindRefused, code: appliance.CodePolicyCap, retryAfter: time.Hour}
	down := &failure{code: CodeUnreachable}
	for name, c := range map[string]struct {
		members, threshold int
		failed             []*failure
		code               appliance.Code
		retryAfter         time.Duration
	}{
		"both denied":             {2, 2, []*failure{denied, denied}, appliance.CodeQuorumRefused, 0},
		"one waits":               {2, 2, []*failure{denied, waits}, appliance.CodeQuorumRefused, 30 * time.Second},
		"the one waits, reversed": {2, 2, []*failure{waits, denied}, appliance.CodeQuorumRefused, 30 * time.Second},
		"the earlier is enough":   {2, 2, []*failure{capped, waits}, appliance.CodeQuorumRefused, 30 * time.Second},
		"both are needed":         {2, 3, []*failure{waits, capped}, appliance.CodeQuorumRefused, time.Hour},
		"all are needed":          {2, 3, []*failure{waits, denied}, appliance.CodeQuorumRefused, 0},
		"one of all is denied":    {2, 3, []*failure{denied}, appliance.CodeQuorumRefused, 0},
		"one may come back":       {2, 2, []*failure{denied, down}, appliance.CodeQuorumUnreachable, 0},
		"three of five":           {4, 3, []*failure{denied, waits, capped}, appliance.CodeQuorumRefused, 30 * time.Second},
	} {
		q := &Quorum{opts: Options{Threshold: c.threshold}, members: make([]*member, c.members)}
		answers := make(chan answer, c.members)
		for i := range c.members {
			a := answer{from: &member{Member: Member{Name: "geneva"}}}
			if a.signed.SignerAddress[0] = byte(i + 1); i < len(c.failed) {
				a.failure = c.failed[i]
			}
			answers <- a
		}
		_, err := q.join(t.Context(), appliance.Attestation{}, answers)
		e, ok := errors.AsType[*appliance.Error](err)
		if !ok || e.Code != c.code || e.RetryAfter != c.retryAfter {
			t.Errorf("%s: %v, want %s after %s", name, err, c.code, c.retryAfter)
		}
	}
}
