package console

import (
	"cmp"
	"context"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/journal"
)

// search is a search of the journal, as entered and as parsed.
type search struct {
	Q           string // an attestation's id, an API key's id or name, an address or a hash
	From, Until string // times, UTC
	Oldest      bool   // the oldest attestations come first; query.Before is then the first index to read
	Wrong       string // error text for the user

	query   journal.Query
	id      uuid.UUID
	address *appliance.Address // of the unspendable address or the beneficiary; nil for any
}

// isEmpty reports whether the search has no criteria. The newest attestations are then listed.
func (s search) isEmpty() bool {
	return s.Q == "" && s.From == "" && s.Until == "" && s.query.Before == 0 && !s.Oldest
}

// readSearch reads a form. keys are the names of API keys by id. Only users who may see addresses may search by address
// or by hash. Anyone can compute the hash of two addresses, so the answer would reveal whether they were attested.
func readSearch(form url.Values, keys map[string]string, addresses bool) (s search) {
	s = search{
		Q: strings.TrimSpace(form.Get("q")), From: form.Get("from"), Until: form.Get("until"),
		Oldest: form.Get("sort") == sortOldest,
		query:  journal.Query{AttestationsOnly: true, Limit: listedAttestations},
	}
	for _, t := range []struct {
		text string
		into *time.Time
	}{{s.From, &s.query.From}, {s.Until, &s.query.Until}} {
		if t.text == "" {
			continue
		}
		var ok bool
		if *t.into, ok = readTime(t.text); !ok {
			s.Wrong = t.text + " is not a time such as 2026-01-31T09:00."
		}
	}
	if !s.query.From.IsZero() && !s.query.Until.IsZero() && !s.query.From.Before(s.query.Until) {
		s.Wrong = "From must be before Until."
	}
	if text := form.Get(s.cursor()); text != "" {
		before, err := strconv.ParseInt(text, 10, 64)
		if err != nil || before < 0 {
			s.Wrong = text + " is not an index."
		}
		s.query.Before = before
	}
	if s.Q != "" {
		s.readQ(keys, addresses)
	}
	return s
}

const sortOldest = "oldest"

// cursor returns the name of the URL's parameter that continues the search.
func (s search) cursor() string {
	if s.Oldest {
		return "start"
	}
	return "before"
}

// readTime parses a time as browsers send it, and as the command accepts it. Without a zone it is UTC.
func readTime(s string) (time.Time, bool) {
	for _, layout := range []string{"2006-01-02T15:04", "2006-01-02T15:04:05", time.RFC3339, time.DateOnly} {
		if t, err := time.Parse(layout, s); err == nil {
			return t, true
		}
	}
	return time.Time{}, false
}

const (
	addressLen = 2 + 40
	hashLen    = 2 + 64
)

func (s *search) readQ(keys map[string]string, addresses bool) {
	if id, err := uuid.Parse(s.Q); err == nil {
		s.id = id
		return
	}
	if s.readKey(keys) {
		return
	}
	switch isHash := len(s.Q) == hashLen; {
	case (isHash || len(s.Q) == addressLen) && !addresses:
		s.Wrong = "The viewer role does not allow a search by address or hash, because the result would reveal " +
			"attestations."
	case isHash:
		s.query.Hash = new(appliance.Digest)
		if err := s.query.Hash.UnmarshalText([]byte(s.Q)); err != nil {
			s.Wrong = "A hash must be 0x and 64 hex digits."
		}
	case len(s.Q) == addressLen:
		s.readAddress()
	default:
		s.Wrong = "Enter an attestation id, an API key id or name, an address or a hash."
	}
}

// readKey reports whether an API key has the id or name Q.
func (s *search) readKey(keys map[string]string) bool {
	for id, name := range keys {
		switch {
		case s.Q == id:
			s.query.KeyID, s.Wrong = id, ""
			return true
		case s.Q == name && s.query.KeyID != "":
			s.Wrong = "Several API keys have this name: search by id."
		case s.Q == name:
			s.query.KeyID = id
		}
	}
	return s.query.KeyID != ""
}

func (s *search) readAddress() {
	address, err := appliance.ParseAddress(s.Q)
	if err != nil {
		s.Wrong = "The address " + err.Error() + "."
		return
	}
	s.address = &address
}

// find returns the attestations that match the search.
func (s search) find(ctx context.Context, v *visit) (journal.Found, error) {
	switch {
	case s.Oldest:
		return s.findOldest(ctx, v)
	case s.address == nil:
		return s.list(ctx, v)
	}
	received, err := journal.Search(ctx, v.Admin.Records, s.query, *s.address, searchedAttestations)
	if err != nil {
		return received, err
	}
	s.query.Unspendable = s.address
	sent, err := s.list(ctx, v)
	return join(sent, received, s.query.Size()), err
}

// findOldest returns the oldest attestations that match the search. The journal lists the newest first, so findOldest
// reads it in parts, of at most searchedAttestations records in all. Before is where the next search continues.
func (s search) findOldest(ctx context.Context, v *visit) (found journal.Found, err error) {
	begin, end, err := s.indexes(ctx, v)
	if err != nil {
		return found, err
	}
	last := min(end, begin+searchedAttestations)
	for at := begin; at < last; at += journal.MaxListed {
		q := s.query
		q.Before, q.Limit = min(last, at+journal.MaxListed), journal.MaxListed
		entries, err := v.Admin.Records(ctx, q)
		if err != nil {
			return found, err
		}
		for _, e := range slices.Backward(entries) {
			matches := s.address == nil || e.Record.UnspendableAddress == *s.address || e.Record.Beneficiary == *s.address
			if e.Index < at || !matches {
				continue
			}
			if len(found.Entries) == s.query.Size() {
				found.Before = e.Index
				return found, nil
			}
			found.Entries = append(found.Entries, e)
		}
	}
	if last < end {
		found.Before = last
	}
	return found, nil
}

// indexes returns the range of indexes that the search covers. end is exclusive.
func (s search) indexes(ctx context.Context, v *visit) (begin, end int64, err error) {
	after := func(t time.Time) (int64, error) { // the index after the newest entry before t
		newest, err := v.Admin.Records(ctx, journal.Query{Until: t, Limit: 1})
		if err != nil || len(newest) == 0 {
			return 0, err
		}
		return newest[0].Index + 1, nil
	}
	if begin = s.query.Before; begin == 0 && !s.query.From.IsZero() {
		if begin, err = after(s.query.From); err != nil {
			return 0, 0, err
		}
	}
	end, err = after(s.query.Until)
	return begin, end, err
}

// list returns the attestations that an index finds.
func (s search) list(ctx context.Context, v *visit) (journal.Found, error) {
	entries, err := v.Admin.Records(ctx, s.query)
	found := journal.Found{Entries: entries}
	if len(entries) == s.query.Size() {
		found.Before = entries[len(entries)-1].Index
	}
	return found, err
}

// join returns the newest entries of two searches, each once. It leaves out the entries that only one search has come
// to; the next search finds them.
func join(a, b journal.Found, most int) journal.Found {
	all := journal.Found{Before: max(a.Before, b.Before)}
	for _, e := range slices.Concat(a.Entries, b.Entries) {
		if e.Index >= all.Before {
			all.Entries = append(all.Entries, e)
		}
	}
	slices.SortFunc(all.Entries, func(x, y journal.Entry) int { return cmp.Compare(y.Index, x.Index) })
	all.Entries = slices.CompactFunc(all.Entries, func(x, y journal.Entry) bool { return x.Index == y.Index })
	if len(all.Entries) > most {
		all.Entries = all.Entries[:most]
		all.Before = all.Entries[most-1].Index
	}
	return all
}
