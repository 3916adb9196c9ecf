package journal_test

import (
	"context"
	"errors"
	"testing"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/journal"
)

// listed lists a journal of size records. Every seventh is of the wanted beneficiary.
func listed(size int64, asked *int) func(context.Context, journal.Query) ([]journal.Entry, error) {
	return func(_ context.Context, q journal.Query) (page []journal.Entry, err error) {
		*asked++
		end := size
		if q.Before > 0 {
			end = min(size, q.Before)
		}
		for i := end - 1; i >= 0 && len(page) < q.Size(); i-- {
			e := journal.Entry{Index: i}
			if i%7 == 0 {
				e.Record.Beneficiary = appliance.Address{1}
			}
			page = append(page, e)
		}
		return page, nil
	}
}

func TestASearchReadsNoMoreThanItMay(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		size          int64
		limit, most   int
		before        int64
		found, asked  int
		first, goesOn int64
	}{
		"all":                     {size: 2500, limit: 1000, found: 358, asked: 3, first: 2499},
		"of nothing":              {size: 0, limit: 10, asked: 1},
		"the first page of found": {size: 2500, limit: 2, found: 2, asked: 1, first: 2499, goesOn: 2492},
		"the second page":         {size: 2500, limit: 2, before: 2492, found: 2, asked: 1, first: 2485, goesOn: 2478},
		"as much as it may": {size: 9000, limit: 1000, most: 2000, found: 286, asked: 2, first: 8995,
			goesOn: 7000},
		"a journal of whole pages": {size: 2000, limit: 1000, found: 286, asked: 2, first: 1995},
	} {
		asked := 0
		q := journal.Query{Limit: c.limit, Before: c.before}
		got, err := journal.Search(t.Context(), listed(c.size, &asked), q, appliance.Address{1}, c.most)
		if err != nil || len(got.Entries) != c.found || got.Before != c.goesOn || asked != c.asked {
			t.Errorf("%s: %d found, goes on before %d, asked %d times; %v", name, len(got.Entries), got.Before, asked,
				err)
		}
		if c.found > 0 && got.Entries[0].Index != c.first {
			t.Errorf("%s: the first is %d", name, got.Entries[0].Index)
		}
	}
	broken := errors.New("the disk is gone")
	_, err := journal.Search(t.Context(), func(context.Context, journal.Query) ([]journal.Entry, error) {
		return nil, broken
	},
		journal.Query{}, appliance.Address{1}, 0)
	if !errors.Is(err, broken) {
		t.Error(err)
	}
}
