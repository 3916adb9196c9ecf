package support_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/attestd/attestd/appliance/support"
)

// secrets are planted in a configuration, which is invalid, and in logs.
var secrets = map[string]string{
	"PIN in a URI":         "7391824",
	"PIN":                  "pin-5550199",
	"API key":              "attestd_65vckz2x3xuysymo_0f8bab9ed1052c34040003f3f2c5cfb52d882f37f32c70f71117d90c34a49e1f",
	"database's password":  "d4tab@se-pass/word",
	"upstream's API key":   "upstream-key-0001",
	"token":                "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl",
	"webhook's secret":     "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
	"private key":          "MC4CAQAwBQYDK2VwBCIEIJ+DYvh6SEqVTm50DFtMDoQikTmiCqirVv9mWG9qfSnF",
	"log key":              "PRIVATE+KEY+example.com/attestd+1a2b3c4d+AQAB/+CDEF0123456789abcdefghijklmnopqrs",
	"client's secret":      "oidc client secret",
	"age key":              "AGE-SECRET-KEY-1QQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQ",
	"link":                 "JX3Wabcdefghijklmnop",
	"unspendable address":  "5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed",
	"digest of addresses":  "00a3b81d73982a597ba9ab30d099f2266917f79d69441e97ff23c15143f08d3d",
	"key of an RPC in URL": "alchemy0key0value",
}

func TestNoFileOfABundleHasASecret(t *testing.T) {
	t.Parallel()
	configuration := `
hsm: { uri: "pkcs11:token=x;object=attestor?pin-value=` + secrets["PIN in a URI"] + `"
  pin: ` + secrets["PIN"] + `
store: { url: "postgres://attestd:` + secrets["database's password"] + `@db.example.com/attestd" }
graphql:
  upstream_headers: ["x-api-key: ` + secrets["upstream's API key"] + `"]
console: { oidc: { client_secret: "` + secrets["client's secret"] + `" }
chain: { contracts: [ { rpc: ["https://rpc.example.com/?apikey=` + secrets["key of an RPC in URL"] + `"] } ]
`
	log := `{"msg":"login with ` + secrets["PIN"] + `","uri":"pin-value=` + secrets["PIN in a URI"] + `"}
Authorization: Bearer ` + secrets["token"] + `
postgres: connect with ` + secrets["database's password"] + `
{"header":"x-api-key: ` + secrets["upstream's API key"] + `","key":"` + secrets["API key"] + `"}
webhook ` + secrets["webhook's secret"] + ` client ` + secrets["client's secret"] + `
-----BEGIN PRIVATE KEY-----
` + secrets["private key"] + `
-----END PRIVATE KEY-----
` + secrets["log key"] + " " + secrets["age key"] + ` http://127.0.0.1:9465/link/` + secrets["link"] + `
{"unspendable":"0x` + secrets["unspendable address"] + `","hash":"0x` + secrets["digest of addresses"] + `"}
`
	var r support.Redactor
	r.Learn(configuration)
	var file bytes.Buffer
	b := support.New(&file, &r, time.Date(2026, 11, 28, 0, 0, 0, 0, time.UTC))
	for name, text := range map[string]string{"configuration": configuration, "log.txt": log} {
		if err := b.Add(name, text, nil); err != nil {
			t.Fatal(err)
		}
	}
	why := errors.New(`line 2: cannot read "` + secrets["PIN"] + `" as a list`)
	if err := b.Add("doctor.json", "", why); err != nil {
		t.Fatal(err)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	texts := read(t, &file)
	if len(texts) != 3 || !strings.Contains(texts["attestd-support/doctor.json"], "not available: line 2: cannot read") {
		t.Errorf("files: %v", texts)
	}
	for name, text := range texts {
		for what, secret := range secrets {
			if strings.Contains(strings.ToLower(text), strings.ToLower(secret)) {
				t.Errorf("%s has the %s: %s", name, what, text)
			}
		}
	}
}

func TestRedactionKeepsWhatSupportNeeds(t *testing.T) {
	t.Parallel()
	var r support.Redactor
	r.Learn("hsm: { uri: pkcs11:token=attestd;object=attestor?pin-source=file:/etc/attestd/pin }\n" +
		"backup: { passphrase_file: /etc/attestd/passphrase }\n")
	for _, text := range []string{
		"pkcs11:token=attestd;object=attestor?pin-source=file:/etc/attestd/pin",
		`{"level":"ERROR","msg":"hsm: cannot open token","request_id":"01a223c4-9088-7c2d-a4c8-e4c42ced7fb4"}`,
		"postgres://attestd@db.example.com/attestd", "passphrase_file: /etc/attestd/passphrase",
		"attestd_hsm_ready 1", "goroutine profile: total 34\n1 @ 0x47a1c1 0x43b8f2",
	} {
		if got := r.Redact(text); got != text {
			t.Errorf("%q became %q", text, got)
		}
	}
}

func read(t *testing.T, file io.Reader) map[string]string {
	t.Helper()
	z, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	texts := make(map[string]string)
	for in := tar.NewReader(z); ; {
		header, err := in.Next()
		if errors.Is(err, io.EOF) {
			return texts
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(in)
		if err != nil {
			t.Fatal(err)
		}
		texts[header.Name] = string(text)
	}
}
