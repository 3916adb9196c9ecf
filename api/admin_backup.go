package api

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/gofiber/fiber/v2"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/files"
	"github.com/attestd/attestd/appliance/health"
	"github.com/attestd/attestd/appliance/journal"
)

// backup streams an archive. restore refuses an archive that was cut off, because its end is missing.
func (a *Admin) backup(c *fiber.Ctx) error {
	if a.opts.Backup == nil {
		return appliance.Errorf(appliance.CodeNotFound, "this daemon cannot make backups")
	}
	// recorded first, so that the archive contains the event
	if err := a.recordOrQueue(c, journal.EventBackup, nil); err != nil {
		return err
	}
	backup := func(ctx context.Context, w io.Writer) error {
		err := a.opts.Backup(ctx, w)
		if !errors.Is(err, context.Canceled) { // the operator ended it
			a.backups.made(a.now(), err)
		}
		return err
	}
	if err := a.streamFile(c, backup); err != nil {
		return err
	}
	c.Context().Response.Header.SetContentType("application/x-tar")
	return nil
}

// backups remembers the last backups. The time of the last complete one survives a restart.
type backups struct {
	logger *slog.Logger
	path   string // of the file with that time

	mu    sync.Mutex
	known health.Backups // without Since; guarded by mu
}

// open reads the file. A file that is missing or damaged means that no backup is known.
func (b *backups) open(path string, logger *slog.Logger) {
	b.path, b.logger = path, logger
	if path == "" {
		return
	}
	text, err := os.ReadFile(path)
	if err == nil {
		b.known.Complete, err = time.Parse(time.RFC3339, strings.TrimSpace(string(text)))
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		logger.Warn("backup: the time of the last one cannot be read", "file", path, "error", err.Error())
	}
}

// made notes the end of a backup. failure is nil if it is complete.
func (b *backups) made(at time.Time, failure error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if failure != nil {
		b.known.Failed, b.known.Failure = at, failure
		return
	}
	b.known = health.Backups{Complete: at}
	if b.path == "" {
		return
	}
	err := files.Write(b.path, []byte(at.UTC().Format(time.RFC3339)+"\n"), 0o600)
	if err == nil {
		err = files.HandOver(filepath.Dir(b.path), filepath.Base(b.path))
	}
	if err != nil {
		b.logger.Warn("backup: the time of the last one cannot be written", "error", err.Error())
	}
}

// state returns the backups of a daemon that started at a time.
func (b *backups) state(started time.Time) health.Backups {
	b.mu.Lock()
	defer b.mu.Unlock()
	known := b.known
	known.Since = started
	return known
}
