package console_test

import (
	"encoding/csv"
	"fmt"
	"html"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/attestd/attestd/appliance"
)

func TestEventsAreFoundByKindKeyAndTime(t *testing.T) {
	t.Parallel()
	r := start(t)
	name, other := newName("audited"), newName("unrelated")
	key, _, err := r.admin.CreateKey(t.Context(), appliance.KeyRequest{Name: name})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := r.admin.CreateKey(t.Context(), appliance.KeyRequest{Name: other}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.admin.RevokeKey(t.Context(), key.ID); err != nil {
		t.Fatal(err)
	}
	b := r.signedIn(t, "viewer")
	hour := func(d time.Duration) string { return time.Now().Add(d).UTC().Format("2006-01-02T15:04") }
	for what, c := range map[string]struct {
		q    url.Values
		want []string // titles of the events
	}{
		"the key's name":    {url.Values{"q": {name}}, []string{"Key created", "Key revoked"}},
		"the key's id":      {url.Values{"q": {key.ID}}, []string{"Key created", "Key revoked"}},
		"a kind":            {url.Values{"q": {name}, "kind": {"key_revoked"}}, []string{"Key revoked"}},
		"a time":            {url.Values{"q": {name}, "from": {hour(-time.Hour)}, "until": {hour(time.Hour)}}, []string{"Key created", "Key revoked"}},
		"a time before":     {url.Values{"q": {name}, "until": {hour(-time.Hour)}}, nil},
		"text of no event":  {url.Values{"q": {"nowhere " + name}}, nil},
		"a kind of another": {url.Values{"q": {name}, "kind": {"paused"}}, nil},
	} {
		status, _, page := b.get("/activity?" + c.q.Encode())
		_, rows, _ := strings.Cut(page, `<tbody id="rows">`)
		var found []string
		for _, title := range regexp.MustCompile(`<a href="/attestations/[0-9a-f-]{36}">([^<]+)</a>`).
			FindAllStringSubmatch(rows, -1) {
			found = append(found, title[1])
		}
		slices.Sort(found)
		if status != http.StatusOK || !slices.Equal(found, c.want) || strings.Contains(rows, other) {
			t.Errorf("by %s: %d %q, want %q", what, status, found, c.want)
		}
		status, header, text := b.get("/activity.csv?" + c.q.Encode())
		table, err := csv.NewReader(strings.NewReader(text)).ReadAll()
		if status != http.StatusOK || err != nil || len(table) != 1+len(c.want) ||
			!strings.HasPrefix(header.Get("Content-Disposition"), "attachment") {
			t.Errorf("CSV by %s: %d %q %v", what, status, text, err)
		}
	}
	if _, _, page := b.get("/activity?from=2026-01-02T00:00&until=2026-01-01T00:00"); !strings.Contains(page,
		"From must be before Until.") {
		t.Error("a range that ends before it begins is not refused")
	}
}

// The page can filter by each kind of event that docs/journal.md lists.
func TestTheActivityPageKnowsEachKindOfEvent(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/journal.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(text), "\n| `event` | when |")
	if table == "" {
		_, table, _ = strings.Cut(string(text), "\n| event | when |")
	}
	table, _, _ = strings.Cut(table, "\n\n")
	_, _, page := start(t).signedIn(t, "viewer").get("/activity")
	known := 0
	for line := range strings.Lines(table) {
		cells := strings.Split(line, "|")
		if len(cells) < 2 {
			continue
		}
		for _, kind := range regexp.MustCompile("`([a-z_]+)`").FindAllStringSubmatch(cells[1], -1) {
			known++
			if !strings.Contains(page, `<option value="`+kind[1]+`">`) {
				t.Errorf("the page lacks %s", kind[1])
			}
		}
	}
	if known < 20 {
		t.Errorf("only %d kinds in the document", known)
	}
}

func TestAttestationsAreFoundByEitherAddressAndDownloaded(t *testing.T) {
	t.Parallel()
	r := start(t)
	first := newPair()
	second := newPair()
	second.Beneficiary = first.UnspendableAddress // the same address, once on each side
	a, c := r.attestTo(t, first), r.attestTo(t, second)
	q := url.Values{"q": {first.UnspendableAddress.String()}}.Encode()
	for role, sees := range map[string]bool{"auditor": true, "viewer": false} {
		b := r.signedIn(t, role)
		_, _, page := b.get("/attestations?" + q)
		_, _, file := b.get("/attestations.csv?" + q)
		for _, id := range []string{a.ID.String(), c.ID.String()} {
			if strings.Contains(page, id) != sees || strings.Contains(file, id) != sees {
				t.Errorf("%s, %s: on the page %t, in the file %t", role, id, strings.Contains(page, id),
					strings.Contains(file, id))
			}
		}
	}
	_, _, all := r.signedIn(t, "viewer").get("/attestations.csv")
	if !strings.Contains(all, a.ID.String()) || strings.Contains(all, first.UnspendableAddress.String()) ||
		strings.Contains(all, a.Hash.String()) {
		t.Error("a viewer's file lacks an attestation, or has its addresses")
	}
}

func TestKeysAreFilteredSortedAndDownloaded(t *testing.T) {
	t.Parallel()
	r := start(t)
	common := newName("fleet")
	ids := make(map[string]string)
	for _, prefix := range []string{"b", "a", "=c"} {
		key, _, err := r.admin.CreateKey(t.Context(), appliance.KeyRequest{Name: prefix + common})
		if err != nil {
			t.Fatal(err)
		}
		ids[prefix] = key.ID
	}
	b := r.signedIn(t, "viewer")
	order := func(query string) (names []string) {
		_, _, page := b.get("/keys?" + query)
		for _, m := range regexp.MustCompile(`<th scope="row">([^<]+)<br>`).FindAllStringSubmatch(page, -1) {
			names = append(names, strings.TrimSuffix(m[1], common))
		}
		return names
	}
	q := "q=" + url.QueryEscape(common)
	if got := order(q + "&sort=name"); !slices.Equal(got, []string{"=c", "a", "b"}) {
		t.Errorf("by name: %q", got)
	}
	if got := order(q + "&state=ended"); got != nil {
		t.Errorf("ended ones: %q", got)
	}
	_, _, file := b.get("/keys.csv?sort=name&" + q)
	table, err := csv.NewReader(strings.NewReader(file)).ReadAll()
	if err != nil || len(table) != 4 || table[1][1] != "'=c"+common { // no formula
		t.Errorf("%q %v", table, err)
	}
	operator := r.signedIn(t, "operator")
	_, _, page := operator.get("/keys?like=" + ids["a"])
	if !strings.Contains(page, `value="a`+common+`-2"`) {
		t.Error("the form for a key's successor lacks the name")
	}
}

func TestKeysAreListedPageByPage(t *testing.T) {
	t.Parallel()
	r := start(t)
	common := newName("paged")
	for n := range 51 {
		name := fmt.Sprintf("%02d %s", n, common)
		if _, _, err := r.admin.CreateKey(t.Context(), appliance.KeyRequest{Name: name}); err != nil {
			t.Fatal(err)
		}
	}
	b := r.signedIn(t, "viewer")
	path, pages := "/keys?sort=name&q="+url.QueryEscape(common), []int{50, 1}
	for n, want := range pages {
		_, _, page := b.get(path)
		if got := strings.Count(page, `<th scope="row">`); got != want || !strings.Contains(page, "51 keys") {
			t.Errorf("page %d: %d keys", n, got)
		}
		next := regexp.MustCompile(`href="([^"]+)" rel="next"`).FindStringSubmatch(page)
		if last := n == len(pages)-1; last != (next == nil) {
			t.Fatalf("page %d: the next is %q", n, next)
		} else if !last {
			path = html.UnescapeString(next[1])
		}
	}
	if _, _, page := b.get("/attestations?from=2026-01-02T00:00&until=2026-01-01T00:00"); !strings.Contains(page,
		"From must be before Until.") {
		t.Error("a range of attestations that ends before it begins is not refused")
	}
}
