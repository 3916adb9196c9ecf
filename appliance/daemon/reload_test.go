package daemon

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/config"
)

// refusingJournal refuses events.
type refusingJournal struct{ appliance.Journal }

func (refusingJournal) AppendEvent(context.Context, appliance.Event) (appliance.Entry, error) {
	return appliance.Entry{}, appliance.Errorf(appliance.CodeJournalUnavailable, "the disk is read-only")
}

// If the journal refuses the event of another policy, the reload fails, and the next start still compares with the
// policy in effect.
func TestAPolicyWhoseEventIsRefusedIsNotReloaded(t *testing.T) {
	t.Parallel()
	events := appliance.NewEvents(appliance.EventsOptions{Journal: refusingJournal{}})
	t.Cleanup(func() {
		ended, end := context.WithCancel(context.Background())
		end()
		_ = events.Close(ended) // it has nothing to record
	})
	r := &running{events: events, config: &config.Config{DataDir: t.TempDir()}, logger: slog.New(slog.DiscardHandler)}
	r.governed.Store(&rules{Policy: &ruleFile{"before", 3}})
	err := r.recordReload("root", &appliance.Policy{Version: "after"}, nil, nil)
	if appliance.CodeOf(err) != appliance.CodeJournalUnavailable {
		t.Errorf("error %v", err)
	}
	if _, err := os.Stat(filepath.Join(r.config.DataDir, RulesFile)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s names the refused policy: %v", RulesFile, err)
	}
}
