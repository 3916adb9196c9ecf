package main

import (
	"context"
	"crypto/tls"
	"encoding/hex"
	"os"
	"path/filepath"
	"time"

	"github.com/attestd/attestd/api/wire"
	"github.com/attestd/attestd/appliance/archive"
	"github.com/attestd/attestd/appliance/config"
	"github.com/attestd/attestd/appliance/daemon"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/appliance/service"
	"github.com/attestd/attestd/store/highwater"
)

// filesGlance is the status that an appliance's files show without a daemon. Its JSON has the names of wire.Status.
type filesGlance struct {
	Signing wire.Signing        `json:"signing"`
	Journal *wire.JournalStatus `json:"journal,omitempty"` // nil if never published, or unreadable
	Stopped string              `json:"stopped,omitempty"` // why a daemon that starts now would not attest
	Machine *wire.Machine       `json:"machine"`
}

// readFiles takes no lock and creates no file, so that it does not disturb a daemon that is starting.
func readFiles(ctx context.Context, c *config.Config, now time.Time) *filesGlance {
	f := &filesGlance{Signing: wire.Signing{
		State: wire.SigningNotRunning, Why: "the daemon is not running, no answer on " + c.Admin.Socket,
		Remedy: "systemctl start attestd; if that fails: attestd doctor",
	}}
	var ends time.Time
	if files := c.Server.TLS; files.Cert != "" {
		if pair, err := tls.LoadX509KeyPair(files.Cert, files.Key); err == nil {
			ends = pair.Leaf.NotAfter
		}
	}
	f.Machine = daemon.Machine(c, ends, now)
	if owner, err := service.UserOf(c.DataDir); err == nil {
		_ = owner.Do(func() error { f.Journal = published(c); return nil }) // an unreadable journal is left out
	}
	if c.Store.URL != "" {
		return f // the database is not asked
	}
	if state, err := daemon.ReadStop(ctx, c); err != nil {
		f.Stopped = err.Error()
	} else if state.Halted != nil {
		f.Stopped = "halted: " + state.Halted.Reason
	} else if state.Paused != nil {
		f.Stopped = "paused by " + state.Paused.By + ": " + state.Paused.Reason
	}
	return f
}

// published reads the journal's size and root hash from the high-water mark.
func published(c *config.Config) *wire.JournalStatus {
	secret, err := os.ReadFile(filepath.Join(c.DataDir, archive.LogKeyFile))
	if err != nil {
		return nil
	}
	key, err := journal.ParseLogKey(string(secret))
	if err != nil {
		return nil
	}
	mark, err := highwater.Read(filepath.Join(c.DataDir, highwater.FileName), key.Verifier)
	if err != nil {
		return nil
	}
	return &wire.JournalStatus{Records: mark.Tree.N, RootHash: hex.EncodeToString(mark.Tree.Hash[:])}
}
