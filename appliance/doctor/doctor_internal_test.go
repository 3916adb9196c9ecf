package doctor

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/attestd/attestd/store/postgres"
)

func TestACommitThatNoStandbyConfirmsIsAFailure(t *testing.T) {
	server := postgres.Server{Fsync: true, FullPageWrites: true, SynchronousCommit: "on", SynchronousFor: "ANY 1 (*)"}
	if found := keeping("postgres://attestd@db/attestd", server, time.Millisecond, nil); len(found) != 1 ||
		found[0].State != OK {
		t.Errorf("with a standby: %+v", found)
	}
	found := keeping("postgres://attestd@db/attestd", server, 0, errors.New("no answer: check its synchronous standby"))
	if len(found) != 1 || found[0].State != Fail ||
		!strings.Contains(found[0].Detail, "the database does not commit, so attestd cannot attest: no answer") ||
		!strings.Contains(found[0].Remedy, "pg_stat_replication") {
		t.Errorf("without one: %+v", found)
	}
}

func TestACheckThatHangsIsAFailedCheck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := make(chan struct{})
		defer close(hang)
		c := checkup{"disk", func(context.Context, *subject) []Finding { <-hang; return nil }}
		began := time.Now()
		found := c.inTime(t.Context(), &subject{})
		if len(found) != 1 || found[0].State != Fail || !strings.Contains(found[0].Detail, "hangs") ||
			found[0].Remedy == "" {
			t.Errorf("%+v", found)
		}
		if took := time.Since(began); took != 21*time.Second { // of the fake clock
			t.Errorf("it took %s", took)
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

func TestACheckThatPanicsIsAFailedCheck(t *testing.T) {
	t.Parallel()
	c := checkup{"disk", func(_ context.Context, p *subject) []Finding { return []Finding{ok("%s", p.config.DataDir)} }}
	found := c.inTime(t.Context(), new(subject)) // its config is nil
	if len(found) != 1 || found[0].State != Fail || found[0].Remedy == "" ||
		!strings.Contains(found[0].Detail, "nil pointer dereference (doctor_internal_test.go:") {
		t.Errorf("%+v", found)
	}
}

func TestAHangingCheckEndsSoonAfterDoctorIsCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := make(chan struct{})
		defer close(hang)
		c := checkup{"disk", func(context.Context, *subject) []Finding { <-hang; return nil }}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		if found := c.inTime(ctx, new(subject)); len(found) != 1 || found[0].State != Fail ||
			time.Since(began) != time.Second+checkGrace {
			t.Errorf("%+v after %s", found, time.Since(began))
		}
	})
}
