package follower

import (
	"bytes"
	"context"
	"strings"
	"time"

	"github.com/attestd/attestd/appliance/index"
)

// VerifyOptions configure Verify.
type VerifyOptions struct {
	Index      index.Index
	Upstream   Upstream
	Sample     int                   // rows of each kind to compare, at random positions; zero means DefaultSample
	OnProgress func(done, total int) // counts requests; nil means no callback
}

// DefaultSample is how many rows of each kind Verify compares by default.
const DefaultSample = 1000

// Report is the result of Verify.
type Report struct {
	Rows map[string]Count `json:"rows"` // all rows, by kind
	// CountsAgree means that the index has no fewer rows than the upstream had at the beginning, counting quarantined
	// rows, and no more than the upstream has at the end.
	CountsAgree bool           `json:"countsAgree"`
	Compared    map[string]int `json:"compared"` // rows compared one by one, by kind
	// Behind counts differing rows that are expected to change: rows of unfinished packets, rows missing while the
	// backfill runs, rows that wait for a check against their chain, and the states of chains and clients.
	Behind      int           `json:"behind"`
	Differences []Difference  `json:"differences"` // at most MaxDifferences
	Differing   int           `json:"differing"`   // all differences
	Unverified  []Quarantined `json:"unverified"`  // at most MaxDifferences
	Doubtful    int           `json:"doubtful"`    // all quarantined rows
	Missing     []string      `json:"missingFields,omitempty"`
}

// MaxDifferences is how many differences and unverified rows a Report lists.
const MaxDifferences = 1000

// Difference is a row that differs between the index and the upstream.
type Difference struct {
	Kind   string   `json:"kind"`
	Key    string   `json:"key"`
	What   string   `json:"what"` // one of the constants below
	Fields []string `json:"fields,omitempty"`
}

// The values of Difference.What.
const (
	MissingHere     = "missing here"
	MissingUpstream = "missing upstream"
	Differs         = "differs"
)

// Quarantined is a quarantined row.
type Quarantined struct {
	Kind   string    `json:"kind"`
	Key    string    `json:"key"`
	Reason string    `json:"reason"`
	Since  time.Time `json:"since"`
}

// ListQuarantined returns the quarantined rows, by kind and key: at most limit of them, and how many there are in all.
//
// Errors: as Index.View.
func ListQuarantined(ctx context.Context, of index.Index, limit int) (listed []Quarantined, all int, err error) {
	listed = []Quarantined{}
	err = view(ctx, of, func(snap snapshot) error {
		return snap.Unverified(ctx, func(u index.Unverified) error {
			if all++; len(listed) < limit {
				listed = append(listed, quarantinedOf(u))
			}
			return nil
		})
	})
	return listed, all, err
}

func quarantinedOf(u index.Unverified) Quarantined {
	return Quarantined{Kind: u.Row.Type().Name, Key: u.Row.Key(), Reason: u.Reason, Since: u.Since}
}

// OK reports whether the counts agree, no row differs and no row is quarantined.
func (r Report) OK() bool { return r.CountsAgree && r.Differing == 0 && r.Doubtful == 0 }

// Verify compares an index with its upstream in both directions: the counts, the small tables whole, and pages of
// packets and transfers at random positions.
//
// Errors: as Upstream.Query and Index.View.
func Verify(ctx context.Context, o VerifyOptions) (Report, error) {
	if o.Sample <= 0 {
		o.Sample = DefaultSample
	}
	if o.OnProgress == nil {
		o.OnProgress = func(int, int) {}
	}
	v := &comparison{
		VerifyOptions: o, reader: newReader(o.Upstream),
		report: Report{Compared: make(map[string]int), Differences: []Difference{}, Unverified: []Quarantined{}},
	}
	if err := v.run(ctx); err != nil {
		return Report{}, err
	}
	return v.report, nil
}

// maxDoubted bounds the memory for the names of quarantined rows, in bytes. eachDoubted is the overhead of one name.
const (
	maxDoubted  = 32 << 20
	eachDoubted = 80
)

// verifyPage is how many rows are compared at each random position.
const verifyPage = 20

type comparison struct {
	VerifyOptions
	reader     *reader
	report     Report
	doubted    map[string]bool // kind and key of each quarantined row
	backfilled bool
	done       int
}

func (v *comparison) run(ctx context.Context) error {
	if err := v.reader.discover(ctx); err != nil {
		return err
	}
	v.report.Missing = v.reader.missing()
	_, before, err := v.reader.fetch(ctx)
	if err != nil {
		return err
	}
	if err := v.listQuarantined(ctx); err != nil {
		return err
	}
	for _, t := range index.TableTypes {
		if err := v.table(ctx, t); err != nil {
			return err
		}
		v.progress()
	}
	for _, t := range []*index.Type{index.PacketType, index.TransferType} {
		if err := v.pages(ctx, t); err != nil {
			return err
		}
	}
	return v.count(ctx, before)
}

func (v *comparison) places() int { return (v.Sample + verifyPage - 1) / verifyPage }

func (v *comparison) progress() {
	v.done++
	v.OnProgress(v.done, len(index.TableTypes)+2*v.places())
}

func rowName(row index.Row) string { return row.Type().Name + " " + row.Key() }

func (v *comparison) listQuarantined(ctx context.Context) error {
	v.doubted = make(map[string]bool)
	size := 0
	return view(ctx, v.Index, func(snap snapshot) error {
		done, _, err := snap.Position(ctx, positionBackfilled)
		if err != nil {
			return err
		}
		v.backfilled = done != ""
		return snap.Unverified(ctx, func(u index.Unverified) error {
			if waits(u) {
				v.report.Behind++
			} else {
				v.report.Doubtful++
			}
			if key := rowName(u.Row); size < maxDoubted { // rows beyond the limit are reported as differences
				v.doubted[key] = true
				size += len(key) + eachDoubted
			}
			if !waits(u) && len(v.report.Unverified) < MaxDifferences {
				v.report.Unverified = append(v.report.Unverified, quarantinedOf(u))
			}
			return nil
		})
	})
}

// count compares the counts. It tolerates rows that arrive during the comparison.
func (v *comparison) count(ctx context.Context, before counts) error {
	var here index.Status
	err := view(ctx, v.Index, func(snap snapshot) (err error) {
		here, err = snap.Status(ctx)
		return err
	})
	if err != nil {
		return err
	}
	_, after, err := v.reader.fetch(ctx)
	if err != nil {
		return err
	}
	packets, transfers := here.Rows[index.PacketType.Name], here.Rows[index.TransferType.Name]
	v.report.Rows = map[string]Count{
		index.PacketType.Name: {packets, after.packets}, index.TransferType.Name: {transfers, after.transfers},
	}
	v.report.CountsAgree = here.Held() >= before.packets+before.transfers &&
		packets <= after.packets && transfers <= after.transfers
	return nil
}

// table compares a small table whole.
func (v *comparison) table(ctx context.Context, t *index.Type) error {
	upstream, _, err := v.reader.table(ctx, t)
	if err != nil {
		return err
	}
	here := make(map[string]index.Row)
	err = view(ctx, v.Index, func(snap snapshot) error {
		return snap.Each(ctx, t, func(row index.Row) error {
			here[row.Key()] = row.Clone()
			return nil
		})
	})
	if err != nil {
		return err
	}
	for _, row := range upstream {
		v.compare(row, here[row.Key()], false)
		delete(here, row.Key())
	}
	for key := range here {
		v.differ(Difference{Kind: t.Name, Key: key, What: MissingUpstream})
	}
	return nil
}

// pages compares the newest page of a kind, and the pages after randomly chosen rows.
func (v *comparison) pages(ctx context.Context, t *index.Type) error {
	cursors := []string{""}
	err := view(ctx, v.Index, func(snap snapshot) error {
		rows, err := snap.Sample(ctx, t, v.places()-1)
		for _, row := range rows {
			cursors = append(cursors, row.SortOrder())
		}
		return err
	})
	if err != nil {
		return err
	}
	for _, cursor := range cursors {
		if err := v.page(ctx, t, cursor); err != nil {
			return err
		}
		v.progress()
	}
	return nil
}

func (v *comparison) page(ctx context.Context, t *index.Type, cursor string) error {
	answers, _, err := v.reader.fetch(ctx, part{t: t, cursor: cursor, direction: index.Older, limit: verifyPage})
	if err != nil {
		return err
	}
	listed := make(map[string]bool)
	var extra []index.Row
	err = view(ctx, v.Index, func(snap snapshot) error {
		for _, row := range answers[0].rows {
			listed[row.Key()] = true
			here, err := sameIn(ctx, snap, row)
			if err != nil {
				return err
			}
			moving, err := v.moving(ctx, snap, here)
			if err != nil {
				return err
			}
			v.compare(row, here, moving)
		}
		extra, err = v.unlisted(ctx, snap, t, cursor, listed)
		return err
	})
	if err != nil || len(answers[0].rows) == 0 {
		return err
	}
	return v.confirm(ctx, extra)
}

// unlisted returns the rows on the index's page that the upstream's page lacks.
func (v *comparison) unlisted(ctx context.Context, snap snapshot, t *index.Type, cursor string,
	listed map[string]bool) (extra []index.Row, err error) {
	page := index.Page{Limit: new(int32(verifyPage)), Cursor: cursor}
	var rows []index.Row
	if t == index.PacketType {
		rows, err = snap.Packets(ctx, index.PacketQuery{Page: page})
	} else {
		rows, err = snap.Transfers(ctx, index.TransferQuery{Page: page})
	}
	for _, row := range rows {
		if !listed[row.Key()] {
			extra = append(extra, row.Clone())
		}
	}
	return extra, err
}

// confirm asks by hash for rows that an upstream page lacks, because they may lie past its end.
func (v *comparison) confirm(ctx context.Context, rows []index.Row) error {
	for len(rows) > 0 {
		n := min(len(rows), maxParts)
		parts := make([]part, n)
		for i, row := range rows[:n] {
			parts[i] = part{t: row.Type(), hash: packetHashOf(row), limit: index.MaxLimit}
		}
		answers, _, err := v.reader.fetch(ctx, parts...)
		if err != nil {
			return err
		}
		for i, row := range rows[:n] {
			if !contains(answers[i].rows, row.Key()) {
				v.differ(Difference{Kind: row.Type().Name, Key: row.Key(), What: MissingUpstream})
			}
		}
		rows = rows[n:]
	}
	return nil
}

func contains(rows []index.Row, key string) bool {
	for _, row := range rows {
		if row.Key() == key {
			return true
		}
	}
	return false
}

// moving reports whether a difference in this row is expected: its packet is unfinished, or the row is missing and the
// backfill is still running.
func (v *comparison) moving(ctx context.Context, snap snapshot, here index.Row) (bool, error) {
	if here.IsZero() {
		return !v.backfilled, nil
	}
	packet := here
	if here.Type() == index.TransferType {
		var err error
		if packet, err = packetOf(ctx, snap, hashOf(here)); err != nil || packet.IsZero() {
			return false, err
		}
	}
	return unfinished(packet), nil
}

// compare compares a row of the upstream with the index's row. If moving is set, a difference counts as Behind.
func (v *comparison) compare(upstream, here index.Row, moving bool) {
	t := upstream.Type()
	v.report.Compared[t.Name]++
	if v.doubted[rowName(upstream)] {
		return // listed as unverified
	}
	d := Difference{Kind: t.Name, Key: upstream.Key(), What: MissingHere}
	if !here.IsZero() {
		d.What, d.Fields = Differs, differingFields(upstream, here)
		if len(d.Fields) == 0 {
			return
		}
	}
	stateOnly := len(d.Fields) == 1 && d.Fields[0] == "status" && (t == index.ChainType || t == index.ClientType)
	if moving || stateOnly {
		v.report.Behind++
		return
	}
	v.differ(d)
}

func (v *comparison) differ(d Difference) {
	v.report.Differing++
	if len(v.report.Differences) < MaxDifferences {
		v.report.Differences = append(v.report.Differences, d)
	}
}

// differingFields names the fields that differ. It accepts two deviations: a shared sort_order is stored with the key
// appended, and a transfer without a status takes its packet's.
func differingFields(upstream, here index.Row) (names []string) {
	for _, field := range here.Type().Fields {
		a, b := upstream.AppendJSON(nil, field.Number), here.AppendJSON(nil, field.Number)
		switch {
		case bytes.Equal(a, b):
		case field.Name == "sort_order" && strings.HasPrefix(here.SortOrder(), upstream.SortOrder()+"~"):
		case field.Name == "status" && here.Type() == index.TransferType && upstream.IsNull(field.Number):
		default:
			names = append(names, field.Name)
		}
	}
	return names
}
