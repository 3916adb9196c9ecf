package doctor

import (
	"context"
	"path/filepath"

	"github.com/attestd/attestd/api/client"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/archive"
	"github.com/attestd/attestd/appliance/daemon"
	"github.com/attestd/attestd/appliance/files"
	"github.com/attestd/attestd/appliance/text"
	"github.com/attestd/attestd/store/highwater"
)

// lostRemedy is the remedy for a journal that lacks records of the high-water mark.
const lostRemedy = "put the newer journal back; attestd then continues. If it is lost for good: systemctl stop attestd && " +
	"attestd log accept-loss --reason … && systemctl start attestd"

// checkMark compares the journal with the highest checkpoint that this appliance has seen.
func checkMark(ctx context.Context, p *subject) []Finding {
	path := filepath.Join(p.config.DataDir, highwater.FileName)
	if unread := p.unread(ctx); unread != nil {
		return unread
	}
	ctx, cancel := p.patience(ctx)
	defer cancel()
	if p.running() {
		daemon := client.NewAdmin(p.config.Admin.Socket)
		defer func() { _ = daemon.Close() }()
		switch _, err := daemon.Checkpoint(ctx); {
		case client.CodeOf(err) == appliance.CodeJournalLost:
			return []Finding{fail(lostRemedy, "%s", err)}
		case err != nil:
			return []Finding{warn("see the other findings, and the log: journalctl -u attestd",
				"cannot compare the journal with its published checkpoint: %s", err)}
		}
		return []Finding{ok("the journal has all records of %s", path)}
	}
	if !files.Exists(filepath.Join(p.config.DataDir, archive.StoreFile)) {
		return nil
	}
	store, err := daemon.ReadStore(p.config)
	if err != nil {
		return nil // checkJournal reports it
	}
	defer func() { _ = store.Close() }()
	mark, loss, err := highwater.Compare(ctx, path, store.Journal, store.LogKey)
	switch {
	case loss != nil:
		return []Finding{fail(lostRemedy, "%s", loss.Why)}
	case err != nil:
		return []Finding{warn(asRoot, "%s", err)}
	case mark.Signed == nil:
		return []Finding{warn("start attestd, which creates it: systemctl start attestd",
			"%s does not exist, so an earlier loss would not be noticed", path)}
	}
	return []Finding{ok("the journal has all %s published records", text.Count(mark.Tree.N))}
}
