package console

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/attestd/attestd/api/client"
	"github.com/attestd/attestd/api/wire"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/text"
	"github.com/attestd/attestd/appliance/webhooks"
)

// webhooksPage lists the webhooks, and shows the deliveries of each. Operators create, test, disable, rotate and delete
// webhooks here, and send events again. Viewers do not see the page: a webhook may select addresses.
func webhooksPage() page {
	return page{name: "webhooks", path: "/webhooks", title: "Webhooks", least: Auditor, routes: []route{
		{"GET /webhooks", Auditor, showWebhooks},
		{"POST /webhooks", Operator, createWebhook},
		{"GET /webhooks/{name}", Auditor, showWebhook},
		{"GET /webhooks/{name}/live", Auditor, followWebhook},
		{"POST /webhooks/{name}/test", Operator, testWebhook},
		{"POST /webhooks/{name}/disable", Operator, disableWebhook},
		{"POST /webhooks/{name}/resume", Operator, resumeWebhook},
		{"POST /webhooks/{name}/rotate", Operator, rotateWebhook},
		{"POST /webhooks/{name}/delete", Operator, deleteWebhook},
		{"POST /webhooks/{name}/deliveries/{id}", Operator, redeliver},
	}}
}

const (
	webhookInterval = 2 * time.Second // between two updates of a live page
	defaultOverlap  = 24 * time.Hour  // as in attestd webhook rotate
)

// webhooksView is the list, or one webhook.
type webhooksView struct {
	All     []webhookRow
	Keys    []appliance.APIKey // that may own a new webhook
	Form    webhooks.Request   // as entered
	One     *webhookView       // nil for the list
	Wrong   string             // why the form was refused
	Made    *wire.WebhookSecret
	Changes bool // the user may make changes
}

// webhookView is one webhook.
type webhookView struct {
	webhookRow
	Deliveries []webhooks.Delivery // newest first
	Sent       *webhooks.Delivery  // the result of a test, or of sending an event again
	Changes    bool
	Overlap    int64 // hours
}

// webhookRow is a webhook as its commands show it.
type webhookRow struct{ webhooks.Status }

// Looks returns the CSS class for the state. It is no failure if an operator disabled the webhook.
func (w webhookRow) Looks() string {
	if w.Operator {
		return warn
	}
	return map[string]string{webhooks.Works: good, webhooks.Fails: warn, webhooks.Disabled: bad}[w.State()]
}

// Why returns the reason of a state that is not good.
func (w webhookRow) Why() string {
	if w.Reason != "" {
		return w.Reason
	}
	return text.OneLine(w.LastError)
}

// Receiver returns the URL without its query, which may contain a secret.
func (w webhookRow) Receiver() string {
	address, _, _ := strings.Cut(w.URL, "?")
	return address
}

// Mark returns the CSS class for the outcome of an attempt.
func (webhookView) Mark(d webhooks.Delivery) string {
	return map[webhooks.Outcome]string{webhooks.Delivered: good, webhooks.Retrying: warn}[d.Outcome]
}

// Next returns when an event is sent again; zero if it is not, or if the list has a later attempt.
func (w webhookView) Next(d webhooks.Delivery) (next time.Time) {
	newest := slices.IndexFunc(w.Deliveries, func(other webhooks.Delivery) bool { return other.ID == d.ID })
	if w.Disabled.IsZero() && newest >= 0 && w.Deliveries[newest].Time.Equal(d.Time) {
		next = d.Next
	}
	return next
}

// Recorded reports whether an event is in the journal, so that it can be sent again. A test is not.
func (webhookView) Recorded(d webhooks.Delivery) bool { return d.Type != "webhook.test" }

func showWebhooks(w http.ResponseWriter, v *visit) error { return v.showWebhooks(w, webhooksView{}) }

func (v *visit) showWebhooks(w http.ResponseWriter, data webhooksView) error {
	all, err := v.Admin.Webhooks(v.Context())
	if err != nil {
		return err
	}
	for _, s := range all {
		data.All = append(data.All, webhookRow{s})
	}
	keys, err := v.Admin.ListKeys(v.Context())
	if err != nil {
		return err
	}
	for _, k := range keys {
		if k.State(v.console.now()) == appliance.KeyActive {
			data.Keys = append(data.Keys, k)
		}
	}
	data.Changes = v.IsOperator()
	return v.show(w, data)
}

// createWebhook creates a webhook, and shows its secret only this once.
func createWebhook(w http.ResponseWriter, v *visit) error {
	if err := v.ParseForm(); err != nil {
		return formError(err)
	}
	listed := func(name string) []string {
		return strings.FieldsFunc(v.PostForm.Get(name), func(r rune) bool { return r == ',' || r == ' ' })
	}
	form := webhooks.Request{Name: strings.TrimSpace(v.PostForm.Get("name")),
		URL: strings.TrimSpace(v.PostForm.Get("url")), Types: listed("types"), Addresses: listed("addresses"),
		KeyID: v.PostForm.Get("key")}
	made, err := v.Admin.CreateWebhook(v.Context(), form)
	if problem, refused := errors.AsType[*client.Problem](err); refused && problem.Status == http.StatusBadRequest {
		return v.showWebhooks(w, webhooksView{Form: form, Wrong: strings.TrimSpace(problem.Field + " " + problem.Detail)})
	}
	if err != nil {
		return err
	}
	return v.showWebhooks(w, webhooksView{Made: &made})
}

func showWebhook(w http.ResponseWriter, v *visit) error { return v.showWebhook(w, webhooksView{}, nil) }

func (v *visit) showWebhook(w http.ResponseWriter, data webhooksView, sent *webhooks.Delivery) error {
	one, err := v.webhook(v.Context())
	if err != nil {
		return err
	}
	one.Sent = sent
	data.One, data.Changes = &one, v.IsOperator()
	return v.show(w, data)
}

// webhook returns the webhook that the path names.
func (v *visit) webhook(ctx context.Context) (one webhookView, err error) {
	name := v.PathValue("name")
	all, err := v.Admin.Webhooks(ctx)
	if err != nil {
		return one, err
	}
	i := slices.IndexFunc(all, func(s webhooks.Status) bool { return s.Name == name })
	if i < 0 {
		return one, &client.Problem{Problem: wire.Problem{Status: http.StatusNotFound,
			Detail: "No webhook has this name."}}
	}
	one = webhookView{webhookRow: webhookRow{all[i]}, Changes: v.IsOperator(), Overlap: int64(defaultOverlap / time.Hour)}
	one.Deliveries, err = v.Admin.Deliveries(ctx, name)
	return one, err
}

// followWebhook streams the state and the deliveries whenever they change.
func followWebhook(w http.ResponseWriter, v *visit) error {
	return v.followLive(w, webhookInterval, func(ctx context.Context) (any, error) { return v.webhook(ctx) })
}

func testWebhook(w http.ResponseWriter, v *visit) error {
	sent, err := v.Admin.TestWebhook(v.Context(), v.PathValue("name"))
	if err != nil {
		return err
	}
	return v.showWebhook(w, webhooksView{}, &sent)
}

func redeliver(w http.ResponseWriter, v *visit) error {
	id, err := uuid.Parse(v.PathValue("id"))
	if err != nil {
		return badRequest(v.PathValue("id") + " is not the id of an event.")
	}
	sent, err := v.Admin.Redeliver(v.Context(), v.PathValue("name"), id)
	if err != nil {
		return err
	}
	return v.showWebhook(w, webhooksView{}, &sent)
}

func disableWebhook(w http.ResponseWriter, v *visit) error {
	if _, err := v.Admin.DisableWebhook(v.Context(), v.PathValue("name")); err != nil {
		return err
	}
	return v.redirect(w, "/webhooks/"+v.PathValue("name"))
}

func resumeWebhook(w http.ResponseWriter, v *visit) error {
	if _, err := v.Admin.ResumeWebhook(v.Context(), v.PathValue("name")); err != nil {
		return err
	}
	return v.redirect(w, "/webhooks/"+v.PathValue("name"))
}

func rotateWebhook(w http.ResponseWriter, v *visit) error {
	hours, err := strconv.Atoi(v.PostFormValue("overlap"))
	if err != nil {
		return badRequest("Give the overlap in hours, such as 24.")
	}
	made, err := v.Admin.RotateWebhook(v.Context(), v.PathValue("name"), time.Duration(hours)*time.Hour)
	if err != nil {
		return err
	}
	return v.showWebhook(w, webhooksView{Made: &made}, nil)
}

// deleteWebhook deletes a webhook if its name was entered as confirmation.
func deleteWebhook(w http.ResponseWriter, v *visit) error {
	name := v.PathValue("name")
	if strings.TrimSpace(v.PostFormValue("name")) != name {
		return v.showWebhook(w, webhooksView{Wrong: "Not deleted: to confirm, type the webhook's name, " + name + "."}, nil)
	}
	if _, err := v.Admin.DeleteWebhook(v.Context(), name); err != nil {
		return err
	}
	return v.redirect(w, "/webhooks")
}
