package daemon

import (
	"context"
	"errors"
	"path/filepath"

	"github.com/attestd/attestd/appliance/archive"
	"github.com/attestd/attestd/appliance/config"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/appliance/service"
	"github.com/attestd/attestd/store/highwater"
)

// AcceptLoss continues the journal as another log if the journal contradicts the high-water mark. Otherwise it returns
// archive.ErrNothingLost. This appliance's daemon must not be running. Other members of the database follow
// automatically.
func AcceptLoss(ctx context.Context, c *config.Config,
	o archive.ContinueOptions) (next archive.Continued, loss *highwater.Loss, err error) {
	log, err := OpenLogHSM(c, nil, nil)
	if err != nil {
		return next, nil, err
	}
	defer func() { err = errors.Join(err, log.Close()) }()
	o.HSM = log.Signer()
	if c.Store.URL == "" {
		return archive.AcceptLoss(ctx, c.DataDir, o)
	}
	owner, err := service.UserOf(c.DataDir)
	if err != nil {
		return next, nil, err
	}
	err = owner.Do(func() error {
		next, loss, err = acceptDatabaseLoss(ctx, c, o, log)
		return err
	})
	return next, loss, err
}

func acceptDatabaseLoss(ctx context.Context, c *config.Config, o archive.ContinueOptions,
	log *LogHSM) (next archive.Continued, loss *highwater.Loss, err error) {
	s, err := readDatabase(c, log)
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
	_, otherLog := journal.OpenCheckpoint(surviving, s.LogKey.Verifier)
	switch {
	case loss == nil:
		return next, nil, archive.ErrNothingLost
	case otherLog != nil:
		return next, nil, loss // for example, it was continued already
	}
	next, err = continueDatabase(ctx, c, s, surviving, o)
	return next, loss, err
}

// continueDatabase continues the journal in a database as another log. surviving is its newest checkpoint.
func continueDatabase(ctx context.Context, c *config.Config, s *Store, surviving []byte,
	o archive.ContinueOptions) (next archive.Continued, err error) {
	event, key, secret, err := o.Successor(s.LogKey, surviving)
	if err != nil {
		return next, err
	}
	if o.NewKey { // which could not be derived again
		if err := archive.KeepNextKey(c.DataDir, secret); err != nil {
			return next, err
		}
	}
	if err := s.Database.Continue(ctx, event, key, o.Progress); err != nil {
		return next, err
	}
	// After a kill from here on, the next start replaces the log key.
	if err := archive.ReplaceLogKey(c.DataDir, s.LogKey, secret); err != nil {
		return next, err
	}
	next.Key = key
	if next.Head.Checkpoint, err = s.Journal.Checkpoint(ctx); err != nil {
		return next, err
	}
	if next.Head.Tree, err = journal.OpenCheckpoint(next.Head.Checkpoint, key.Verifier); err != nil {
		return next, err
	}
	return next, highwater.Write(filepath.Join(c.DataDir, highwater.FileName), next.Head.Checkpoint)
}

// RotateLogKey continues the journal as another log with a new log key. This appliance's daemon must not be running. An
// operator must bring the key to the other members of the database.
func RotateLogKey(ctx context.Context, c *config.Config,
	o archive.ContinueOptions) (next archive.Continued, err error) {
	log, err := OpenLogHSM(c, nil, nil)
	if err != nil {
		return next, err
	}
	defer func() { err = errors.Join(err, log.Close()) }()
	o.HSM = log.Signer()
	if c.Store.URL == "" {
		return archive.RotateLogKey(ctx, c.DataDir, o)
	}
	owner, err := service.UserOf(c.DataDir)
	if err != nil {
		return next, err
	}
	err = owner.Do(func() error {
		next, err = rotateDatabaseKey(ctx, c, o, log)
		return err
	})
	return next, err
}

func rotateDatabaseKey(ctx context.Context, c *config.Config, o archive.ContinueOptions,
	log *LogHSM) (next archive.Continued, err error) {
	s, err := readDatabase(c, log)
	if err != nil {
		return next, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	if err := o.CheckRotation(s.LogKey); err != nil {
		return next, err
	}
	if o.Published, err = archive.PublishedMark(filepath.Join(c.DataDir, highwater.FileName), s.LogKey); err != nil {
		return next, err
	}
	surviving, err := s.Journal.Checkpoint(ctx)
	if err == nil {
		_, err = journal.OpenCheckpoint(surviving, s.LogKey.Verifier)
	}
	if err != nil {
		return next, err
	}
	o.NewKey = true
	return continueDatabase(ctx, c, s, surviving, o)
}
