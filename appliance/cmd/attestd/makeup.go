package main

import (
	"context"
	"errors"
	"time"

	"github.com/attestd/attestd/appliance/index"
	"github.com/attestd/attestd/appliance/index/dataset"
)

// makeUp fills a replica with generated data as of now. It stores its start time in the replica under name, so that a
// repeated call continues with the same data after an interruption.
func (a *app) makeUp(ctx context.Context, to dataset.Target, name string,
	o dataset.GenerateOptions) (written index.Written, err error) {
	if o.Now, err = begunAt(ctx, to, name); err != nil {
		return written, err
	}
	update, end := a.progress("make", unitTransfers)
	err = dataset.Generate(ctx, o, countTransfers(o.Transfers, update, func(rows []index.Row) error {
		w, err := to.Write(ctx, index.Batch{Rows: rows})
		written.Add(w)
		return errors.Join(err, ctx.Err())
	}))
	end()
	return written, err
}

// begunAt returns the stored start time of unfinished data. If none is stored, it stores the present time.
func begunAt(ctx context.Context, to dataset.Target, name string) (time.Time, error) {
	noted, found, err := to.Position(ctx, name)
	if err != nil {
		return time.Time{}, err
	}
	if began, err := time.Parse(time.RFC3339Nano, noted); found && err == nil {
		return began, nil
	}
	now := time.Now().UTC()
	return now, setPosition(ctx, to, name, now.Format(time.RFC3339Nano))
}

// setPosition sets a position. An empty text removes it.
func setPosition(ctx context.Context, to dataset.Target, name, text string) error {
	_, err := to.Write(ctx, index.Batch{Positions: map[string]string{name: text}})
	return err
}

// countTransfers wraps sink, and calls update with the number of transfers that sink has taken.
func countTransfers(all int, update func(done, total int64), sink func([]index.Row) error) func([]index.Row) error {
	made := int64(0)
	return func(rows []index.Row) error {
		if err := sink(rows); err != nil {
			return err
		}
		for _, r := range rows {
			if r.Type() == index.TransferType {
				made++
			}
		}
		update(made, max(int64(all), made))
		return nil
	}
}
