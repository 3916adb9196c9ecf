package journal

import (
	"context"
	"github.com/attestd/attestd/appliance"
)

// Found is the result of Search.
type Found struct {
	Entries []Entry // newest first
	Before  int64   // lowest index that was read: the Query.Before of the next search; zero when all were read
}

// Search returns the attestations of a beneficiary that match a query. No store has an index of beneficiaries, so
// Search reads the entries that match otherwise, with list. It reads about most entries at most, in pages of MaxListed.
// Zero means no limit.
func Search(ctx context.Context, list func(context.Context, Query) ([]Entry, error), q Query,
	beneficiary appliance.Address, most int) (f Found, err error) {
	want := q.Size()
	q.Limit, q.AttestationsOnly = MaxListed, true
	for read := 0; most <= 0 || read < most; read += MaxListed {
		page, err := list(ctx, q)
		if err != nil {
			return f, err
		}
		for _, e := range page {
			f.Before = e.Index
			if e.Record.Beneficiary != beneficiary {
				continue
			}
			if f.Entries = append(f.Entries, e); len(f.Entries) == want {
				return f, nil
			}
		}
		if len(page) < MaxListed || f.Before == 0 {
			f.Before = 0
			break
		}
		q.Before = f.Before
	}
	return f, nil
}
