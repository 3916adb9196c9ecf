package console

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/attestd/attestd/api/client"
	"github.com/attestd/attestd/api/wire"
	"github.com/attestd/attestd/appliance"
)

// keysPage lists the API keys and their use, and creates and revokes keys.
func keysPage() page {
	return page{name: "keys", path: "/keys", title: "Keys", least: Viewer, routes: []route{
		{"GET /keys", Viewer, showKeys},
		{"GET /keys.csv", Viewer, downloadKeys},
		{"POST /keys", Operator, createKey},
		{"POST /keys/{id}/revoke", Operator, revokeKey},
	}}
}

// keysView holds all API keys, and the result of the last action.
type keysView struct {
	Keys   []keyRow // one page of the keys that Filter selects
	Filter keyFilter
	Found  int    // number of selected keys
	Next   string // URL of the next page; empty on the last
	Scopes []appliance.Scope
	Form   keyForm
	Like   string // name of the key whose settings Form has; empty for a new client
	Wrong  string // why the form was refused
	Made   string // name of the new API key
	Token  string // token of the new API key; shown only this once
	Writes bool   // the user may create and revoke keys
}

// keyRow is an API key with its use.
type keyRow struct {
	appliance.APIKey
	State appliance.KeyState
	Day   int    // attestations in the past day
	Spark string // path of a sparkline, see bars; empty if the key was not used
	Busy  uint32 // maximum within one step of the sparkline
}

// keyForm is a new API key as entered.
type keyForm struct {
	Name, Rate, Expires, AllowFrom, Attestor string
	Scopes                                   []string
}

// emptyKeyForm has the settings of a key that the command creates without any.
func emptyKeyForm() keyForm {
	return keyForm{Rate: appliance.Rate{}.String(), Scopes: names(appliance.DefaultScopes)}
}

func names(scopes []appliance.Scope) (all []string) {
	for _, scope := range scopes {
		all = append(all, string(scope))
	}
	return all
}

func showKeys(w http.ResponseWriter, v *visit) error {
	return v.showKeys(w, keysView{Form: emptyKeyForm()})
}

// formLike returns a form for a successor of a key, with the same settings.
func formLike(k appliance.APIKey) keyForm {
	return keyForm{Name: successor(k.Name), Rate: k.Rate.String(), AllowFrom: spaced(k.AllowFrom), Attestor: k.Attestor,
		Scopes: names(k.Scopes)}
}

// successor returns the name for the next key of a client: payments-2 after payments. Names are unique.
func successor(name string) string {
	if i := strings.LastIndexByte(name, '-'); i > 0 {
		if n, err := strconv.Atoi(name[i+1:]); err == nil {
			return name[:i+1] + strconv.Itoa(n+1)
		}
	}
	return name + "-2"
}

// showKeys shows the page with the current keys.
func (v *visit) showKeys(w http.ResponseWriter, data keysView) error {
	keys, err := v.Admin.ListKeys(v.Context())
	if err != nil {
		return err
	}
	use, err := v.Admin.KeyUse(v.Context())
	if err != nil {
		return err
	}
	data.Filter = readKeyFilter(v.URL.Query())
	rows := data.Filter.rows(keys, use, v.console.now())
	data.Found, data.Keys = len(rows), rows[min(data.Filter.From, len(rows)):]
	if len(data.Keys) > listedKeys {
		data.Keys, data.Next = data.Keys[:listedKeys], data.Filter.at("/keys", data.Filter.From+listedKeys)
	}
	data.Scopes, data.Writes = appliance.Scopes, v.IsOperator()
	for _, k := range keys {
		if v.URL.Query().Get("like") == k.ID && v.Method == http.MethodGet {
			data.Form, data.Like = formLike(k), k.Name
		}
	}
	return v.show(w, data)
}

// States are the values of Filter.State.
func (keysView) States() []string { return []string{"active", "ended"} }

// listedKeys is the number of keys per page.
const listedKeys = 50

// keyFilter selects and sorts API keys.
type keyFilter struct {
	Q     string // a part of the name or of the id
	State string // active or ended; empty for all
	Sort  string // name, used or use; empty for the newest first, with the keys that have ended last
	From  int    // number of selected keys on the pages before
}

func readKeyFilter(form url.Values) keyFilter {
	from, err := strconv.Atoi(form.Get("from"))
	if err != nil {
		from = 0
	}
	return keyFilter{Q: strings.TrimSpace(form.Get("q")), State: form.Get("state"), Sort: form.Get("sort"),
		From: max(0, from)}
}

// at returns the URL of a path with this filter, from the key at a position on.
func (f keyFilter) at(path string, from int) string {
	q := url.Values{}
	for name, value := range map[string]string{"q": f.Q, "state": f.State, "sort": f.Sort} {
		if value != "" {
			q.Set(name, value)
		}
	}
	if from > 0 {
		q.Set("from", strconv.Itoa(from))
	}
	return path + "?" + q.Encode()
}

// CSV returns the URL of the selected keys as a file.
func (f keyFilter) CSV() string { return f.at("/keys.csv", 0) }

// Set reports whether the filter leaves out keys.
func (f keyFilter) Set() bool { return f.Q != "" || f.State != "" }

// rows returns the selected keys in order.
func (f keyFilter) rows(keys []appliance.APIKey, use wire.KeyUse, now time.Time) []keyRow {
	rows := slices.DeleteFunc(keyRows(keys, use, now), func(k keyRow) bool {
		q := strings.ToLower(f.Q)
		ended := k.State != appliance.KeyActive
		return !strings.Contains(strings.ToLower(k.Name), q) && !strings.Contains(k.ID, q) ||
			f.State == "active" && ended || f.State == "ended" && !ended
	})
	slices.SortStableFunc(rows, func(a, b keyRow) int {
		switch f.Sort {
		case "name":
			return cmp.Compare(strings.ToLower(a.Name), strings.ToLower(b.Name))
		case "used":
			return b.LastUsed.Compare(a.LastUsed)
		case "use":
			return cmp.Compare(b.Day, a.Day)
		}
		return 0
	})
	return rows
}

// downloadKeys answers with the selected keys, without their secrets.
func downloadKeys(w http.ResponseWriter, v *visit) error {
	keys, err := v.Admin.ListKeys(v.Context())
	if err != nil {
		return err
	}
	use, err := v.Admin.KeyUse(v.Context())
	if err != nil {
		return err
	}
	when := func(t time.Time) string {
		if t.IsZero() {
			return ""
		}
		return t.UTC().Format(time.RFC3339)
	}
	file := newCSV(w, v, "keys", "id", "name", "state", "scopes", "rate", "allow_from", "attestor", "created", "expires",
		"revoked", "last_used", "attestations_past_day")
	for _, k := range readKeyFilter(v.URL.Query()).rows(keys, use, v.console.now()) {
		file.add(k.ID, k.Name, string(k.State), spaced(k.Scopes), k.Rate.String(), spaced(k.AllowFrom), k.Attestor,
			when(k.Created), when(k.Expires), when(k.Revoked), when(k.LastUsed), strconv.Itoa(k.Day))
	}
	return file.end(nil)
}

// spaced joins values with spaces.
func spaced[T any](values []T) string { return strings.Trim(fmt.Sprint(values), "[]") }

// keyRows puts active keys first, and newer keys before older ones.
func keyRows(keys []appliance.APIKey, use wire.KeyUse, now time.Time) []keyRow {
	rows := make([]keyRow, len(keys))
	for i, k := range keys {
		steps := use.Keys[k.ID]
		rows[i] = keyRow{APIKey: k, State: k.State(now)}
		for _, n := range steps {
			rows[i].Day += int(n)
			rows[i].Busy = max(rows[i].Busy, n)
		}
		rows[i].Spark = bars(steps)
	}
	slices.SortStableFunc(rows, func(a, b keyRow) int {
		ended := map[bool]int{true: 1}
		return cmp.Or(ended[a.State != appliance.KeyActive]-ended[b.State != appliance.KeyActive],
			b.Created.Compare(a.Created))
	})
	return rows
}

// createKey creates an API key, and shows its token only this once.
func createKey(w http.ResponseWriter, v *visit) error {
	if err := v.ParseForm(); err != nil {
		return formError(err)
	}
	form := keyForm{
		Name: strings.TrimSpace(v.PostForm.Get("name")), Rate: v.PostForm.Get("rate"),
		Expires:   v.PostForm.Get("expires"),
		AllowFrom: v.PostForm.Get("allowFrom"), Attestor: strings.TrimSpace(v.PostForm.Get("attestor")),
		Scopes: v.PostForm["scope"],
	}
	request, wrong := form.read(v.console.now())
	if wrong != "" {
		return v.showKeys(w, keysView{Form: form, Wrong: wrong})
	}
	key, token, err := v.Admin.CreateKey(v.Context(), request)
	if problem, refused := errors.AsType[*client.Problem](err); refused && problem.Status == http.StatusBadRequest {
		return v.showKeys(w, keysView{Form: form, Wrong: strings.TrimSpace(problem.Field + " " + problem.Detail)})
	}
	if err != nil {
		return err
	}
	return v.showKeys(w, keysView{Made: key.Name, Token: token, Form: emptyKeyForm()})
}

// read returns the request that the form describes, or an error text.
func (f keyForm) read(now time.Time) (request appliance.KeyRequest, wrong string) {
	request = appliance.KeyRequest{Name: f.Name, Attestor: f.Attestor}
	var err error
	if request.Rate, err = appliance.ParseRate(strings.TrimSpace(f.Rate)); err != nil {
		return request, "The " + err.Error() + "."
	}
	if len(f.Scopes) == 0 {
		return request, "Choose at least one scope." // an empty list would mean all scopes
	}
	for _, name := range f.Scopes {
		scope, err := appliance.ParseScope(name)
		if err != nil {
			return request, err.Error()
		}
		request.Scopes = append(request.Scopes, scope)
	}
	if f.Expires != "" {
		end, err := time.Parse(time.DateOnly, f.Expires)
		if err != nil || !end.After(now) {
			return request, "The expiry date must be in the future, such as 2027-01-31."
		}
		request.Expires = end
	}
	for _, text := range strings.FieldsFunc(f.AllowFrom, func(r rune) bool { return r == ',' || r == ' ' }) {
		network, err := appliance.ParseNetwork(text)
		if err != nil {
			return request, err.Error() + "."
		}
		request.AllowFrom = append(request.AllowFrom, network)
	}
	return request, ""
}

// revokeKey revokes an API key if its name was entered as confirmation.
func revokeKey(w http.ResponseWriter, v *visit) error {
	keys, err := keyNames(v)
	if err != nil {
		return err
	}
	id := v.PathValue("id")
	name, known := keys[id]
	if known && strings.TrimSpace(v.PostFormValue("name")) != name {
		return v.showKeys(w, keysView{Wrong: "Not revoked: to confirm, type the API key's name, " + name + "."})
	}
	if _, err := v.Admin.RevokeKey(v.Context(), id); err != nil {
		return err
	}
	return v.redirect(w, "/keys")
}
