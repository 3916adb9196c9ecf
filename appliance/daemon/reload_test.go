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
	"github.com/attestd/attestd/appliance/audit"
	"github.com/attestd/attestd/appliance/config"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/appliance/policy"
)

// refusingJournal refuses events.
type refusingJournal struct{ audit.Journal }

func (refusingJournal) AppendEvent(context.Context, journal.Event) (journal.Entry, error) {
	return journal.Entry{}, appliance.Errorf(appliance.CodeJournalUnavailable, "the disk is read-only")
}

// If the journal refuses the event of another policy, the reload fails, and the next start still compares with the
// policy in effect.
func TestAPolicyWhoseEventIsRefusedIsNotReloaded(t *testing.T) {
	t.Parallel()
	events := journal.NewEvents(journal.EventsOptions{Journal: refusingJournal{}})
	t.Cleanup(func() {
		ended, end := context.WithCancel(context.Background())
		end()
		_ = events.Close(ended) // it has nothing to record
	})
	r := &running{events: events, config: &config.Config{DataDir: t.TempDir()}, logger: slog.New(slog.DiscardHandler)}
	r.governed.Store(&rules{Policy: &ruleFile{"before", 3}})
	err := r.recordReload("root", &policy.Policy{Version: "after"}, nil, nil)
	if appliance.CodeOf(err) != appliance.CodeJournalUnavailable {
		t.Errorf("error %v", err)
	}
	if _, err := os.Stat(filepath.Join(r.config.DataDir, RulesFile)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s names the refused policy: %v", RulesFile, err)
	}
}
