package appliance

import "context"

// Found is what Search found.
type Found struct {
	Entries []Entry // newest first
	Before  int64   // only indexes from this on were looked at: JournalQuery.Before to go on; zero when all were
}

// Search returns the attestations of a beneficiary that a query selects. No store leads from beneficiaries to records, so each that
// the query selects otherwise is read, with list: at most as many as most, or all where that is zero.
func Search(ctx context.Context, list func(context.Context, JournalQuery) ([]Entry, error), q JournalQuery, beneficiary Address, most int) (f Found, err error) {
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
