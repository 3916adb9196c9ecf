package doctor

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/attestd/attestd/appliance/quorum"
)

func TestACheckThatHangsIsAFailedCheck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := make(chan struct{})
		defer close(hang)
		c := checkup{"disk", func(context.Context, *subject) []Finding { <-hang; return nil }}
		found := c.inTime(t.Context(), &subject{})
		if len(found) != 1 || found[0].State != Fail || !strings.Contains(found[0].Detail, "hangs") || found[0].Remedy == "" {
			t.Errorf("%+v", found)
		}
		c.run = func(ctx context.Context, _ *subject) []Finding {
			<-ctx.Done()
			return []Finding{ok("ended with its time")}
		}
		if found := c.inTime(t.Context(), &subject{}); len(found) != 1 || found[0].State != OK {
			t.Errorf("%+v", found)
		}
	})
}

func TestMembersThatFailAreAFailureOnceTooFewAreLeft(t *testing.T) {
	well, away := quorum.MemberStatus{Name: "geneva"}, quorum.MemberStatus{Name: "tokyo", Error: "no answer"}
	for want, members := range map[State][]quorum.MemberStatus{OK: {well, well}, Warn: {well, away}, Fail: {away, away}} {
		findings := judgeQuorum(quorum.Status{Threshold: 2, Members: members})
		if got := Worst(findings); got != want {
			t.Errorf("%v, not %v: %v", got, want, findings)
		}
	}
}
