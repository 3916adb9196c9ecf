package console

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/attestd/attestd/appliance/journal"
)

// activityPage lists the events of the journal: refusals, pauses, changes of keys, reloads, outages and alarms.
func activityPage() page {
	return page{name: "activity", path: "/activity", title: "Activity", least: Viewer, routes: []route{
		{"GET /activity", Viewer, showActivity},
		{"GET /activity.csv", Viewer, downloadActivity},
		{"GET /activity/tail", Viewer, followActivity},
	}}
}

const (
	listedEvents = 50 // per page
	// searchedEvents bounds the events that are read for one page of a search.
	searchedEvents = 20_000
)

// activityView is a page of events.
type activityView struct {
	Filter eventFilter
	Kinds  []journal.EventKind
	Rows   []eventRow
	Newest int64  // highest listed index; -1 for none
	Live   bool   // new events are added live
	Older  string // URL of older events; empty if none remain
	Read   bool   // Older continues a search that has not read all events
}

// eventRow is an event in a list.
type eventRow struct {
	journal.Entry
	Title   string // the kind in words
	Details []string
}

// eventFilter selects events, as entered and as parsed.
type eventFilter struct {
	Kind, Q, From, Until string
	Wrong                string // error text for the user

	query journal.Query
	words []string // an event must contain one of them; empty for all events
}

// readEventFilter reads a form. keys are the names of API keys by id.
func readEventFilter(form url.Values, keys map[string]string) eventFilter {
	s := readSearch(url.Values{"from": form["from"], "until": form["until"], "before": form["before"]}, nil, false)
	f := eventFilter{Kind: form.Get("kind"), Q: strings.TrimSpace(form.Get("q")), From: s.From, Until: s.Until,
		Wrong: s.Wrong, query: s.query}
	f.query.AttestationsOnly, f.query.EventsOnly, f.query.Limit = false, true, journal.MaxListed
	if f.Q == "" {
		return f
	}
	f.words = []string{strings.ToLower(f.Q)}
	for id, name := range keys { // a refusal has the key's id only
		if strings.EqualFold(name, f.Q) {
			f.words = append(f.words, id)
		}
	}
	return f
}

func (f eventFilter) isEmpty() bool {
	return f.Kind == "" && f.Q == "" && f.From == "" && f.Until == "" && f.query.Before == 0
}

// wants reports whether an event matches the kind and the words.
func (f eventFilter) wants(e *journal.Event) bool {
	if f.Kind != "" && string(e.Kind) != f.Kind {
		return false
	}
	if len(f.words) == 0 {
		return true
	}
	text := strings.ToLower(strings.Join(append(slices.Collect(maps.Values(e.Details)), e.By), "\n"))
	return slices.ContainsFunc(f.words, func(word string) bool { return strings.Contains(text, word) })
}

// find returns up to want events that match, below an index. It reads about searchedEvents events at most.
func (f eventFilter) find(ctx context.Context, v *visit, before int64, want int) (found journal.Found, err error) {
	q := f.query
	q.Before = before
	for read := 0; read < searchedEvents; read += q.Limit {
		page, err := v.Admin.Records(ctx, q)
		if err != nil {
			return found, err
		}
		for _, e := range page {
			found.Before = e.Index
			if e.Event == nil || !f.wants(e.Event) {
				continue
			}
			if found.Entries = append(found.Entries, e); len(found.Entries) == want {
				return found, nil
			}
		}
		if len(page) < q.Limit {
			found.Before = 0
			break
		}
		q.Before = found.Before
	}
	return found, nil
}

// at returns the URL of a path with this filter, for the events below an index.
func (f eventFilter) at(path string, before int64) string {
	q := url.Values{}
	for name, value := range map[string]string{"kind": f.Kind, "q": f.Q, "from": f.From, "until": f.Until} {
		if value != "" {
			q.Set(name, value)
		}
	}
	if before > 0 {
		q.Set("before", strconv.FormatInt(before, 10))
	}
	return path + "?" + q.Encode()
}

// CSV returns the URL of the filtered events as a file.
func (f eventFilter) CSV() string { return f.at("/activity.csv", 0) }

func showActivity(w http.ResponseWriter, v *visit) error {
	keys, err := keyNames(v)
	if err != nil {
		return err
	}
	data := activityView{Filter: readEventFilter(v.URL.Query(), keys), Kinds: eventKinds(), Newest: -1}
	if data.Filter.Wrong != "" {
		return v.show(w, data)
	}
	found, err := data.Filter.find(v.Context(), v, data.Filter.query.Before, listedEvents)
	if err != nil {
		return err
	}
	data.Rows, data.Live = eventRows(found.Entries, keys), data.Filter.isEmpty()
	if len(found.Entries) > 0 {
		data.Newest = found.Entries[0].Index
	}
	if found.Before > 0 {
		data.Older, data.Read = data.Filter.at("/activity", found.Before), len(found.Entries) < listedEvents
	}
	return v.show(w, data)
}

func followActivity(w http.ResponseWriter, v *visit) error {
	keys, err := keyNames(v)
	if err != nil {
		return err
	}
	return v.followEntries(w, journal.Query{EventsOnly: true, Limit: listedEvents},
		func(entries []journal.Entry) any { return eventRows(entries, keys) })
}

// proving are details that only the page of an event's proof shows.
var proving = []string{"secretHash", "authenticatorData", "clientData", "credential", "publicKey", "signature"}

// eventRows describes events, with the names of the API keys that they concern.
func eventRows(entries []journal.Entry, keys map[string]string) (rows []eventRow) {
	for _, e := range entries {
		if e.Event == nil {
			continue
		}
		row := eventRow{Entry: e, Title: eventTitle(e.Event.Kind)}
		for _, name := range slices.Sorted(maps.Keys(e.Event.Details)) {
			if slices.Contains(proving, name) {
				continue
			}
			value := e.Event.Details[name]
			if known := keys[value]; known != "" && name == "keyId" {
				value = known + " (" + value + ")"
			}
			row.Details = append(row.Details, name+": "+value)
		}
		rows = append(rows, row)
	}
	return rows
}

// eventTitle returns a kind in words: "Key created".
func eventTitle(kind journal.EventKind) string {
	words := strings.ReplaceAll(string(kind), "_", " ")
	return strings.ToUpper(words[:1]) + strings.ReplaceAll(words[1:], "hsm", "HSM")
}

// ruleOf describes the rule of the policy that refused a request. It returns "" for other events.
func ruleOf(e *journal.Event) string {
	if e.Kind != journal.EventRefused {
		return ""
	}
	return map[string]string{
		"screened":                  "the screening list has one of the addresses",
		"policy_deny":               "deny: the address is on the deny list of its side",
		"policy_allow":              "allow: the address is not on the allow list of its side",
		"policy_key":                "keys: the beneficiary is not on the list of the API key",
		"policy_hours":              "hours: the time is outside of all hours",
		"policy_cap":                "caps: the API key has reached its number of attestations",
		"policy_second_beneficiary": "second_beneficiary: the first attestation of the address is for another beneficiary",
	}[e.Details["code"]]
}

// downloadActivity answers with the events that match the filter.
func downloadActivity(w http.ResponseWriter, v *visit) error {
	keys, err := keyNames(v)
	if err != nil {
		return err
	}
	f := readEventFilter(v.URL.Query(), keys)
	if f.Wrong != "" {
		return badRequest(f.Wrong)
	}
	file := newCSV(w, v, "activity", "index", "time", "id", "event", "by", "details")
	find := func(ctx context.Context, before int64) (journal.Found, error) {
		return f.find(ctx, v, before, journal.MaxListed)
	}
	return file.end(allPages(v.Context(), f.query.Before, find, func(e journal.Entry) {
		row := eventRows([]journal.Entry{e}, keys)[0]
		file.add(fmt.Sprint(e.Index), e.Event.Time.UTC().Format(time.RFC3339Nano), e.Event.ID.String(),
			string(e.Event.Kind), e.Event.By, strings.Join(row.Details, "; "))
	}))
}

// eventKinds are the kinds of events that the page can filter by; docs/journal.md lists the same.
func eventKinds() []journal.EventKind {
	return []journal.EventKind{"refused", "paused", "resumed", "halted", "key_created", "key_revoked", "key_bound",
		"hsm_lost", "hsm_found", "config_reloaded", "policy_loaded", "started", "stopped", "signer_added",
		"signer_changed", "signer_removed", "redeemed", "unknown_redemption", "unproven_redemption", "chain_disagreement",
		"attestor_mismatch", "witness_contradiction", "second_beneficiary", "webhook_created", "webhook_rotated",
		"webhook_deleted", "webhook_resumed", "webhook_disabled", "approval_requested", "approval_given",
		"approval_denied", "approval_expired", "approver_enrolled", "approver_removed", "quorum_invalid_answer",
		"backup", "report", "restored", "log_continued"}
}
