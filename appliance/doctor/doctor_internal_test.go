package doctor

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
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
