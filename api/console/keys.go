package console

import (
	"cmp"
	"errors"
	"net/http"
	"slices"
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
		{"POST /keys", Operator, createKey},
		{"POST /keys/{id}/revoke", Operator, revokeKey},
	}}
}

// keysView holds all API keys, and the result of the last action.
type keysView struct {
	Keys   []keyRow
	Scopes []appliance.Scope
	Form   keyForm
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

func emptyKeyForm() keyForm {
	return keyForm{Rate: appliance.Rate{}.String(), Scopes: []string{string(appliance.ScopeAttest)}}
}

func showKeys(w http.ResponseWriter, v *visit) error {
	return v.showKeys(w, keysView{Form: emptyKeyForm()})
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
	data.Keys, data.Scopes, data.Writes = keyRows(keys, use, v.console.now()), appliance.Scopes, v.IsOperator()
	return v.show(w, data)
}

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
