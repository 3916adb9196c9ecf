package api_test

import (
	"context"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/attestd/attestd/api"
	"github.com/attestd/attestd/appliance"
)

// badInput is a request that must be refused.
type badInput struct {
	name    string
	method  string // default: POST
	path    string // default: attestPath
	body    string // default: good
	headers []string
	drop    string // a header to leave out
	status  int
	code    appliance.Code
	field   string
}

// pair returns a body with these JSON values.
func pair(u, b string) string { return `{"unspendableAddress":` + u + `,"beneficiary":` + b + `}` }

// badAddresses are refused because of their addresses.
func badAddresses() []badInput {
	u, b := `"`+unspendable+`"`, `"`+beneficiary+`"`
	lower := strings.ToLower(b)
	return []badInput{
		{name: "empty address", body: pair(`""`, b), status: 400, code: appliance.CodeInvalidAddress,
			field: "unspendableAddress"},
		{name: "no 0x", body: pair(`"`+unspendable[2:]+`"`, b), status: 400, code: appliance.CodeInvalidAddress,
			field: "unspendableAddress"},
		{name: "0X", body: pair(`"0X`+unspendable[2:]+`"`, b), status: 400, code: appliance.CodeInvalidAddress,
			field: "unspendableAddress"},
		{name: "39 digits", body: pair(u, lower[:len(lower)-2]+`"`), status: 400, code: appliance.CodeInvalidAddress,
			field: "beneficiary"},
		{name: "41 digits", body: pair(u, lower[:len(lower)-1]+`0"`), status: 400, code: appliance.CodeInvalidAddress,
			field: "beneficiary"},
		{name: "64 digits", body: pair(u, `"0x`+strings.Repeat("ab", 32)+`"`), status: 400,
			code: appliance.CodeInvalidAddress, field: "beneficiary"},
		{name: "not hex", body: pair(u, `"0x`+strings.Repeat("zz", 20)+`"`), status: 400,
			code: appliance.CodeInvalidAddress, field: "beneficiary"},
		{name: "space before", body: pair(`" `+unspendable+`"`, b), status: 400, code: appliance.CodeInvalidAddress,
			field: "unspendableAddress"},
		{name: "newline behind", body: pair(`"`+unspendable+`\n"`, b), status: 400, code: appliance.CodeInvalidAddress,
			field: "unspendableAddress"},
		{name: "full-width digits", body: pair(u, `"0x`+strings.Repeat("\uff11", 40)+`"`), status: 400,
			code: appliance.CodeInvalidAddress, field: "beneficiary"},
		{name: "ENS name", body: pair(u, `"vitalik.eth"`), status: 400, code: appliance.CodeInvalidAddress,
			field: "beneficiary"},
		{name: "wrong checksum", body: pair(u, `"0xfb6916095ca1df60bB79Ce92cE3Ea74c37c5d359"`), status: 400,
			code: appliance.CodeInvalidChecksum, field: "beneficiary"},
		{name: "zero address", body: pair(`"0x`+strings.Repeat("0", 40)+`"`, b), status: 400,
			code: appliance.CodeZeroAddress, field: "unspendableAddress"},
	}
}

// badBodies are refused because of their form or size.
func badBodies() []badInput {
	u, b := `"`+unspendable+`"`, `"`+beneficiary+`"`
	return []badInput{
		{name: "nothing", body: " ", status: 400, code: appliance.CodeInvalidJSON},
		{name: "not JSON", body: "unspendableAddress=0x00", status: 400, code: appliance.CodeInvalidJSON},
		{name: "half an object", body: `{"unspendableAddress":` + u, status: 400, code: appliance.CodeInvalidJSON},
		{name: "trailing comma", body: `{"unspendableAddress":` + u + `,"beneficiary":` + b + `,}`, status: 400,
			code: appliance.CodeInvalidJSON},
		{name: "a second object", body: good + good, status: 400, code: appliance.CodeInvalidJSON},
		{name: "trailing text", body: good + "x", status: 400, code: appliance.CodeInvalidJSON},
		{name: "a NUL behind", body: good + "\x00", status: 400, code: appliance.CodeInvalidJSON},
		{name: "a byte order mark", body: "\ufeff" + good, status: 400, code: appliance.CodeInvalidJSON},
		{name: "single quotes", body: strings.ReplaceAll(good, `"`, "'"), status: 400, code: appliance.CodeInvalidJSON},
		{name: "a comment", body: good + "// hello", status: 400, code: appliance.CodeInvalidJSON},
		{name: "an array", body: "[" + good + "]", status: 400, code: appliance.CodeInvalidJSON},
		{name: "a string", body: u, status: 400, code: appliance.CodeInvalidJSON},
		{name: "null", body: "null", status: 400, code: appliance.CodeInvalidJSON},
		{name: "a number", body: "7", status: 400, code: appliance.CodeInvalidJSON},
		{name: "invalid UTF-8 in a value", body: pair("\"0x\xff\"", b), status: 400, code: appliance.CodeInvalidJSON},
		{name: "invalid UTF-8 in a name", body: "{\"\xff\":1}", status: 400, code: appliance.CodeInvalidJSON},
		{name: "deep nesting", body: strings.Repeat("[", 12000), status: 400, code: appliance.CodeInvalidJSON},

		{name: "unknown member", body: `{"amount":1,` + good[1:], status: 400, code: appliance.CodeUnknownField,
			field: "amount"},
		{name: "unknown member last", body: good[:len(good)-1] + `,"x":{}}`, status: 400,
			code: appliance.CodeUnknownField, field: "x"},
		{name: "another case", body: strings.Replace(good, "beneficiary", "Beneficiary", 1), status: 400,
			code: appliance.CodeUnknownField, field: "Beneficiary"},
		{name: "a name that folds to it", body: strings.Replace(good, "unspendable", "un\u017fpendable", 1),
			status: 400, code: appliance.CodeUnknownField, field: "un\u017fpendableAddress"},
		{name: "a long name", body: `{"` + strings.Repeat("é", 5000) + `":1}`, status: 400,
			code: appliance.CodeUnknownField, field: strings.Repeat("é", 32) + "…"},
		{name: "an empty name", body: `{"":1}`, status: 400, code: appliance.CodeUnknownField},

		{name: "no members", body: "{}", status: 400, code: appliance.CodeMissingField, field: "unspendableAddress"},
		{name: "no unspendable address", body: `{"beneficiary":` + b + `}`, status: 400,
			code: appliance.CodeMissingField, field: "unspendableAddress"},
		{name: "no beneficiary", body: `{"unspendableAddress":` + u + `}`, status: 400,
			code: appliance.CodeMissingField, field: "beneficiary"},

		{name: "a member twice", body: good[:len(good)-1] + `,"beneficiary":` + b + `}`, status: 400,
			code: appliance.CodeDuplicateField, field: "beneficiary"},
		{name: "a member twice, once escaped", body: good[:len(good)-1] + `,"b\u0065neficiary":` + u + `}`, status: 400,
			code: appliance.CodeDuplicateField, field: "beneficiary"},

		{name: "null beneficiary", body: pair(u, "null"), status: 400, code: appliance.CodeInvalidField,
			field: "beneficiary"},
		{name: "number", body: pair("12", b), status: 400, code: appliance.CodeInvalidField,
			field: "unspendableAddress"},
		{name: "boolean", body: pair(u, "true"), status: 400, code: appliance.CodeInvalidField, field: "beneficiary"},
		{name: "array", body: pair(u, "["+b+"]"), status: 400, code: appliance.CodeInvalidField, field: "beneficiary"},
		{name: "object", body: pair("{}", b), status: 400, code: appliance.CodeInvalidField,
			field: "unspendableAddress"},

		{name: "1 byte over the limit", body: good + strings.Repeat(" ", 16<<10-len(good)+1), status: 413,
			code: api.CodeBodyTooLarge},
		{name: "1 MB", body: strings.Repeat("a", 1<<20), status: 413, code: api.CodeBodyTooLarge},
	}
}

// badKeys are refused because of their API key.
func badKeys(r *rig) []badInput {
	const token = "x-api-key"
	expired, _ := r.newKey(appliance.KeyRequest{Expires: r.clock.Now().Add(time.Hour)})
	revoked, id := r.newKey(appliance.KeyRequest{})
	_, err := r.attestor.Keys.Revoke(context.Background(), id, r.clock.Now())
	r.must(err)
	reader, _ := r.newKey(appliance.KeyRequest{Scopes: []appliance.Scope{appliance.ScopeGraphQL}})
	elsewhere, _ := r.newKey(appliance.KeyRequest{AllowFrom: []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")}})
	r.clock.move(time.Hour)
	other := strings.Replace(r.token, r.key, "aaaaaaaaaaaaaaaa", 1)
	wrong := r.token[:len(r.token)-1] + string('0'+('1'-r.token[len(r.token)-1])&1)
	return []badInput{
		{name: "no key", drop: token, status: 401, code: appliance.CodeMissingAPIKey},
		{name: "empty key", headers: []string{token, ""}, status: 401, code: appliance.CodeMissingAPIKey},
		{name: "malformed key", headers: []string{token, "hunter2"}, status: 401, code: appliance.CodeInvalidAPIKey},
		{name: "half a key", headers: []string{token, r.token[:40]}, status: 401, code: appliance.CodeInvalidAPIKey},
		{name: "unknown key", headers: []string{token, other}, status: 401, code: appliance.CodeInvalidAPIKey},
		{name: "wrong secret", headers: []string{token, wrong}, status: 401, code: appliance.CodeInvalidAPIKey},
		{name: "bearer", headers: []string{token, "", "Authorization", "Bearer " + r.token}, status: 401,
			code: appliance.CodeMissingAPIKey},
		{name: "two keys", headers: []string{token, r.token, token, r.token}, status: 401,
			code: appliance.CodeInvalidAPIKey},
		{name: "key in the query", path: attestPath + "?x-api-key=" + r.token, drop: token, status: 401,
			code: appliance.CodeMissingAPIKey},
		{name: "revoked key", headers: []string{token, revoked}, status: 403, code: appliance.CodeAPIKeyRevoked},
		{name: "expired key", headers: []string{token, expired}, status: 403, code: appliance.CodeAPIKeyExpired},
		{name: "key of another scope", headers: []string{token, reader}, status: 403,
			code: appliance.CodeScopeRequired},
		{name: "key from elsewhere", headers: []string{token, elsewhere}, status: 403,
			code: appliance.CodeAddressNotAllowed},
		{name: "a forged X-Forwarded-For", headers: []string{token, elsewhere, "X-Forwarded-For", "203.0.113.9"},
			status: 403, code: appliance.CodeAddressNotAllowed},
		{name: "no key and a large body", drop: token, body: strings.Repeat("a", 1<<20), status: 401,
			code: appliance.CodeMissingAPIKey},
		{name: "no key and a bad body", drop: token, body: "{", status: 401, code: appliance.CodeMissingAPIKey},
		{name: "read back without a key", method: "GET", path: attestPath + "/018f4e3a-0000-7000-8000-000000000000",
			drop: token, status: 401, code: appliance.CodeMissingAPIKey},
	}
}

// badRequests are refused because of their headers, method or path.
func badRequests() []badInput {
	const kind, idempotency = "Content-Type", "Idempotency-Key"
	return []badInput{
		{name: "no content type", drop: kind, status: 415, code: api.CodeUnsupportedMediaType},
		{name: "form", headers: []string{kind, "application/x-www-form-urlencoded"}, status: 415,
			code: api.CodeUnsupportedMediaType},
		{name: "multipart form", headers: []string{kind, "multipart/form-data; boundary=x"}, status: 415,
			code: api.CodeUnsupportedMediaType},
		{name: "text", headers: []string{kind, "text/plain"}, status: 415, code: api.CodeUnsupportedMediaType},
		{name: "another JSON", headers: []string{kind, "application/ld+json"}, status: 415,
			code: api.CodeUnsupportedMediaType},
		{name: "JSON as a parameter", headers: []string{kind, "text/plain; a=application/json"}, status: 415,
			code: api.CodeUnsupportedMediaType},
		{name: "UTF-16", headers: []string{kind, "application/json; charset=utf-16"}, status: 415,
			code: api.CodeUnsupportedMediaType},
		{name: "gzip", headers: []string{kind, "application/json", "Content-Encoding", "gzip"}, status: 415,
			code: api.CodeUnsupportedMediaType},
		{name: "wrong type and a large body", headers: []string{kind, "text/plain"}, body: strings.Repeat("a", 1<<20),
			status: 415, code: api.CodeUnsupportedMediaType},

		{name: "empty idempotency key", headers: []string{idempotency, ""}, status: 400,
			code: appliance.CodeInvalidIdempotencyKey},
		{name: "long idempotency key", headers: []string{idempotency, strings.Repeat("k", 256)}, status: 400,
			code: appliance.CodeInvalidIdempotencyKey},
		{name: "space in the idempotency key", headers: []string{idempotency, "a b"}, status: 400,
			code: appliance.CodeInvalidIdempotencyKey},
		{name: "two idempotency keys", headers: []string{idempotency, "a", idempotency, "a"}, status: 400,
			code: appliance.CodeInvalidIdempotencyKey},

		{name: "GET", method: "GET", status: 405, code: api.CodeMethodNotAllowed},
		{name: "PUT", method: "PUT", status: 405, code: api.CodeMethodNotAllowed},
		{name: "DELETE", method: "DELETE", status: 405, code: api.CodeMethodNotAllowed},
		{name: "a method that is none", method: "BREW", status: 405, code: api.CodeMethodNotAllowed},
		{name: "POST of a record", path: attestPath + "/018f4e3a-0000-7000-8000-000000000000", status: 405,
			code: api.CodeMethodNotAllowed},
		{name: "a large body by PUT", method: "PUT", body: strings.Repeat("a", 1<<20), status: 405,
			code: api.CodeMethodNotAllowed},
		{name: "trailing slash", path: attestPath + "/", status: 404, code: appliance.CodeNotFound},
		{name: "another case", path: "/Functions/v1/attest", status: 404, code: appliance.CodeNotFound},
		{name: "elsewhere", path: "/elsewhere", status: 404, code: appliance.CodeNotFound},
		{name: "path traversal", path: "/functions/v1/../v1/attest", status: 404, code: appliance.CodeNotFound},
		{name: "a large body elsewhere", path: "/x", body: strings.Repeat("a", 1<<20), status: 404,
			code: appliance.CodeNotFound},

		{name: "id that is none", method: "GET", path: attestPath + "/1", status: 400, code: appliance.CodeInvalidID},
		{name: "id in braces", method: "GET", path: attestPath + "/%7B018f4e3a-0000-7000-8000-000000000000%7D",
			status: 400, code: appliance.CodeInvalidID},
		{name: "id that was never", method: "GET", path: attestPath + "/018f4e3a-0000-7000-8000-000000000000",
			status: 404, code: appliance.CodeNotFound},
	}
}

func TestBadInputIsRefusedWithItsCodeAndSignsNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	table := append(badBodies(), badAddresses()...)
	table = append(table, badKeys(r)...)
	table = append(table, badRequests()...)
	for _, in := range table {
		t.Run(in.name, func(t *testing.T) { in.check(t, r) })
	}
	if n := r.size(); n != 0 {
		t.Errorf("%d attestations were recorded", n)
	}
	r.checkLogs()
	if a := r.attest(); a.status != 200 {
		t.Errorf("and then a good request: %s", a)
	}
}

func (in badInput) check(t *testing.T, r *rig) {
	method, path, body := in.method, in.path, in.body
	if method == "" {
		method = "POST"
	}
	if path == "" {
		path = attestPath
	}
	if body == "" {
		body = good
	}
	if method == "GET" {
		body = ""
	}
	before := r.size()
	a := r.do(method, path, body, in.allHeaders(r)...)
	p := a.problem()
	if a.status != in.status || p.Code != in.code || p.Field != in.field {
		t.Errorf("%s\nwant %d %s, field %q", a, in.status, in.code, in.field)
	}
	if p.Type != "about:blank" || p.Status != a.status || p.Title != http.StatusText(in.status) || p.Detail == "" ||
		p.RequestID != a.header.Get("X-Request-Id") || p.RequestID == "" {
		t.Errorf("not a whole problem: %s", a)
	}
	if a.header.Get("Cache-Control") != "no-store" {
		t.Error("a problem may be cached")
	}
	if (a.header.Get("WWW-Authenticate") != "") != (a.status == 401) {
		t.Errorf("WWW-Authenticate: %q", a.header.Get("WWW-Authenticate"))
	}
	if (a.header.Get("Allow") != "") != (a.status == 405) {
		t.Errorf("Allow: %q", a.header.Get("Allow"))
	}
	if n := r.size(); n != before {
		t.Errorf("it was signed")
	}
}

// allHeaders returns the headers of a good request, with the changes of the case.
func (in badInput) allHeaders(r *rig) []string {
	headers := in.headers
	for _, standard := range [][2]string{{"x-api-key", r.token}, {"Content-Type", "application/json"}} {
		set := standard[0] == in.drop
		for i := 0; i < len(in.headers); i += 2 {
			set = set || in.headers[i] == standard[0]
		}
		if !set {
			headers = append(headers, standard[0], standard[1])
		}
	}
	return headers
}

// checkLogs fails the test if the logs contain secrets or addresses.
func (r *rig) checkLogs() {
	r.Helper()
	logged := strings.ToLower(r.logs.String())
	secret := r.token[strings.LastIndex(r.token, "_")+1:]
	for _, never := range []string{secret, r.token, unspendable[2:], beneficiary[2:], "hunter2", "x-api-key",
		"vitalik"} {
		if strings.Contains(logged, strings.ToLower(never)) {
			r.Errorf("the log has %q", never)
		}
	}
	if !strings.Contains(logged, `"key_id":"`+r.key+`"`) || !strings.Contains(logged, `"code":"invalid_json"`) {
		r.Error("the log lacks key ids or codes")
	}
}
