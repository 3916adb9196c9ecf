package doctor

import (
	"context"
	"path/filepath"

	"github.com/attestd/attestd/api/client"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/archive"
	"github.com/attestd/attestd/appliance/daemon"
	"github.com/attestd/attestd/appliance/files"
	"github.com/attestd/attestd/store/highwater"
)

// lostRemedy is the remedy for a journal that lacks records of the high-water mark.
const lostRemedy = "put the newer journal back, and attestd goes on; where it is gone for good: systemctl stop attestd && " +
	"attestd log accept-loss --reason … && systemctl start attestd"

// checkMark compares the journal with the highest checkpoint that this appliance has seen.
func checkMark(ctx context.Context, p *subject) []Finding {
	path := filepath.Join(p.config.DataDir, highwater.FileName)
	if p.running() {
		daemon := client.NewAdmin(p.config.Admin.Socket)
		defer func() { _ = daemon.Close() }()
		switch _, err := daemon.Checkpoint(ctx); {
		case client.CodeOf(err) == appliance.CodeJournalLost:
			return []Finding{fail(lostRemedy, "%s", err)}
		case err != nil:
			return []Finding{warn("the other findings and journalctl -u attestd tell more", "whether the journal has what was published is not known: %s", err)}
		}
		return []Finding{ok("%s covers what was published", path)}
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
		return []Finding{warn("run doctor as root, or as the user "+p.service.Name, "%s", err)}
	case mark.Signed == nil:
		return []Finding{warn("start attestd, which makes it; what was lost before is not noticed", "%s is not there", path)}
	}
	return []Finding{ok("the journal has the %d records that were published", mark.Tree.N)}
}
