package api_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/valyala/fasthttp"
	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/attestd/attestd/api"
	"github.com/attestd/attestd/appliance"
)

func TestAnAttestationIsAnsweredAsTheInterfaceSays(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	a := r.attest("X-Request-Id", "order-7.b")
	if a.status != 200 || a.header.Get("Content-Type") != "application/json" || a.header.Get("X-Request-Id") != "order-7.b" {
		t.Fatal(a, a.header)
	}
	var members map[string]json.RawMessage
	r.must(json.Unmarshal(a.body, &members))
	for _, name := range []string{"id", "hash", "signature", "signerAddress"} {
		if _, has := members[name]; !has {
			t.Errorf("no %s in %s", name, a)
		}
	}
	if len(members) != 4 {
		t.Errorf("other members in %s", a)
	}
	attestation := r.parse(a)
	r.must(attestation.Verify())
	if standard, err := json.Marshal(attestation); err != nil || string(standard) != string(a.body) {
		t.Errorf("%s\nencoding/json writes %s, %v", a, standard, err)
	}
	request, err := api.ParseRequest([]byte(good))
	r.must(err)
	if attestation.Hash != r.attestor.Scheme.Digest(request) || attestation.SignerAddress != r.attestor.Signer.Address() {
		t.Errorf("of other addresses or another key: %s", a)
	}
	if r.size() != 1 {
		t.Error("it is not in the journal")
	}
}

func (r *rig) parse(a answer) appliance.Attestation {
	r.Helper()
	if a.status != 200 {
		r.Fatal(a)
	}
	var attestation appliance.Attestation
	r.must(json.Unmarshal(a.body, &attestation))
	return attestation
}

func TestUsualWaysToSayJSONAreAccepted(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	spaced := strings.NewReplacer(",", " ,\n\t", ":", " : ").Replace(good) + "\r\n"
	escaped := strings.Replace(good, "beneficiary", `benefici\u0061ry`, 1)
	full := good + strings.Repeat(" ", 16<<10-len(good))
	for _, body := range []string{good, spaced, escaped, full, strings.ReplaceAll(good, beneficiary, strings.ToLower(beneficiary))} {
		for _, kind := range []string{"application/json", "application/json; charset=utf-8", "Application/JSON;charset=UTF-8", `application/json; charset="utf-8"`} {
			if a := r.do("POST", attestPath, body, "X-API-Key", r.token, "Content-Type", kind); a.status != 200 {
				t.Errorf("%s of %d bytes: %s", kind, len(body), a)
			}
		}
	}
}

func TestReadingBackProvesTheRecordFromTheAnswerAlone(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for range 5 {
		r.attest()
	}
	made := r.parse(r.attest())
	r.attest()
	a := r.do("GET", attestPath+"/"+made.ID.String(), "", "x-api-key", r.token)
	var back struct {
		appliance.Attestation
		UnspendableAddress, Beneficiary, Scheme string
		Time                                    time.Time
		Leaf                                    []byte
		Proof                                   struct {
			Index, TreeSize int64
			LeafHash        []byte
			Hashes          [][]byte
			Checkpoint      string
		}
	}
	r.must(json.Unmarshal(a.body, &back))
	if back.Attestation != made || back.UnspendableAddress != unspendable || back.Beneficiary != beneficiary || back.Scheme != "keccak256-bn254" || back.Time.IsZero() {
		t.Errorf("it is not what was attested: %s", a)
	}
	record, err := appliance.DecodeLeaf(back.Leaf)
	if err != nil || record.Attestation != made {
		t.Errorf("the leaf is of another: %s, %v", back.Leaf, err)
	}

	var about struct {
		Log struct{ Origin, VerifierKey string }
	}
	r.must(json.Unmarshal(r.do("GET", "/functions/v1/attestor", "").body, &about))
	verifier, err := note.NewVerifier(about.Log.VerifierKey)
	r.must(err)
	opened, err := note.Open([]byte(back.Proof.Checkpoint), note.VerifierList(verifier))
	r.must(err)
	lines := strings.Split(opened.Text, "\n")
	root, err := tlog.ParseHash(lines[2])
	r.must(err)
	if lines[0] != about.Log.Origin || lines[1] != fmt.Sprint(back.Proof.TreeSize) {
		t.Errorf("checkpoint of another log or tree: %q", opened.Text)
	}
	var path tlog.RecordProof
	for _, h := range back.Proof.Hashes {
		path = append(path, tlog.Hash(h))
	}
	if err := tlog.CheckRecord(path, back.Proof.TreeSize, root, back.Proof.Index, tlog.RecordHash(back.Leaf)); err != nil {
		t.Error(err)
	}
}

func TestAnotherAPIKeysAttestationIsNotFound(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	made := r.parse(r.attest())
	theirs, _ := r.newKey(appliance.KeyRequest{})
	a := r.do("GET", attestPath+"/"+made.ID.String(), "", "x-api-key", theirs)
	never := r.do("GET", attestPath+"/"+uuid.NewString(), "", "x-api-key", theirs)
	if a.status != 404 || a.problem().Code != appliance.CodeNotFound || never.status != 404 {
		t.Errorf("%s, and one that never was: %s", a, never)
	}
}

func TestAnyoneLearnsWhoSigns(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	a := r.do("GET", "/functions/v1/attestor", "")
	want := fmt.Sprintf(`{"signerAddress":%q,"publicKey":"0x%s","scheme":"keccak256-bn254","log":{"origin":"test.example/log","verifierKey":%q}}`,
		r.attestor.Signer.Address(), hex.EncodeToString(r.attestor.Signer.PublicKey()), r.log.VerifierText)
	if a.status != 200 || string(a.body) != want {
		t.Errorf("%s\nwant %s", a, want)
	}
}

func TestTheLogIsReadThroughTiles(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	const records = 300 // one full tile and a partial one
	var wg sync.WaitGroup
	for range 30 {
		wg.Go(func() {
			for range records / 30 {
				if a := r.attest(); a.status != 200 {
					t.Error(a)
				}
			}
		})
	}
	wg.Wait()
	a := r.do("GET", "/log/checkpoint", "")
	if a.header.Get("Content-Type") != "text/plain; charset=utf-8" {
		t.Errorf("Content-Type: %s", a.header.Get("Content-Type"))
	}
	tree, err := appliance.OpenCheckpoint(a.body, r.log.Verifier)
	r.must(err)
	if tree.N != records {
		t.Fatalf("the checkpoint is of %d records", tree.N)
	}
	hashes := tlog.TileHashReader(tree, tiles{r})
	for _, index := range []int64{0, 255, 256, records - 1} {
		proof, err := tlog.ProveRecord(tree.N, index, hashes) // checks the tiles against the root
		r.must(err)
		e := r.entry(index)
		if err := tlog.CheckRecord(proof, tree.N, tree.Hash, index, tlog.RecordHash(e.Leaf)); err != nil {
			t.Errorf("record %d: %v", index, err)
		}
	}
	r.checkTileHeaders()
}

func (r *rig) entry(index int64) (e appliance.Entry) {
	r.Helper()
	found := errors.New("found")
	err := r.attestor.Journal.Entries(context.Background(), index, func(each appliance.Entry) error { e = each; return found })
	if !errors.Is(err, found) {
		r.Fatal(err)
	}
	return e
}

func (r *rig) checkTileHeaders() {
	r.Helper()
	full, partial := r.do("GET", "/log/tile/0/000", ""), r.do("GET", "/log/tile/0/001.p/44", "")
	if full.status != 200 || len(full.body) != 8192 || !strings.Contains(full.header.Get("Cache-Control"), "immutable") || full.header.Get("Content-Type") != "application/octet-stream" {
		r.Errorf("full tile: %d, %v", full.status, full.header)
	}
	if partial.status != 200 || len(partial.body) != 44*32 || strings.Contains(partial.header.Get("Cache-Control"), "immutable") {
		r.Errorf("partial tile: %d, %v", partial.status, partial.header)
	}
	for _, none := range []string{
		"0/001", "0/001.p/45", "0/000.p/0", "0/000.p/256", "0/000.p/07", "0/0", "0/00", "0/x000/000", "0/x001/067", "00/000", "-1/000", "64/000",
		"data/000", "entries/000", "1/001", "", "0", "0/", "0/000/", "0/000.p", "0/%30%30%30", "0/000.p/1/2", "999999999999999999999/000",
	} {
		if a := r.do("GET", "/log/tile/"+none, ""); a.status != 404 || a.problem().Code != appliance.CodeNotFound {
			r.Errorf("/log/tile/%s: %s", none, a)
		}
	}
}

// tiles reads tiles over HTTP, for a standard tlog client.
type tiles struct{ *rig }

func (tiles) Height() int { return 8 }

func (t tiles) ReadTiles(want []tlog.Tile) ([][]byte, error) {
	read := make([][]byte, len(want))
	for i, tile := range want {
		a := t.do("GET", "/log/tile/"+strings.TrimPrefix(tile.Path(), "tile/8/"), "")
		if a.status != 200 {
			return nil, errors.New(a.String())
		}
		read[i] = a.body
	}
	return read, nil
}

func (tiles) SaveTiles([]tlog.Tile, [][]byte) {}

func TestAnIdempotencyKeyMakesOneAttestationEvenAtOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	const callers = 24
	var wg sync.WaitGroup
	answers := make([]answer, callers)
	for i := range callers {
		wg.Go(func() { answers[i] = r.attest("Idempotency-Key", "order-7") })
	}
	wg.Wait()
	replayed := 0
	for _, a := range answers {
		if a.status != 200 || string(a.body) != string(answers[0].body) {
			t.Errorf("%s, and another caller got %s", a, answers[0])
		}
		if a.header.Get("Idempotent-Replayed") == "true" {
			replayed++
		}
	}
	if replayed != callers-1 || r.size() != 1 {
		t.Errorf("%d replays and %d records, want %d and 1", replayed, r.size(), callers-1)
	}
	other := strings.Replace(good, beneficiary, strings.ToLower(unspendable), 1)
	a := r.do("POST", attestPath, other, "x-api-key", r.token, "Content-Type", "application/json", "Idempotency-Key", "order-7")
	if a.status != 422 || a.problem().Code != appliance.CodeIdempotencyMismatch || r.size() != 1 {
		t.Errorf("another request under the same key: %s", a)
	}
	if a := r.attest("Idempotency-Key", "order-8"); a.status != 200 || a.header.Get("Idempotent-Replayed") != "" || r.size() != 2 {
		t.Errorf("another key: %s", a)
	}
}

func TestAKeysRateIsEnforcedAndItsWaiverKept(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(o *api.Options) { o.DefaultRate = appliance.Rate{PerSecond: 2} })
	usual, _ := r.newKey(appliance.KeyRequest{})
	slow, _ := r.newKey(appliance.KeyRequest{Rate: appliance.Rate{PerSecond: 1.0 / 60}})
	as := func(token string) answer {
		return r.do("POST", attestPath, good, "x-api-key", token, "Content-Type", "application/json")
	}
	for range 2 {
		if a := as(usual); a.status != 200 {
			t.Fatal(a)
		}
	}
	if a := as(usual); a.status != 429 || a.problem().Code != appliance.CodeRateLimited || a.header.Get("Retry-After") != "1" {
		t.Errorf("the third in a second: %s, Retry-After %q", a, a.header.Get("Retry-After"))
	}
	if a := as(slow); a.status != 200 {
		t.Errorf("another key: %s", a)
	}
	if a := as(slow); a.status != 429 || a.header.Get("Retry-After") != "60" {
		t.Errorf("one a minute: %s, Retry-After %q", a, a.header.Get("Retry-After"))
	}
	for range 20 {
		if a := r.attest(); a.status != 200 {
			t.Fatalf("unlimited: %s", a)
		}
	}
	r.clock.move(time.Second)
	if a := as(usual); a.status != 200 {
		t.Errorf("a second later: %s", a)
	}
	if n := r.size(); n != 24 {
		t.Errorf("%d records, want 24", n)
	}
	r.server.SetRates(appliance.Rate{PerSecond: 100}, appliance.Rate{})
	r.clock.move(time.Second)
	as(usual) // the bucket learns its rate, and fills from now on
	r.clock.move(time.Second)
	for range 20 {
		if a := as(usual); a.status != 200 {
			t.Fatalf("at a new rate: %s", a)
		}
	}
}

func TestRequestsWithoutAValidKeyAreLimitedByAddressAndOthersAreNot(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(o *api.Options) { o.AnonymousRate = appliance.Rate{PerSecond: 3} })
	guess := func() answer {
		return r.do("POST", attestPath, good, "x-api-key", "attestd_guess", "Content-Type", "application/json")
	}
	for range 3 {
		if a := guess(); a.status != 401 {
			t.Fatal(a)
		}
	}
	if a := guess(); a.status != 429 || a.problem().Code != appliance.CodeRateLimited || a.header.Get("Retry-After") == "" {
		t.Errorf("the fourth guess: %s", a)
	}
	if a := r.do("GET", "/log/checkpoint", ""); a.status != 429 {
		t.Errorf("the log, for nobody: %s", a)
	}
	if a := r.do("GET", "/log/checkpoint", "", "x-api-key", r.token); a.status != 200 {
		t.Errorf("the log, with a key: %s", a)
	}
	if a := r.attest(); a.status != 200 {
		t.Errorf("a valid key behind the same address: %s", a)
	}
	if a := r.do("GET", "/healthz", ""); a.status != 200 {
		t.Errorf("a probe: %s", a)
	}
	r.clock.move(time.Second)
	if a := guess(); a.status != 401 {
		t.Errorf("a second later: %s", a)
	}
}

func TestABucketIsSharedByAnIPv6SubnetAndMemoryIsBounded(t *testing.T) {
	t.Parallel()
	same, other := netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8:0:1::1")
	if api.Network(same) != api.Network(netip.MustParseAddr("2001:db8::ffff:1")) || api.Network(same) == api.Network(other) {
		t.Error("IPv6 addresses are not told apart by /64")
	}
	if v4 := netip.MustParseAddr("192.0.2.1"); api.Network(v4) != v4 {
		t.Error("IPv4 addresses are not told apart")
	}
	limiter, now, one := api.NewAddressLimiter(), time.Now(), appliance.Rate{PerSecond: 1}
	if api.Take(limiter, same, one, now) != nil || api.Take(limiter, same, one, now) == nil {
		t.Error("one a second is not one a second")
	}
	for i := range 80_000 {
		_ = api.Take(limiter, netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), one, now)
	}
	if n := limiter.Len(); n > 70_000 {
		t.Errorf("%d buckets are kept", n)
	}
}

func TestXForwardedForIsBelievedAsFarAsTrustedProxiesWroteIt(t *testing.T) {
	t.Parallel()
	trusted := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8")}
	for _, c := range []struct {
		name, peer string
		forwarded  []string
		want       string
	}{
		{"a stranger's claim", "192.0.2.1", []string{"198.51.100.1"}, "192.0.2.1"},
		{"a proxy's", "10.0.0.1", []string{"198.51.100.1"}, "198.51.100.1"},
		{"a proxy's, mapped to IPv6", "::ffff:10.0.0.1", []string{"198.51.100.1"}, "198.51.100.1"},
		{"two proxies'", "10.0.0.1", []string{"198.51.100.1, 10.0.0.2"}, "198.51.100.1"},
		{"forged before the proxy's", "10.0.0.1", []string{"203.0.113.7, 198.51.100.1"}, "198.51.100.1"},
		{"in two headers", "10.0.0.1", []string{"203.0.113.7", "198.51.100.1 , 10.0.0.2"}, "198.51.100.1"},
		{"with a port", "10.0.0.1", []string{"198.51.100.1:4711"}, "198.51.100.1"},
		{"IPv6 with a port", "fd00::1", []string{"[2001:db8::9]:443"}, "2001:db8::9"},
		{"rubbish", "10.0.0.1", []string{"198.51.100.1, unknown"}, "10.0.0.1"},
		{"nothing", "10.0.0.1", nil, "10.0.0.1"},
		{"only proxies", "10.0.0.1", []string{"10.0.0.3"}, "10.0.0.3"},
	} {
		peer := net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(c.peer), 1234))
		if got := api.ClientIP(peer, c.forwarded, trusted); got.String() != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

func TestAKeyOfANetworkWorksThroughATrustedProxy(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(o *api.Options) { o.TrustedProxies = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")} })
	token, _ := r.newKey(appliance.KeyRequest{AllowFrom: []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")}})
	from := func(address string) answer {
		return r.do("POST", attestPath, good, "x-api-key", token, "Content-Type", "application/json", "X-Forwarded-For", address)
	}
	if a := from("203.0.113.9"); a.status != 200 {
		t.Error(a)
	}
	if a := from("198.51.100.1"); a.status != 403 || a.problem().Code != appliance.CodeAddressNotAllowed {
		t.Error(a)
	}
	if !strings.Contains(r.logs.String(), `"client_ip":"203.0.113.9"`) {
		t.Error("the log has not the client's address")
	}
}

func TestWhatIsUnavailableIsSaidWithRetryAfter(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	inside := errors.New("CKR_DEVICE_REMOVED on slot 7")
	unavailable := appliance.Errorf(appliance.CodeHSMUnavailable, "the HSM cannot sign").Because(inside)
	unavailable.RetryAfter = 1500 * time.Millisecond
	r.signer.fail(func() error { return unavailable })
	a := r.attest()
	if a.status != 503 || a.problem().Code != appliance.CodeHSMUnavailable || a.header.Get("Retry-After") != "2" {
		t.Errorf("%s, Retry-After %q", a, a.header.Get("Retry-After"))
	}
	ready := r.do("GET", "/readyz", "")
	if ready.status != 503 || string(ready.body) != `{"status":"unavailable","failing":{"hsm":"hsm_unavailable"}}` {
		t.Error(ready)
	}
	r.signer.fail(func() error { return errors.New("a defect with a secret in it") })
	defect := r.attest()
	if defect.status != 500 || defect.problem().Code != appliance.CodeInternal {
		t.Error(defect)
	}
	if strings.Contains(a.String()+ready.String()+defect.String(), "CKR") || strings.Contains(defect.String(), "secret") {
		t.Error("internals were shown")
	}
	if !strings.Contains(r.logs.String(), inside.Error()) {
		t.Error("the operator is not told the cause")
	}
	r.signer.fail(nil)
	if a := r.do("GET", "/readyz", ""); a.status != 200 || string(a.body) != `{"status":"ok"}` {
		t.Error(a)
	}
	if r.size() != 0 {
		t.Error("something was recorded")
	}
}

func TestARequestThatTakesTooLongIsATimeout(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(o *api.Options) { o.RequestTimeout = 20 * time.Millisecond })
	_, release := r.signer.close()
	defer release()
	if a := r.attest(); a.status != 503 || a.problem().Code != appliance.CodeTimeout || a.header.Get("Retry-After") == "" {
		t.Error(a)
	}
}

func TestAPanicIsAnsweredLoggedAndSurvived(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.signer.fail(func() error { panic("the roof is on fire") })
	if a := r.attest("X-Request-Id", "p1"); a.status != 500 || a.problem().Code != appliance.CodeInternal || a.problem().RequestID != "p1" || strings.Contains(a.String(), "roof") {
		t.Error(a)
	}
	if logged := r.logs.String(); !strings.Contains(logged, "the roof is on fire") || !strings.Contains(logged, "attest.go") {
		t.Errorf("no stack in the log: %s", logged)
	}
	r.signer.fail(nil)
	if a := r.attest(); a.status != 200 {
		t.Error(a)
	}
}

func TestHEADAndOPTIONS(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	get, head := r.do("GET", "/functions/v1/attestor", ""), r.do("HEAD", "/functions/v1/attestor", "")
	if head.status != 200 || len(head.body) != 0 || head.header.Get("Content-Length") != fmt.Sprint(len(get.body)) {
		t.Errorf("HEAD: %s %v", head, head.header)
	}
	for path, allow := range map[string]string{attestPath: "POST OPTIONS", "/healthz": "GET HEAD OPTIONS"} {
		a := r.do("OPTIONS", path, "")
		listed := strings.Join(a.header.Values("Allow"), ", ")
		for _, method := range strings.Fields(allow) {
			if !strings.Contains(listed, method) {
				t.Errorf("OPTIONS %s allows %q, not %s", path, listed, method)
			}
		}
		if a.status != 204 || a.header.Get("Access-Control-Allow-Origin") != "" {
			t.Errorf("OPTIONS %s: %s %v", path, a, a.header)
		}
	}
	if a := r.do("OPTIONS", "/nowhere", ""); a.status != 404 {
		t.Error(a)
	}
}

func TestMetricsCount(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for range 3 {
		r.attest("Idempotency-Key", "m")
	}
	r.do("POST", attestPath, good)
	r.do("GET", "/nowhere/"+uuid.NewString(), "")
	m := api.NewMetrics(r.registry)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	r.must(err)
	served := make(chan error, 1)
	go func() { served <- m.Serve(ln) }()
	a, err := r.try(http.DefaultClient, "GET", "http://"+ln.Addr().String()+"/metrics", nil)
	r.must(err)
	for _, line := range []string{
		`attestd_attestations_total 1`,
		`attestd_attestations_replayed_total 2`,
		`attestd_http_requests_total{code="200",route="/functions/v1/attest"} 3`,
		`attestd_http_requests_total{code="401",route="/functions/v1/attest"} 1`,
		`attestd_http_requests_total{code="404",route="unmatched"} 1`,
		`attestd_problems_total{code="missing_api_key"} 1`,
		`attestd_problems_total{code="not_found"} 1`,
		`attestd_http_request_duration_seconds_count{route="/functions/v1/attest"} 4`,
		`attestd_http_requests_in_flight 0`,
		`# HELP go_goroutines Number of goroutines that currently exist.`,
		`# TYPE process_open_fds gauge`,
	} {
		if !strings.Contains(string(a.body), "\n"+line+"\n") {
			t.Errorf("no line %s", line)
		}
	}
	r.must(m.Shutdown(context.Background()))
	r.must(<-served)
}

func TestShutdownFinishesWhatWasAccepted(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	entered, release := r.signer.close()
	inFlight := make(chan answer, 1)
	go func() { inFlight <- r.attest() }()
	<-entered
	down := make(chan error, 1)
	go func() { down <- r.server.Shutdown(context.Background()) }()
	r.waitRefused()
	select {
	case err := <-down:
		t.Fatalf("it did not wait: %v", err)
	default:
	}
	release()
	if a := <-inFlight; a.status != 200 || !a.last {
		t.Errorf("%s %v", a, a.header)
	}
	r.must(<-down)
	r.must(<-r.served)
	if r.size() != 1 {
		t.Error("it was not recorded")
	}
}

// waitRefused returns when the server accepts no more connections.
func (r *rig) waitRefused() {
	r.Helper()
	for until := time.Now().Add(patience); time.Now().Before(until); {
		c, err := net.Dial("tcp", r.address)
		if err != nil {
			return
		}
		c.Close()
	}
	r.Fatal("connections are still accepted")
}

func TestShutdownGivesUpWhenItsContextEnds(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	entered, release := r.signer.close()
	defer release()
	w := r.dial()
	w.send("POST " + attestPath + " HTTP/1.1\r\nHost: x\r\nX-Api-Key: " + r.token + "\r\nContent-Type: application/json\r\nContent-Length: " + fmt.Sprint(len(good)) + "\r\n\r\n" + good)
	<-entered
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := r.server.Shutdown(ctx); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if _, err := io.ReadAll(w.in); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("the connection is still there")
	}
}

func TestARequestThatComesDuringShutdownIsRefused(t *testing.T) {
	t.Parallel()
	active := make(chan struct{}, 100)
	r := newRig(t)
	second := api.New(api.Options{Attestor: r.attestor, LogVerifier: r.log.VerifierText, AnonymousRate: appliance.Unlimited, Logger: slog.New(slog.DiscardHandler)})
	second.OnState(func(_ net.Conn, state fasthttp.ConnState) {
		if state == fasthttp.StateActive {
			active <- struct{}{}
		}
	})
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	r.must(err)
	go second.Serve(ln)
	r.address = ln.Addr().String()

	w, probe := r.dial(), r.dial()
	for _, c := range []*wire{w, probe} {
		c.send("GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
		c.receive()
		<-active
		c.send("GET /log/che")
		<-active // the server has seen the next request begin
	}
	down := make(chan error, 1)
	go func() { down <- second.Shutdown(context.Background()) }()
	r.waitRefused()
	w.send("ckpoint HTTP/1.1\r\nHost: x\r\n\r\n")
	if a := w.receive(); a.status != 503 || a.problem().Code != appliance.CodeShuttingDown || !a.last || a.header.Get("Retry-After") == "" {
		t.Errorf("%s %v", a, a.header)
	}
	w.receiveEnd()
	probe.send("ckpoint HTTP/1.1\r\nHost: x\r\n\r\n")
	probe.receive()
	r.must(<-down)
}

func TestServingAfterShutdownReturnsAtOnce(t *testing.T) {
	t.Parallel()
	s := api.New(api.Options{Attestor: &appliance.Attestor{}})
	if err := s.Shutdown(context.Background()); err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Serve(ln); err != nil {
		t.Error(err)
	}
}

func TestTLSWithClientCertificatesFollowsReload(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ca := newAuthority(t)
	file := func(name string) string { return filepath.Join(dir, name) }
	ca.issue("first", file("cert.pem"), file("key.pem"))
	writePEM(t, file("ca.pem"), "CERTIFICATE", ca.certificate.Raw)
	certificates, err := api.LoadCertificates(file("cert.pem"), file("key.pem"), file("ca.pem"))
	if err != nil {
		t.Fatal(err)
	}
	r := newRig(t, func(o *api.Options) { o.TLS = certificates.Config() })
	pool := x509.NewCertPool()
	pool.AddCert(ca.certificate)
	ca.issue("client", file("client.pem"), file("client-key.pem"))
	mine, err := tls.LoadX509KeyPair(file("client.pem"), file("client-key.pem"))
	r.must(err)
	attest := func(config *tls.Config) (answer, string, error) {
		var server string
		config.RootCAs = pool
		config.VerifyConnection = func(s tls.ConnectionState) error {
			server = s.PeerCertificates[0].Subject.CommonName
			return nil
		}
		transport := &http.Transport{TLSClientConfig: config}
		defer transport.CloseIdleConnections()
		a, err := r.try(&http.Client{Transport: transport}, "POST", "https://"+r.address+attestPath, strings.NewReader(good),
			"x-api-key", r.token, "Content-Type", "application/json")
		return a, server, err
	}
	if a, server, err := attest(&tls.Config{Certificates: []tls.Certificate{mine}}); err != nil || a.status != 200 || server != "first" {
		t.Errorf("%s by %q: %v", a, server, err)
	}
	if _, _, err := attest(&tls.Config{}); err == nil {
		t.Error("no certificate was asked for")
	}
	if _, _, err := attest(&tls.Config{Certificates: []tls.Certificate{mine}, MaxVersion: tls.VersionTLS11}); err == nil {
		t.Error("TLS 1.1 is spoken")
	}

	ca.issue("second", file("cert.pem"), file("key.pem"))
	r.must(certificates.Reload())
	if a, server, err := attest(&tls.Config{Certificates: []tls.Certificate{mine}}); err != nil || a.status != 200 || server != "second" {
		t.Errorf("after reload: %s by %q: %v", a, server, err)
	}
	r.must(os.WriteFile(file("cert.pem"), []byte("rubbish"), 0o600))
	if certificates.Reload() == nil {
		t.Error("rubbish was loaded")
	}
	if a, server, err := attest(&tls.Config{Certificates: []tls.Certificate{mine}}); err != nil || a.status != 200 || server != "second" {
		t.Errorf("after a failed reload: %s by %q: %v", a, server, err)
	}
	large := strings.NewReader(strings.Repeat("a", 1<<20))
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{mine}}}
	defer transport.CloseIdleConnections()
	a, err := r.try(&http.Client{Transport: transport}, "POST", "https://"+r.address+attestPath, large, "x-api-key", r.token, "Content-Type", "application/json")
	if err != nil || a.status != 413 {
		t.Errorf("1 MB over TLS: %s, %v", a, err)
	}
}

// authority issues certificates for 127.0.0.1.
type authority struct {
	testing.TB
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

func newAuthority(t testing.TB) *authority {
	t.Helper()
	a := &authority{TB: t}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	var der []byte
	der, a.key = a.sign(template, nil)
	var err error
	if a.certificate, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	return a
}

func (a *authority) issue(name, certFile, keyFile string) {
	a.Helper()
	der, key := a.sign(&x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, a)
	writePEM(a, certFile, "CERTIFICATE", der)
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		a.Fatal(err)
	}
	writePEM(a, keyFile, "PRIVATE KEY", secret)
}

// sign makes a certificate by an issuer, nil for its own.
func (a *authority) sign(template *x509.Certificate, issuer *authority) ([]byte, *ecdsa.PrivateKey) {
	a.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.Fatal(err)
	}
	parent, signer := template, key
	if issuer != nil {
		parent, signer = issuer.certificate, issuer.key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		a.Fatal(err)
	}
	return der, key
}

func writePEM(t testing.TB, path, kind string, der []byte) {
	t.Helper()
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
}
