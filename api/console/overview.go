package console

import "net/http"

// overviewPage says at a glance whether the appliance signs, whether its history is whole, and whether its data are fresh.
func overviewPage() page {
	return page{name: "overview", path: "/", title: "Overview", least: Viewer, routes: []route{{"GET /{$}", Viewer, showOverview}}}
}

func showOverview(w http.ResponseWriter, v *visit) error {
	status, err := v.Admin.Status(v.Context())
	if err != nil {
		return err
	}
	return v.show(w, status)
}
