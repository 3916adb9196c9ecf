package api_test

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/gofiber/fiber/v2"

	"github.com/attestd/attestd/api"
	"github.com/attestd/attestd/api/wire"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/journal"
)

const browsersAccept = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8"

func frontRig(t *testing.T) *rig {
	t.Helper()
	return newRig(t, func(o *api.Options) {
		o.Console = func() string { return "https://console.example.com" }
		o.Routes = []api.Route{{Method: "GET", Path: "/graphiql", Handler: func(c *fiber.Ctx) error {
			return c.SendStatus(fiber.StatusOK)
		}}}
	})
}

func (r *rig) front(t *testing.T) (l wire.Landing) {
	t.Helper()
	r.clock.move(time.Second) // the page is cached for a second
	a := r.do("GET", "/", "", "Accept", "application/json")
	if a.status != 200 || a.header.Get("Content-Type") != "application/json" ||
		!strings.Contains(a.header.Get("Vary"), "Accept") {
		t.Errorf("%s as %s, varies by %s", a, a.header.Get("Content-Type"), a.header.Get("Vary"))
	}
	if err := json.Unmarshal(a.body, &l); err != nil {
		t.Fatal(err)
	}
	return l
}

func TestTheFrontSaysWhatTheApplianceIs(t *testing.T) {
	t.Parallel()
	r := frontRig(t)
	signer := r.attestor.Signer.Address()
	if l := r.front(t); !l.Ready || l.SignerAddress != signer || l.LastAttestation != nil || l.Checkpoint == nil ||
		l.Checkpoint.Size != 0 || l.Name != "test.example/log" {
		t.Errorf("of an empty one: %+v", l)
	}
	if a := r.do("GET", "/log/proof", ""); a.status != 404 {
		t.Errorf("the proof of nothing: %s", a)
	}
	for range 5 {
		r.attest()
	}
	_, err := r.attestor.Journal.AppendEvent(context.Background(), journal.Event{Kind: journal.EventBackup})
	r.must(err)
	l := r.front(t)
	last := l.LastAttestation
	if l.Checkpoint.Size != 6 || last == nil || last.Index != 4 || last.TreeSize != 6 ||
		last.RootHash != l.Checkpoint.RootHash || last.Proof != "/log/proof" {
		t.Fatalf("%+v, %+v", l, last)
	}
	if l.Links != (wire.LandingLinks{Playground: "/graphiql", Reference: "/docs", OpenAPI: "/openapi.yaml",
		Checkpoint: "/log/checkpoint", Console: "https://console.example.com"}) {
		t.Errorf("%+v", l.Links)
	}
	r.signer.fail(func() error { return appliance.Errorf(appliance.CodeHSMUnavailable, "away") })
	if l := r.front(t); l.Ready || l.Failing["hsm"] != appliance.CodeHSMUnavailable {
		t.Errorf("without the HSM: %+v", l)
	}
}

// The published data suffices to verify the proof.
func TestTheLastAttestationsProofHolds(t *testing.T) {
	t.Parallel()
	r := frontRig(t)
	for range 7 {
		r.attest()
	}
	var last wire.LastAttestation
	r.must(json.Unmarshal(r.do("GET", "/log/proof", "").body, &last))
	tree, err := journal.OpenCheckpoint([]byte(last.Checkpoint), r.log.Verifier)
	r.must(err)
	hash := func(text string) (h tlog.Hash) {
		t.Helper()
		if n, err := hex.Decode(h[:], []byte(text)); err != nil || n != len(h) {
			t.Fatalf("%q: %v", text, err)
		}
		return h
	}
	var path tlog.RecordProof
	for _, h := range last.Path {
		path = append(path, hash(h))
	}
	if err := tlog.CheckRecord(path, tree.N, tree.Hash, last.Index, hash(last.LeafHash)); err != nil ||
		last.Index != 6 || hash(last.RootHash) != tree.Hash {
		t.Errorf("%+v: %v", last, err)
	}
	if hash(last.LeafHash) != tlog.RecordHash(r.entry(6).Leaf) {
		t.Error("the leaf is another")
	}
}

func TestTheFrontIsAPageForBrowsers(t *testing.T) {
	t.Parallel()
	r := frontRig(t)
	r.attest()
	for _, accept := range []string{browsersAccept, "*/*", ""} {
		a := r.do("GET", "/", "", "Accept", accept)
		text := string(a.body)
		if a.status != 200 || a.header.Get("Content-Type") != "text/html; charset=utf-8" || len(a.body) > 30<<10 {
			t.Errorf("%q: %d, %s, %d bytes", accept, a.status, a.header.Get("Content-Type"), len(a.body))
		}
		for _, has := range []string{r.attestor.Signer.Address().String(), "Ready", "keccak256-bn254",
			"<svg role=\"img\"", `href="/log/proof"`, `href="/docs"`, `href="/graphiql"`,
			`href="https://console.example.com"`} {
			if !strings.Contains(text, has) {
				t.Errorf("the page has no %s", has)
			}
		}
		policy := a.header.Get("Content-Security-Policy")
		if strings.Contains(policy, "unsafe") || !strings.HasPrefix(policy, "default-src 'none'; style-src 'sha256-") ||
			strings.Contains(text, unspendable) || strings.Contains(text, beneficiary) {
			t.Errorf("policy %s", policy)
		}
	}
	if a := r.do("GET", "/favicon.svg", ""); a.status != 200 || a.header.Get("Content-Type") != "image/svg+xml" {
		t.Error(a)
	}
}

// The reference lists every request of the OpenAPI description.
func TestTheReferenceTellsAll(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	a := r.do("GET", "/docs", "")
	text := string(a.body)
	if a.status != 200 || a.header.Get("Content-Type") != "text/html; charset=utf-8" ||
		strings.Contains(text, `href="http`) || strings.Contains(text, "src=") {
		t.Errorf("%d as %s", a.status, a.header.Get("Content-Type"))
	}
	parameters := strings.NewReplacer(":id", "{id}", ":hash", "{hash}", ":key", "{key}", "*", "{level}/{index}")
	for _, route := range r.server.Routes() {
		path := parameters.Replace(route.Path)
		if !strings.Contains(text, `<span class="method">`+route.Method+`</span><code>`+path+`</code>`) {
			t.Errorf("it does not tell %s %s", route.Method, path)
		}
	}
	for _, has := range []string{
		`-d &#39;{&#34;beneficiary&#34;:&#34;0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed&#34;`, "Requires an API key",
		`href="#schema-Attestation"`, `id="schema-Attestation"`,
		"<td>503</td><td><code>hsm_unavailable</code></td>",
		`{&#34;query&#34;:&#34;{ v2_stats_count { name value } }&#34;}`,
	} {
		if !strings.Contains(text, has) {
			t.Errorf("it has no %s", has)
		}
	}
	if strings.Contains(text, "ZgotmplZ") || strings.Contains(text, "$ref") {
		t.Error("something in it was not understood")
	}
}
