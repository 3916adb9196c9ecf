package console

import (
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

func TestAPanicOfDoctorIsAFailedCheck(t *testing.T) {
	t.Parallel()
	running := make(chan struct{})
	d := &doctor{running: running}
	d.run(&visit{ // without Admin
		Request: httptest.NewRequest("GET", "/", nil),
		console: &Console{now: time.Now},
	})
	<-running
	if bad := d.found.Bad; len(bad) != 1 || bad[0].State != "fail" || !strings.Contains(bad[0].Detail, "panicked") ||
		d.running != nil {
		t.Errorf("found %+v", d.found)
	}
}
