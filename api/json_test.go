package api_test

import (
	"bytes"
	"compress/gzip"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/gofiber/fiber/v2"

	"github.com/attestd/attestd/api"
	"github.com/attestd/attestd/appliance"
)

// encodings lists Content-Encoding headers that mark a body as compressed, or might. Each entry lists the headers'
// values.
var encodings = [][]string{
	{"gzip"}, {"identity"}, {""}, {"br, gzip"}, {"", "gzip, gzip, gzip"}, {"gzip", ""}, {" "},
}

func encodingHeaders(values []string) (headers []string) {
	for _, v := range values {
		headers = append(headers, "Content-Encoding", v)
	}
	return headers
}

func TestNoRouteTakesAContentEncoding(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(o *api.Options) {
		o.Routes = []api.Route{{Method: fiber.MethodPost, Path: "/own", ReadsBody: true,
			Handler: func(*fiber.Ctx) error {
				return nil
			}}}
	})
	for _, route := range r.server.Routes() {
		for _, values := range encodings {
			headers := append(encodingHeaders(values), "x-api-key", r.token, "Content-Type", "application/json")
			a := r.do(route.Method, somePath(route), good, headers...)
			if a.status != 415 || a.problem().Code != api.CodeUnsupportedMediaType {
				t.Errorf("%s %s, %q: %s", route.Method, route.Path, values, a)
			}
		}
	}
	if r.size() != 0 {
		t.Error("something was signed")
	}
}

func TestNorDoesTheAdminSocket(t *testing.T) {
	t.Parallel()
	o := newAdminRig(t)
	for _, route := range o.admin.Routes() {
		for _, values := range encodings {
			a := o.raw(route.Method, somePath(route), "{}",
				append(encodingHeaders(values), "Content-Type", "application/json")...)
			if a.status != 415 || a.problem().Code != api.CodeUnsupportedMediaType {
				t.Errorf("%s %s, %q: %s", route.Method, route.Path, values, a)
			}
		}
	}
}

func somePath(r api.Route) string {
	return regexp.MustCompile(`:\w+|\*`).ReplaceAllString(r.Path, "x")
}

// The body is small, but gunzipping it three times gives 16 MB. An empty Content-Encoding hides the other one.
func TestABodyIsNeverDecompressed(t *testing.T) {
	r := newRig(t)
	body := bytes.Repeat([]byte(" "), 16<<20)
	for range 3 {
		var packed bytes.Buffer
		w, _ := gzip.NewWriterLevel(&packed, gzip.BestCompression)
		_, _ = w.Write(body)
		r.must(w.Close())
		body = packed.Bytes()
	}
	a, err := r.try(http.DefaultClient, "POST", "http://"+r.address+attestPath, bytes.NewReader(body),
		"x-api-key", r.token, "Content-Type", "application/json", "Content-Encoding", "", "Content-Encoding",
		"gzip, gzip, gzip")
	if err != nil || a.status != 415 {
		t.Errorf("%d bytes: %s, %v", len(body), a, err)
	}
}

func TestJSONThatCanBeReadInTwoWaysIsRefusedAtTheAdminSocket(t *testing.T) {
	t.Parallel()
	o := newReplicaRig(t, func(*api.AdminOptions) {})
	for _, c := range []struct {
		path, body string
		code       appliance.Code
		field      string
	}{
		{"/keys", `{"name":"a","name":"b"}`, appliance.CodeDuplicateField, "name"},
		{"/keys", `{"name":"a","n\u0061me":"b"}`, appliance.CodeDuplicateField, "name"},
		{"/keys", `{"Name":"a"}`, appliance.CodeUnknownField, "Name"},
		{"/keys", `{"name":"a","\u017fcopes":["attest"]}`, appliance.CodeUnknownField, "\u017fcopes"},
		{"/keys", "{\"name\":\"a\xff\"}", appliance.CodeInvalidJSON, ""},
		{"/keys", `{"name":"\ud800"}`, appliance.CodeInvalidJSON, ""},
		{"/keys", `{"name":"a"} x`, appliance.CodeInvalidJSON, ""},
		{"/keys", `null`, appliance.CodeInvalidJSON, ""},
		{"/keys", "\ufeff" + `{"name":"a"}`, appliance.CodeInvalidJSON, ""},
		{"/log/verify", `{"earlier":"","earlier":"AAAA"}`, appliance.CodeDuplicateField, "earlier"},
		{"/log/verify", `{"Earlier":"AAAA"}`, appliance.CodeUnknownField, "Earlier"},
		{"/replica/batches", `{"rows":[{"kind":"chain","kind":"token"}]}`, appliance.CodeDuplicateField, "rows.0.kind"},
		{"/replica/batches", `{"rows":[],"positions":{"a":"1","\u0061":"2"}}`, appliance.CodeDuplicateField,
			"positions.a"},
		{"/replica/batches", `{"Rows":[]}`, appliance.CodeUnknownField, "Rows"},
		{"/replica/batches", "{\"rows\":[{\"kind\":\"\xff\"}]}", appliance.CodeInvalidJSON, ""},
	} {
		a := o.raw("POST", c.path, c.body, "Content-Type", "application/json")
		if p := a.problem(); a.status != 400 || p.Code != c.code || p.Field != c.field {
			t.Errorf("%s %q: %s, want 400 %s of %q", c.path, c.body, a, c.code, c.field)
		}
	}
	keys, err := o.client.ListKeys(t.Context())
	if err != nil || len(keys) != 1 {
		t.Errorf("%d keys, %v", len(keys), err)
	}
	if a := o.raw("POST", "/keys", strings.Repeat(" ", 10)+`{"name":"a"}`, "Content-Type",
		"application/json"); a.status != 201 {
		t.Errorf("and a good one: %s", a)
	}
}
