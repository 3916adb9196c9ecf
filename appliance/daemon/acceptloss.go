package daemon

import (
	"context"
	"errors"
	"path/filepath"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/archive"
	"github.com/attestd/attestd/appliance/config"
	"github.com/attestd/attestd/appliance/service"
	"github.com/attestd/attestd/store/highwater"
)

// AcceptLoss has the journal go on as another log where it is not the one that the high-water mark tells, and else returns
// archive.ErrNothingLost. This appliance's daemon must not be running; others that share the database follow by themselves.
func AcceptLoss(ctx context.Context, c *config.Config, o archive.ContinueOptions) (next archive.Continued, loss *highwater.Loss, err error) {
	if c.Store.URL == "" {
		return archive.AcceptLoss(ctx, c.DataDir, o)
	}
	owner, err := service.UserOf(c.DataDir)
	if err != nil {
		return next, nil, err
	}
	err = owner.Do(func() error {
		next, loss, err = acceptDatabaseLoss(ctx, c, o)
		return err
	})
	return next, loss, err
}

func acceptDatabaseLoss(ctx context.Context, c *config.Config, o archive.ContinueOptions) (next archive.Continued, loss *highwater.Loss, err error) {
	s, err := readDatabase(c)
	if err != nil {
		return next, nil, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	path := filepath.Join(c.DataDir, highwater.FileName)
	if o.Published, err = archive.PublishedMark(path, s.LogKey); err != nil {
		return next, nil, err
	}
	if _, loss, err = highwater.Compare(ctx, path, s.Journal, s.LogKey); err != nil {
		return next, nil, err
	}
	surviving, err := s.Journal.Checkpoint(ctx)
	if err != nil {
		return next, nil, err
	}
	_, otherLog := appliance.OpenCheckpoint(surviving, s.LogKey.Verifier)
	switch {
	case loss == nil:
		return next, nil, archive.ErrNothingLost
	case otherLog != nil:
		return next, nil, loss // such as one that goes on already
	}
	event, err := appliance.NewContinuation(s.LogKey, surviving, o.Published, o.Reason, o.By, o.Now)
	if err != nil {
		return next, nil, err
	}
	key, secret, err := s.LogKey.Continue(event)
	if err != nil {
		return next, nil, err
	}
	if err := s.Database.Continue(ctx, event, key, o.Progress); err != nil {
		return next, nil, err
	}
	// A kill from here on leaves what the next start does.
	if err := archive.ReplaceLogKey(c.DataDir, s.LogKey, secret); err != nil {
		return next, nil, err
	}
	next.Key = key
	if next.Head.Checkpoint, err = s.Journal.Checkpoint(ctx); err != nil {
		return next, nil, err
	}
	if next.Head.Tree, err = appliance.OpenCheckpoint(next.Head.Checkpoint, key.Verifier); err != nil {
		return next, nil, err
	}
	return next, loss, highwater.Write(path, next.Head.Checkpoint)
}
