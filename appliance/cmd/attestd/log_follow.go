package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/attestd/attestd/appliance/journal"
)

// followListing is the body of 'log list --follow'.
func (a *app) followListing(cmd *cobra.Command, q journal.Query, redemptions bool) error {
	if redemptions || !q.Until.IsZero() || q.Before != 0 {
		return usagef(cmd,
			"--follow shows new records: it cannot be combined with --until, --before, --redeemed or --unredeemed")
	}
	return a.withBackend(cmd, func(o backend) error { return a.followList(cmd.Context(), o, q) })
}

// followList prints the newest matching entries, oldest first, and then new ones as they arrive.
func (a *app) followList(ctx context.Context, o backend, q journal.Query) error {
	tail, err := a.newTail(ctx, o)
	if err != nil {
		return err
	}
	newest, err := o.Records(ctx, journal.Query{Limit: 1})
	if err != nil {
		return err
	}
	next := int64(0)
	if len(newest) > 0 {
		next = newest[0].Index + 1
		q.Before = next
		entries, err := o.Records(ctx, q)
		if err != nil {
			return err
		}
		for _, e := range slices.Backward(entries) {
			if err := a.printEntry(e, q.EventsOnly); err != nil {
				return err
			}
		}
	}
	err = tail.follow(ctx, func() error {
		return o.Entries(ctx, next, func(leaf []byte) error {
			e, err := journal.DecodeEntry(next, leaf)
			if err != nil {
				return unwritten{fmt.Errorf("record %d: %w", next, err)}
			}
			next++
			if !q.Wants(e) {
				return nil
			}
			if err := a.printEntry(e, q.EventsOnly); err != nil {
				return unwritten{err}
			}
			return nil
		})
	})
	if ctx.Err() != nil {
		return interruptedError{errors.New("interrupted")}
	}
	return err
}

// printEntry writes an entry on one line.
func (a *app) printEntry(e journal.Entry, events bool) error {
	if a.json() {
		return json.NewEncoder(a.out).Encode(e)
	}
	rows := fit(a.page(), [][]string{strings.Split(entryHeader(events), "\t"), entryRow(e, events)}, []string{"ID"})
	_, err := fmt.Fprintln(a.out, strings.Join(rows[1], "  "))
	return err
}
