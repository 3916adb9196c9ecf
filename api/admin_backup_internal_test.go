package api

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// The time of the last complete backup survives a restart. A failed backup does not change it, and a damaged file means
// that none is known.
func TestTheLastBackupIsKnownAfterARestart(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "last-backup")
	opened := func() *backups {
		b := new(backups)
		b.open(path, slog.New(slog.DiscardHandler))
		return b
	}
	noon := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	first := opened()
	if got := first.state(noon); !got.Complete.IsZero() || !got.Since.Equal(noon) {
		t.Errorf("before the first backup: %+v", got)
	}
	first.made(noon, nil)
	first.made(noon.Add(time.Hour), errors.New("out of order"))
	if got := first.state(noon); !got.Complete.Equal(noon) || !got.Failed.Equal(noon.Add(time.Hour)) || got.Failure == nil {
		t.Errorf("after a failed one: %+v", got)
	}
	if got := opened().state(noon); !got.Complete.Equal(noon) || !got.Failed.IsZero() {
		t.Errorf("after a restart: %+v", got)
	}
	first.made(noon.Add(2*time.Hour), nil)
	if got := first.state(noon); !got.Complete.Equal(noon.Add(2*time.Hour)) || got.Failure != nil {
		t.Errorf("after another one: %+v", got)
	}
	if err := os.WriteFile(path, []byte("yesterday"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := opened().state(noon); !got.Complete.IsZero() {
		t.Errorf("after damage: %+v", got)
	}
}
