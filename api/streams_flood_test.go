package api_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"runtime"
	"testing"

	"github.com/attestd/attestd/api"
	"github.com/attestd/attestd/appliance"
)

// flood is 10000 with the default limits, and smaller in most runs.
var flood = flag.Int("streams", 100, "streams that TestAFloodOfStreams tries to open")

// asksForStream asks for a stream from another address of this machine. The connection stays open. ok is false if the
// server closes it without an answer.
func (r *rig) asksForStream(address, token string) (resp *http.Response, ok bool) {
	r.Helper()
	w, err := r.tryFrom(address)
	if err == nil {
		_, _ = fmt.Fprintf(w.Conn, "GET /v1/events HTTP/1.1\r\nHost: x\r\nX-Api-Key: %s\r\n\r\n", token)
		if resp, err = http.ReadResponse(w.in, nil); err == nil {
			return resp, true
		}
	}
	return nil, false
}

func refusesStream(t *testing.T, resp *http.Response, status int, code appliance.Code) {
	t.Helper()
	if resp == nil {
		t.Fatal("the connection was closed without an answer")
	}
	var p problem
	if err := json.NewDecoder(resp.Body).Decode(&p); err != nil {
		t.Fatalf("%s: %v", resp.Status, err)
	}
	if resp.StatusCode != status || p.Code != code || resp.Header.Get("Retry-After") == "" {
		t.Fatalf("%s %v %+v, want %d %s", resp.Status, resp.Header, p, status, code)
	}
}

// One address opens streams without end, then many do. Each limit has its answer, memory is bounded, and attestations
// and health are answered.
func TestAFloodOfStreams(t *testing.T) {
	perClient, perAddress, most := min(64, *flood/10), min(512, *flood/5), min(4096, *flood)
	r := newStreet(t, offerEvents(t, perClient), func(o *api.Options) {
		o.MaxConnections, o.MaxConnectionsPerAddress = most, perAddress
	})
	key := func() string {
		token, _ := r.newKey(appliance.KeyRequest{Rate: appliance.Unlimited})
		return token
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	opened, tooMany, refused := 0, 0, 0
	greedy := key()
	for range *flood {
		switch resp, ok := r.asksForStream("127.0.0.2", greedy); {
		case !ok:
			refused++
		case resp.StatusCode == 200:
			opened++
		default:
			refusesStream(t, resp, 429, api.CodeTooManyStreams)
			tooMany++
		}
	}
	if opened != perClient || opened+tooMany != perAddress || refused != *flood-perAddress {
		t.Errorf("%d opened, %d too many, %d refused", opened, tooMany, refused)
	}
	for i := 3; opened < most/2; i++ { // of many keys, from many addresses
		token := key()
		for range min(perClient, most/2-opened) {
			if resp, ok := r.asksForStream(fmt.Sprintf("127.0.0.%d", i), token); !ok || resp.StatusCode != 200 {
				t.Fatalf("stream %d: %v", opened, resp)
			}
			opened++
		}
	}
	beyond, _ := r.asksForStream("127.0.0.200", key())
	refusesStream(t, beyond, 503, appliance.CodeOverloaded)
	for range 10 {
		if a := r.attest(); a.status != 200 {
			t.Errorf("an attestation: %s", a)
		}
	}
	for _, path := range []string{"/healthz", "/readyz"} {
		if a := r.do("GET", path, ""); a.status != 200 {
			t.Errorf("%s: %s", path, a)
		}
	}
	if got := r.metric("attestd_event_streams"); got != float64(most/2) {
		t.Errorf("%v streams are open", got)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	grown := int64(after.HeapAlloc+after.StackInuse) - int64(before.HeapAlloc+before.StackInuse)
	t.Logf("%d streams on %d connections take %d KiB", most/2, most, grown>>10)
	if each := grown / int64(most); each > 96<<10 {
		t.Errorf("a connection takes %d bytes", each)
	}
}
