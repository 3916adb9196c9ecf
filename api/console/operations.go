package console

import (
	"net/http"
	"strings"

	"github.com/attestd/attestd/api/wire"
	"github.com/attestd/attestd/appliance"
)

// operationsPage shows the state of each part of the appliance. Operators pause and resume attesting, and bind API keys
// here.
func operationsPage() page {
	return page{name: "operations", path: "/operations", title: "Operations", least: Viewer, routes: []route{
		{"GET /operations", Viewer, showOperations},
		{"POST /operations/pause", Operator, pauseAttesting},
		{"POST /operations/resume", Operator, resumeAttesting},
		{"POST /operations/bind", Operator, bindKey},
	}}
}

// operationsView is the page's data.
type operationsView struct {
	Signing wire.Signing
	Parts   []partRow
	Keys    []appliance.APIKey
	Changes bool // the user may make changes
}

// partRow is a check of the status.
type partRow struct {
	finding
	Page string // path of the page that shows more; empty without one
}

func showOperations(w http.ResponseWriter, v *visit) error {
	status, err := v.Admin.Status(v.Context())
	if err != nil {
		return err
	}
	data := operationsView{Signing: status.Signing, Changes: v.IsOperator()}
	for _, f := range status.Checks {
		data.Parts = append(data.Parts, partRow{finding{f}, v.partPath(f.Check)})
	}
	keys, err := v.Admin.ListKeys(v.Context())
	if err != nil {
		return err
	}
	for _, k := range keys {
		if k.Revoked.IsZero() {
			data.Keys = append(data.Keys, k)
		}
	}
	return v.show(w, data)
}

func pauseAttesting(w http.ResponseWriter, v *visit) error {
	reason := strings.TrimSpace(v.PostFormValue("reason"))
	if reason == "" {
		return badRequest("Give the reason of the pause. The journal records it.")
	}
	if _, err := v.Admin.Pause(v.Context(), reason); err != nil {
		return err
	}
	return v.redirect(w, "/operations")
}

func resumeAttesting(w http.ResponseWriter, v *visit) error {
	if _, err := v.Admin.Resume(v.Context()); err != nil {
		return err
	}
	return v.redirect(w, "/operations")
}

func bindKey(w http.ResponseWriter, v *visit) error {
	id := v.PostFormValue("id")
	if id == "" {
		return badRequest("Choose an API key.")
	}
	if _, err := v.Admin.BindKey(v.Context(), id, strings.TrimSpace(v.PostFormValue("attestor"))); err != nil {
		return err
	}
	return v.redirect(w, "/operations")
}
