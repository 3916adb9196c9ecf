package api_test

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"golang.org/x/mod/sumdb/note"

	"github.com/attestd/attestd/api"
	"github.com/attestd/attestd/api/openapitest"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/events"
	"github.com/attestd/attestd/appliance/index"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/store/replica"
)

// offerEvents makes a server offer streams of the journal's events.
func offerEvents(t testing.TB, most int) func(*api.Options) {
	return func(o *api.Options) {
		verifier, err := note.NewVerifier(o.LogVerifier)
		if err != nil {
			t.Fatal(err)
		}
		o.Events = &api.Events{MostPerClient: most,
			Hub: events.NewHub(events.Options{Journal: o.Attestor.Journal, Verifier: verifier,
				Attesting: o.Attestor.Active})}
	}
}

// sse reads a stream of server-sent events.
type sse struct {
	*rig
	resp *http.Response
	in   *bufio.Scanner
	id   string // of the last event

	schema *jsonschema.Schema // validates each event; nil validates none
}

// seen is an event as a client sees it.
type seen struct {
	ID, Type, Subject string
	Data              struct {
		Index      int64
		KeyID      string
		Code       string
		Status     string
		Size       int64
		Checkpoint string
	}
}

// openSSE sends a request that a stream of events answers.
func (r *rig) openSSE(req *http.Request) *sse {
	r.Helper()
	resp, err := new(http.Transport).RoundTrip(req)
	r.must(err)
	r.Cleanup(func() { resp.Body.Close() })
	if resp.StatusCode != 200 || resp.Header.Get("Content-Type") != "text/event-stream" {
		body, _ := io.ReadAll(resp.Body)
		r.Fatalf("%s %v: %s", resp.Status, resp.Header, body)
	}
	s := &sse{rig: r, resp: resp, in: bufio.NewScanner(resp.Body)}
	s.in.Buffer(nil, 1<<20)
	return s
}

// stream opens a stream, each of whose events is validated.
func (r *rig) stream(path, token, last string) *sse {
	r.Helper()
	s := r.unchecked(path, token, last)
	s.schema = openapitest.Schema(r, "openapi.yaml", "Event")
	return s
}

// unchecked opens a stream whose events are not validated.
func (r *rig) unchecked(path, token, last string) *sse {
	r.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	req, err := http.NewRequestWithContext(ctx, "GET", "http://"+r.address+path, nil)
	r.must(err)
	req.Header.Set("x-api-key", token)
	if last != "" {
		req.Header.Set("Last-Event-ID", last)
	}
	r.Cleanup(cancel)
	s := r.openSSE(req)
	s.id = last
	if data := s.block(); data != "" {
		r.Fatalf("the stream begins with an event: %s", data)
	}
	return s
}

// block reads to the next empty line and returns the data. It sets s.id.
func (s *sse) block() (data string) {
	s.Helper()
	for s.in.Scan() {
		switch name, value, _ := strings.Cut(s.in.Text(), ": "); name {
		case "":
			if value == "" && s.in.Text() == "" {
				return data
			}
		case "data":
			data += value
		case "id":
			s.id = value
		}
	}
	s.Fatalf("the stream ended: %v", s.in.Err())
	return ""
}

func (s *sse) next() (e seen) {
	s.Helper()
	for {
		if data := s.block(); data != "" {
			if s.schema != nil {
				openapitest.Check(s, s.schema, []byte(data))
			}
			s.must(json.Unmarshal([]byte(data), &e))
			return e
		}
	}
}

func (s *sse) ended() {
	s.Helper()
	for s.in.Scan() {
	}
	if err := s.in.Err(); err != nil {
		s.Errorf("the stream did not end in order: %v", err)
	}
}

func TestAStreamHasItsKeysAttestationsInTheOrderOfTheLog(t *testing.T) {
	t.Parallel()
	r := newRig(t, offerEvents(t, 10))
	other, _ := r.newKey(appliance.KeyRequest{Name: "other"})
	first, second := r.stream("/v1/events", r.token, ""), r.stream("/v1/events", other, "")
	const n = 20
	for range n {
		r.attest()
	}
	r.token = other
	r.attest()
	for i := range int64(n) {
		if e := first.next(); e.Type != "attestation.issued" || e.Data.Index != i || e.Data.KeyID != r.key ||
			e.Subject != e.ID {
			t.Fatalf("event %d: %+v", i, e)
		}
	}
	if e := second.next(); e.Data.Index != n || e.Data.KeyID == r.key {
		t.Errorf("the other key's first event: %+v", e)
	}
}

func TestAStreamResumesAfterTheLastEvent(t *testing.T) {
	t.Parallel()
	r := newRig(t, offerEvents(t, 10))
	s := r.stream("/v1/events", r.token, "")
	begun := s.id
	for range 3 {
		r.attest()
	}
	s.next()
	after := s.id
	s.resp.Body.Close()
	r.attest()
	resumed := r.stream("/v1/events", r.token, after)
	for want := int64(1); want < 4; want++ {
		if e := resumed.next(); e.Data.Index != want {
			t.Fatalf("event %d, not %d", e.Data.Index, want)
		}
	}
	begun = strings.ReplaceAll(begun, "&", "%26")
	if e := r.stream("/v1/events?last_event_id="+begun, r.token, "").next(); e.Data.Index != 0 {
		t.Errorf("after the first id: %+v", e)
	}
	if e := r.stream("/v1/events", r.token, "log=another+1a2b3c4d&next=1").next(); e.Type != "stream.gap" {
		t.Errorf("after the id of another log: %+v", e)
	}
}

// A client that is further behind than a page, and than what one write carries, gets each event once.
func TestAStreamResumesFarBehind(t *testing.T) {
	t.Parallel()
	r := newRig(t, offerEvents(t, 10))
	begun := r.stream("/v1/events", r.token, "").id
	const n = 1200
	for range n {
		_, err := r.attestor.Journal.AppendEvent(t.Context(), journal.Event{Kind: journal.EventRefused,
			Details: map[string]string{"keyId": r.key, "code": strings.Repeat("x", 200)}})
		r.must(err)
	}
	s := r.stream("/v1/events", r.token, begun)
	for want := range int64(n) {
		if e := s.next(); e.Data.Index != want {
			t.Fatalf("event %d, not %d", e.Data.Index, want)
		}
	}
}

func openReplica(t testing.TB) *replica.Store {
	t.Helper()
	data, err := replica.Open(filepath.Join(t.TempDir(), "replica.db"), replica.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { data.Close() })
	return data
}

// A transfer's changes arrive in order, without an API key, and a stream resumes after each, also at another replica.
func TestAStreamHasTheChangesOfTransfers(t *testing.T) {
	t.Parallel()
	first, second := openReplica(t), openReplica(t)
	serve := func(data *replica.Store) *rig {
		return newRig(t, func(o *api.Options) {
			verifier, err := note.NewVerifier(o.LogVerifier)
			if err != nil {
				t.Fatal(err)
			}
			o.Events = &api.Events{MostPerClient: 10, Packets: true, OpenPackets: true, Hub: events.NewHub(
				events.Options{Journal: o.Attestor.Journal, Verifier: verifier, Changes: data})}
		})
	}
	write := func(status string, to ...*replica.Store) {
		row, err := index.NewRow(index.Transfer{SortOrder: "1", PacketHash: "0xab", Status: &status,
			SourceUniversalChainID: "ethereum.1", DestUniversalChainID: "union.union-1", SendTimestamp: new(time.Now()),
			SenderCanonical: new("0xAA"), ReceiverCanonical: new("0xbb")})
		if err != nil {
			t.Fatal(err)
		}
		for _, data := range to {
			if _, err := data.Write(t.Context(), index.Batch{Rows: []index.Row{row}}); err != nil {
				t.Fatal(err)
			}
		}
	}
	write("OLD", second) // so that the log of changes of the other replica has other numbers
	r := serve(first)
	s := r.stream("/v1/events?addresses=0xaa&chains=union.union-1", "", "")
	other := r.stream("/v1/events?addresses=0xcc", "", "")
	statuses := []string{"PACKET_SEND", "PACKET_RECV", "WRITE_ACK", "PACKET_ACK"}
	var ids []string
	for _, status := range statuses {
		write(status, first, second)
		e := s.next()
		if e.Type != "transfer.updated" || e.Subject != "0xab" || e.Data.Status != status || e.ID != "0xab/0/"+status {
			t.Fatalf("after %s: %+v", status, e)
		}
		ids = append(ids, s.id)
	}
	resumed := r.stream("/v1/events", "", ids[0])
	for _, status := range statuses[1:] {
		if e := resumed.next(); e.Data.Status != status {
			t.Errorf("resumed: %+v, not %s", e, status)
		}
	}
	elsewhere := serve(second).stream("/v1/events?types=transfer.*", "", ids[1])
	got := map[string]bool{}
	for !got["PACKET_ACK"] {
		got[elsewhere.next().Data.Status] = true
	}
	if !got["WRITE_ACK"] {
		t.Error("a change is lost at the other replica")
	}
	if data := other.block(); data != "" {
		t.Errorf("another address's stream: %s", data)
	}
}

func TestStreamsAreFiltered(t *testing.T) {
	t.Parallel()
	r := newRig(t, offerEvents(t, 10))
	s := r.stream("/v1/events?addresses="+beneficiary, r.token, "")
	none := r.stream("/v1/events?addresses=0x0000000000000000000000000000000000000001", r.token, "")
	begun := none.id
	r.attest()
	if e := s.next(); e.Data.Index != 0 {
		t.Errorf("%+v", e)
	}
	if none.block() != "" { // a heartbeat
		t.Error("an event passed the filter")
	}
	if none.id == begun {
		t.Error("the heartbeat's id does not move past the events that were left out")
	}
}

func TestStreamsThatAreRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t, offerEvents(t, 2))
	cosigner, _ := r.newKey(appliance.KeyRequest{Name: "cosigner", Scopes: []appliance.Scope{appliance.ScopeCosign}})
	for _, test := range []struct {
		path, token, last string
		status            int
		code              appliance.Code
	}{
		{"/v1/events", "", "", 401, appliance.CodeMissingAPIKey},
		{"/v1/events", "attestd_x_y", "", 401, appliance.CodeInvalidAPIKey},
		{"/v1/events", cosigner, "", 403, appliance.CodeScopeRequired},
		{"/v1/events?types=key.created", r.token, "", 403, appliance.CodeScopeRequired},
		{"/v1/events?types=transfer.*", r.token, "", 403, appliance.CodeScopeRequired}, // there is no replica
		{"/v1/events?types=nothing", r.token, "", 400, appliance.CodeInvalidField},
		{"/v1/events", r.token, "17", 400, appliance.CodeInvalidField},
		{"/v1/events", r.token, "log=x&next=-1", 400, appliance.CodeInvalidField},
	} {
		headers := []string{"x-api-key", test.token}
		if test.last != "" {
			headers = append(headers, "Last-Event-ID", test.last)
		}
		if a := r.do("GET", test.path, "", headers...); a.status != test.status || a.problem().Code != test.code {
			t.Errorf("%+v: %s", test, a)
		}
	}
	if a := r.do("HEAD", "/v1/events", "", "x-api-key", r.token); a.status != 200 {
		t.Errorf("HEAD: %s", a)
	}
	first := r.stream("/v1/events", r.token, "")
	r.stream("/v1/events", r.token, "")
	a := r.do("GET", "/v1/events", "", "x-api-key", r.token)
	if a.status != 429 || a.problem().Code != api.CodeTooManyStreams || a.header.Get("Retry-After") == "" {
		t.Errorf("a third stream: %s", a)
	}
	first.resp.Body.Close() // the server has not written since then
	for until := time.Now().Add(patience); ; {
		if a := r.do("HEAD", "/v1/events", "", "x-api-key", r.token); a.status == 200 {
			break
		}
		if time.Now().After(until) {
			t.Fatal("a stream whose client has left still counts")
		}
	}
}

func TestTheEndOfAKeyEndsItsStream(t *testing.T) {
	t.Parallel()
	r := newRig(t, offerEvents(t, 10))
	token, id := r.newKey(appliance.KeyRequest{Name: "revoked"})
	s := r.stream("/v1/events", token, "")
	_, err := r.attestor.Journal.AppendEvent(t.Context(),
		journal.Event{Kind: journal.EventKeyRevoked, Details: map[string]string{"id": id}})
	r.must(err)
	_, err = r.attestor.Keys.Revoke(t.Context(), id, r.clock.Now())
	r.must(err)
	s.ended()
	if a := r.do("GET", "/v1/events", "", "x-api-key", token); a.status != 403 {
		t.Errorf("%s", a)
	}

	expires, _ := r.newKey(appliance.KeyRequest{Name: "expires", Expires: r.clock.Now().Add(time.Hour)})
	s = r.stream("/v1/events", expires, "")
	r.clock.move(time.Hour)
	s.ended() // at the next heartbeat
}

func TestAShutdownEndsStreams(t *testing.T) {
	t.Parallel()
	r := newRig(t, offerEvents(t, 10))
	s := r.stream("/v1/events", r.token, "")
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	r.must(r.server.Shutdown(ctx))
	s.ended()
}

// A client that does not read loses its stream, and other streams and attestations go on.
func TestASlowReaderIsCut(t *testing.T) {
	t.Parallel()
	r := newRig(t, offerEvents(t, 10), func(o *api.Options) { o.WriteTimeout = shortTimeout })
	slow := r.dial()
	slow.send("GET /v1/events HTTP/1.1\r\nHost: x\r\nX-Api-Key: " + r.token + "\r\n\r\n")
	if _, err := slow.in.Peek(1); err != nil {
		t.Fatal(err)
	}
	quick := r.stream("/v1/events", r.token, "")
	index := int64(0)
	for r.metric("attestd_event_streams_cut_total") == 0 {
		for range 500 {
			_, err := r.attestor.Journal.AppendEvent(t.Context(), journal.Event{Kind: journal.EventRefused,
				Details: map[string]string{"keyId": r.key, "code": strings.Repeat("x", 8<<10)}})
			r.must(err)
		}
		for range 500 {
			if e := quick.next(); e.Data.Index != index {
				t.Fatalf("event %d, not %d", e.Data.Index, index)
			}
			index++
		}
	}
	if got := r.metric("attestd_event_streams"); got != 1 {
		t.Errorf("%v streams are open", got)
	}
}

// A forged id names entries that the log does not have, as if the client had them from an older log.
func TestAForgedIDIsAGap(t *testing.T) {
	t.Parallel()
	r := newRig(t, offerEvents(t, 10))
	begun := r.stream("/v1/events", r.token, "").id
	r.attest()
	for _, forged := range []string{
		"&from=4611686018427387904&to=4611686018427387905", "&from=0&to=4611686018427387904", "&from=1&to=1", "&to=0",
	} {
		if e := r.stream("/v1/events", r.token, begun+forged).next(); e.Type != string(events.Gap) {
			t.Errorf("%s: %+v", forged, e)
		}
	}
}

func TestNoEventIsSentAfterTheEndOfAKey(t *testing.T) {
	t.Parallel()
	r := newRig(t, offerEvents(t, 10))
	ends := map[string]func(id string){
		"revoked": func(id string) {
			_, err := r.attestor.Keys.Revoke(t.Context(), id, r.clock.Now())
			r.must(err)
		},
		"expired": func(string) { r.clock.move(time.Hour) },
	}
	for _, name := range []string{"revoked", "expired"} {
		token, id := r.newKey(appliance.KeyRequest{Name: name, Expires: r.clock.Now().Add(time.Hour)})
		s := r.stream("/v1/events", token, "")
		ends[name](id)
		_, err := r.attestor.Journal.AppendEvent(t.Context(), journal.Event{Kind: journal.EventRefused,
			Details: map[string]string{"keyId": id, "code": "x"}})
		r.must(err)
		for s.in.Scan() {
			if strings.HasPrefix(s.in.Text(), "data") {
				t.Errorf("%s: %s", name, s.in.Text())
			}
		}
	}
}
