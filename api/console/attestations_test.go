package console_test

import (
	"bufio"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"html"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/mod/sumdb/note"

	"github.com/attestd/attestd/api/client"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/journal"
)

// made counts the fixtures of tests, so that no test finds another test's fixtures.
var made atomic.Uint64

// newPair returns addresses that no other test uses.
func newPair() (pair appliance.Request) {
	pair.UnspendableAddress[0], pair.Beneficiary[0] = 0xaa, 0xbb
	binary.BigEndian.PutUint64(pair.UnspendableAddress[12:], made.Add(1))
	binary.BigEndian.PutUint64(pair.Beneficiary[12:], made.Add(1))
	return pair
}

// newName returns a name that no other test uses.
func newName(name string) string { return fmt.Sprintf("%s %d", name, made.Add(1)) }

// attestTo makes the appliance attest a pair of addresses.
func (r *rig) attestTo(t testing.TB, pair appliance.Request) appliance.Attestation {
	t.Helper()
	c, err := client.New(r.api, r.key, client.Options{Timeout: 30 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	a, err := c.Attest(t.Context(), pair, client.AttestOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

var idPattern = regexp.MustCompile(`<tr id="r(\d+)">`)

// Oldest first, a search pages upwards through the same attestations that it finds newest first.
func TestAttestationsAreListedOldestFirst(t *testing.T) {
	t.Parallel()
	r := start(t)
	key, token, err := r.admin.CreateKey(t.Context(), appliance.KeyRequest{Name: newName("oldest"),
		Rate: appliance.Unlimited})
	if err != nil {
		t.Fatal(err)
	}
	mine := &rig{api: r.api, key: token}
	const attested = 53
	pair := newPair()
	swapped := appliance.Request{UnspendableAddress: pair.Beneficiary, Beneficiary: pair.UnspendableAddress}
	for range attested - 1 {
		mine.attestTo(t, pair)
	}
	mine.attestTo(t, swapped)
	b := r.signedIn(t, "auditor")
	list := func(q url.Values) (indexes []int, pages int) {
		t.Helper()
		for next := "/attestations?" + q.Encode(); next != "" && pages < 5; pages++ {
			_, _, body := b.get(next)
			for _, found := range idPattern.FindAllStringSubmatch(body, -1) {
				index, _ := strconv.Atoi(found[1])
				indexes = append(indexes, index)
			}
			next = ""
			if _, after, more := strings.Cut(body, `<p><a class="button" href="`); more {
				next = html.UnescapeString(strings.Split(after, `"`)[0])
			}
		}
		return indexes, pages
	}
	e, err := r.admin.Records(t.Context(), journal.Query{KeyID: key.ID, Limit: 1})
	if err != nil {
		t.Fatal(err)
	}
	newest := e[0].Record.Time
	for name, q := range map[string]url.Values{
		"by key":     {"q": {key.ID}},
		"by address": {"q": {pair.Beneficiary.String()}},
		"in a time": {"q": {key.ID}, "from": {newest.Add(-time.Hour).Format("2006-01-02T15:04:05")},
			"until": {newest.Add(time.Hour).Format("2006-01-02T15:04:05")}},
	} {
		want, _ := list(q)
		slices.Reverse(want)
		q.Set("sort", "oldest")
		got, pages := list(q)
		if len(want) != attested || !slices.Equal(got, want) || pages != 2 {
			t.Errorf("%s: %d pages of %v, want %v", name, pages, got, want)
		}
	}
	_, _, csv := b.get("/attestations.csv?" + url.Values{"q": {key.ID}, "sort": {"oldest"}}.Encode())
	rows := strings.Split(strings.TrimSpace(csv), "\n")
	if len(rows) != attested+1 || !strings.Contains(rows[attested], strings.ToLower(swapped.Beneficiary.String()[2:])) &&
		!strings.Contains(rows[attested], swapped.UnspendableAddress.String()+","+swapped.Beneficiary.String()) {
		t.Errorf("%d rows, the last is %s", len(rows), rows[len(rows)-1])
	}
}

func TestAttestationsAreFoundByWhatOneKnowsOfThem(t *testing.T) {
	t.Parallel()
	r := start(t)
	pair, other := newPair(), newPair()
	a, another := r.attestTo(t, pair), r.attestTo(t, other)
	e, err := r.admin.Record(t.Context(), a.ID)
	if err != nil {
		t.Fatal(err)
	}
	b := r.signedIn(t, "auditor")
	at := func(d time.Duration) string { return e.Record.Time.Add(d).UTC().Format("2006-01-02T15:04:05") }
	for name, q := range map[string]url.Values{
		"hash":                {"q": {a.Hash.String()}},
		"unspendable address": {"q": {pair.UnspendableAddress.String()}},
		"in lower case":       {"q": {strings.ToLower(pair.UnspendableAddress.String())}},
		"beneficiary":         {"q": {pair.Beneficiary.String()}},
	} {
		status, _, body := b.get("/attestations?" + q.Encode())
		if status != http.StatusOK || !strings.Contains(body, a.ID.String()) ||
			strings.Contains(body, another.ID.String()) {
			t.Errorf("by %s: %d %s", name, status, body)
		}
	}
	for name, c := range map[string]struct {
		q    url.Values
		want bool
	}{
		"its API key's id":    {url.Values{"q": {e.Record.KeyID}}, true},
		"its API key's name":  {url.Values{"q": {"payments"}}, true},
		"the minute it is of": {url.Values{"from": {at(-time.Minute)}, "until": {at(time.Minute)}}, true},
		"a time before":       {url.Values{"until": {at(-time.Hour)}}, false},
		"below its index":     {url.Values{"before": {fmt.Sprint(e.Index)}}, false},
		"other addresses":     {url.Values{"q": {appliance.Address{1}.String()}}, false},
	} {
		status, _, body := b.get("/attestations?" + c.q.Encode())
		if status != http.StatusOK || strings.Contains(body, a.ID.String()) != c.want {
			t.Errorf("by %s: %d %s", name, status, body)
		}
	}
	if status, header, _ := b.get("/attestations?q=" + a.ID.String()); status != http.StatusSeeOther ||
		header.Get("Location") != "/attestations/"+a.ID.String() {
		t.Errorf("by id: %d, to %s", status, header.Get("Location"))
	}
}

func TestASearchThatMeansNothingSaysSo(t *testing.T) {
	t.Parallel()
	b := start(t).signedIn(t, "auditor")
	for q, want := range map[string]string{
		"q=%3Cscript%3E":                 "Enter an attestation id",
		"q=0x" + strings.Repeat("g", 64): "64 hex digits",
		"q=0x" + strings.Repeat("g", 40): "only hex digits",
		"from=yesterday":                 "is not a time",
		"before=-1":                      "is not an index",
	} {
		_, _, body := b.get("/attestations?" + q)
		if !strings.Contains(body, want) || !strings.Contains(body, `role="alert"`) ||
			strings.Contains(body, "<script>") {
			t.Errorf("%s: %s", q, body)
		}
	}
	for path, want := range map[string]int{"/attestations/1": 400, "/attestations/1/proof": 400,
		"/attestations/tail?after=x":                         400,
		"/attestations/0198c1f2-7a3b-7def-8123-456789abcdef": 404} {
		if status, _, body := b.get(path); status != want {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
}

func TestARecordTellsHowItsHashIsMadeAndWhoSigned(t *testing.T) {
	t.Parallel()
	r := start(t)
	pair := newPair()
	a := r.attestTo(t, pair)
	status, _, body := r.signedIn(t, "auditor").get("/attestations/" + a.ID.String())
	if status != http.StatusOK {
		t.Fatal(status, body)
	}
	both := fmt.Sprintf("0x%x%x", pair.UnspendableAddress[:], pair.Beneficiary[:])
	for _, want := range []string{
		both, a.Hash.String(), "Keccak256 of these 40 bytes", "This is the record&#39;s hash",
		"recovers to the record&#39;s signer",
		a.SignerAddress.String(), fmt.Sprintf("0x%x", a.Signature.R), "payments", "example.com/console",
	} {
		if !strings.Contains(body, want) && !strings.Contains(body, strings.ReplaceAll(want, "&#39;", "'")) {
			t.Errorf("the page does not hold %q", want)
		}
	}
}

func TestAnEventHasItsPlaceAndItsProof(t *testing.T) {
	t.Parallel()
	r := start(t)
	events, err := r.admin.Records(t.Context(), journal.Query{EventsOnly: true, Limit: 1})
	if err != nil || len(events) == 0 {
		t.Fatal(events, err)
	}
	e := events[0]
	status, _, body := r.signedIn(t, "auditor").get("/attestations/" + e.ID().String())
	for _, want := range []string{fmt.Sprintf("Event %d: %s", e.Index, e.Event.Kind), "In the log",
		fmt.Sprintf("data-leaf=\"%x\"", e.Leaf)} {
		if status != http.StatusOK || !strings.Contains(body, want) {
			t.Errorf("%d: the page does not hold %q", status, want)
		}
	}
}

// A viewer's view of a record neither reveals its addresses nor confirms a guess of them.
func TestAViewerSeesNoAddresses(t *testing.T) {
	t.Parallel()
	r := start(t)
	pair := newPair()
	a := r.attestTo(t, pair)
	e, err := r.admin.Record(t.Context(), a.ID)
	if err != nil {
		t.Fatal(err)
	}
	b := r.signedIn(t, "viewer")
	secrets := []string{
		pair.UnspendableAddress.String(), pair.Beneficiary.String(), fmt.Sprintf("%x", pair.UnspendableAddress[:]),
		fmt.Sprintf("%x", pair.Beneficiary[:]),
		a.Hash.String()[2:], fmt.Sprintf("%x", a.Signature.R), fmt.Sprintf("%x", e.Record.Salt),
		fmt.Sprintf("%x", e.Leaf), base64.StdEncoding.EncodeToString(e.Leaf),
	}
	for _, path := range []string{"/attestations", "/attestations/" + a.ID.String(),
		"/attestations/" + a.ID.String() + "/proof"} {
		status, _, body := b.get(path)
		if status != http.StatusOK {
			t.Errorf("%s: %d", path, status)
		}
		for _, secret := range secrets {
			if strings.Contains(strings.ToLower(body), strings.ToLower(secret)) {
				t.Errorf("%s tells %s", path, secret)
			}
		}
	}
	if status, _, _ := b.get("/attestations/" + a.ID.String() + "/proof?record"); status != http.StatusForbidden {
		t.Errorf("the proof with the record: %d", status)
	}
	for _, query := range []string{pair.Beneficiary.String(), pair.UnspendableAddress.String(), a.Hash.String()} {
		status, _, body := b.get("/attestations?q=" + query)
		if status != http.StatusOK || strings.Contains(body, a.ID.String()) ||
			!strings.Contains(body, "does not allow a search by address or hash") {
			t.Errorf("searched by %s: %d %s", query, status, body)
		}
	}
}

func TestTheProofIsTheOneThatTheCommandPrints(t *testing.T) {
	t.Parallel()
	r := start(t)
	a := r.attestTo(t, newPair())
	key, err := r.admin.LogKey(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	verifier, err := note.NewVerifier(key)
	if err != nil {
		t.Fatal(err)
	}
	e, err := r.admin.Record(t.Context(), a.ID)
	if err != nil {
		t.Fatal(err)
	}
	for query, extra := range map[string]string{"": "", "?record": string(e.Leaf)} {
		status, header, body := r.signedIn(t, "auditor").get("/attestations/" + a.ID.String() + "/proof" + query)
		proof, got, err := journal.ParseProof([]byte(body))
		if err == nil {
			err = proof.Verify(e.Leaf, verifier)
		}
		if err != nil || status != http.StatusOK || string(got) != extra || proof.Index != e.Index {
			t.Errorf("%q: %d, %v with %q: %s", query, status, err, got, body)
		}
		if want := `attachment; filename="` + a.ID.String() +
			`.tlog-proof"`; header.Get("Content-Disposition") != want {
			t.Errorf("%q is named %s", query, header.Get("Content-Disposition"))
		}
	}
}

func TestTheTailTellsNewAttestationsAsTheyCome(t *testing.T) {
	t.Parallel()
	r := start(t)
	first := r.attestTo(t, newPair())
	e, err := r.admin.Record(t.Context(), first.ID)
	if err != nil {
		t.Fatal(err)
	}
	b := r.signedIn(t, "viewer")
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet,
		fmt.Sprintf("%s/attestations/tail?after=%d", b.base, e.Index), nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := b.http.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	second := r.attestTo(t, newPair())
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		var told struct{ HTML string }
		if !ok || json.Unmarshal([]byte(data), &told) != nil {
			continue
		}
		if strings.Contains(told.HTML, first.ID.String()) {
			t.Errorf("told again: %s", told.HTML)
		}
		if strings.Contains(told.HTML, second.ID.String()) {
			return
		}
	}
	t.Errorf("the stream ended: %v", lines.Err())
}
