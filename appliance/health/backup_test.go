package health_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/attestd/attestd/appliance/health"
)

func TestBackupsThatFailOrStopAreAFailure(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	ago := func(hours int) time.Time { return now.Add(-time.Duration(hours) * time.Hour) }
	full := errors.New("no space left on device")
	for name, c := range map[string]struct {
		backups health.Backups
		maxAge  time.Duration
		want    string // state and a part of the detail; empty for no finding
	}{
		"none yet":                    {health.Backups{Since: ago(100)}, 0, ""},
		"none yet, and it is early":   {health.Backups{Since: ago(23)}, 24 * time.Hour, ""},
		"none yet, and it is late":    {health.Backups{Since: ago(25)}, 24 * time.Hour, "fail no backup is known"},
		"a recent one":                {health.Backups{Complete: ago(23), Since: ago(90)}, 24 * time.Hour, "ok the last complete"},
		"an old one":                  {health.Backups{Complete: ago(25), Since: ago(1)}, 24 * time.Hour, "fail the last complete"},
		"an old one, of any age":      {health.Backups{Complete: ago(999), Since: ago(1)}, 0, "ok the last complete"},
		"one that failed":             {health.Backups{Failed: ago(1), Failure: full, Since: ago(2)}, 0, "fail the backup of"},
		"a recent one, then a failed": {health.Backups{Complete: ago(2), Failed: ago(1), Failure: full}, 0, "fail the backup of"},
	} {
		found := health.Backup(c.backups, c.maxAge, now)
		if c.want == "" && len(found) == 0 {
			continue
		}
		if len(found) != 1 || !strings.HasPrefix(string(found[0].State)+" "+found[0].Detail, c.want) || c.want == "" ||
			(found[0].State == health.Fail) != strings.Contains(found[0].Remedy, "attestd backup FILE") {
			t.Errorf("%s: %+v, want %q", name, found, c.want)
		}
	}
}
