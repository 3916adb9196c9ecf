package webhooks_test

import (
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
	"go.yaml.in/yaml/v3"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/appliance/webhooks"
	"github.com/attestd/attestd/store/bolt"
	"github.com/attestd/attestd/store/storetest"
)

const patience = time.Minute

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// rig is an appliance's webhooks over a real journal.
type rig struct {
	store  *bolt.Store
	key    journal.LogKey
	folder string

	mu    sync.Mutex
	clock time.Duration // ahead of the real time
}

func newRig(t *testing.T) *rig {
	t.Helper()
	key, _, err := journal.NewLogKey("example.com/attestd")
	check(t, err)
	store, err := bolt.Open(filepath.Join(t.TempDir(), "attestd.db"),
		bolt.Options{Signer: key.Signer, Verifier: key.Verifier, MinFree: 1})
	check(t, err)
	t.Cleanup(func() { _ = store.Close() })
	return &rig{store: store, key: key, folder: filepath.Join(t.TempDir(), "webhooks")}
}

func (r *rig) now() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return time.Now().Add(r.clock)
}

func (r *rig) advance(d time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.clock += d
}

// start starts the webhooks. Loopback addresses are allowed unless networks say otherwise.
func (r *rig) start(t *testing.T, networks ...string) *webhooks.Hooks {
	t.Helper()
	o := webhooks.SenderOptions{PlainHTTP: true, Version: "1.2.3", Now: r.now, Timeout: 10 * time.Second}
	if networks == nil {
		networks = []string{"127.0.0.0/8"}
	}
	for _, n := range networks {
		if n != "" {
			o.Networks = append(o.Networks, netip.MustParsePrefix(n))
		}
	}
	h := webhooks.Start(webhooks.Options{Store: webhooks.NewFolder(r.folder), Journal: r.store.Journal(),
		Verifier: r.key.Verifier, Keys: r.store.Keys(), Sender: webhooks.NewSender(o), Now: r.now,
		Logger: slog.New(slog.DiscardHandler)})
	t.Cleanup(func() { stop(h) })
	return h
}

// stop closes webhooks without sending more.
func stop(h *webhooks.Hooks) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	h.Close(ctx)
}

func (r *rig) event(t *testing.T, subject string) string {
	t.Helper()
	entry, err := r.store.Journal().AppendEvent(t.Context(), journal.Event{Kind: journal.EventKeyRevoked,
		Details: map[string]string{"id": subject}})
	check(t, err)
	return entry.Event.ID.String()
}

func create(t *testing.T, h *webhooks.Hooks, request webhooks.Request) webhooks.Webhook {
	t.Helper()
	w, err := h.New(t.Context(), request, "root")
	check(t, err)
	check(t, h.Create(t.Context(), w))
	return w
}

// receiver collects deliveries that the published library has verified.
type receiver struct {
	*httptest.Server
	mu      sync.Mutex
	secret  string
	got     []string // ids
	bodies  [][]byte
	headers []http.Header
	wrong   []error
	refuse  func(subject string) int // status; 0 accepts
}

func newReceiver(t *testing.T) *receiver {
	t.Helper()
	r := &receiver{}
	r.Server = httptest.NewServer(http.HandlerFunc(r.receive))
	t.Cleanup(r.Close)
	return r
}

func (r *receiver) receive(w http.ResponseWriter, request *http.Request) {
	body, err := io.ReadAll(request.Body)
	if err != nil {
		return
	}
	var e struct{ ID, Subject string }
	_ = json.Unmarshal(body, &e)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.refuse != nil {
		if status := r.refuse(e.Subject); status != 0 {
			w.WriteHeader(status)
			return
		}
	}
	if r.secret != "" {
		library, err := standardwebhooks.NewWebhook(r.secret)
		if err == nil {
			err = library.VerifyIgnoringTimestamp(body, request.Header)
		}
		if err != nil {
			r.wrong = append(r.wrong, err)
		}
	}
	r.got, r.bodies, r.headers = append(r.got, e.ID), append(r.bodies, body), append(r.headers, request.Header.Clone())
}

func (r *receiver) refuses(refuse func(subject string) int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.refuse = refuse
}

func (r *receiver) verifies(secret string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.secret = secret
}

func until(t *testing.T, what string, good func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for late := time.Now().Add(patience); !good(); <-tick.C {
		if time.Now().After(late) {
			t.Fatalf("not %s", what)
		}
	}
}

// has waits until an event came.
func (r *receiver) has(t *testing.T, id string) {
	t.Helper()
	until(t, "delivered: "+id, func() bool { return r.index(id) >= 0 })
}

func (r *receiver) index(id string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, got := range r.got {
		if got == id {
			return i
		}
	}
	return -1
}

func statusOf(t *testing.T, h *webhooks.Hooks, name string) webhooks.Status {
	t.Helper()
	w, s, err := h.Webhook(t.Context(), name)
	check(t, err)
	return w.Status(s)
}

// describedType returns the media type of a delivery in the description of the API.
func describedType(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../api/openapi.yaml")
	check(t, err)
	var doc struct {
		Webhooks struct {
			Event struct {
				Post struct {
					RequestBody struct{ Content map[string]any } `yaml:"requestBody"`
				}
			}
		}
	}
	check(t, yaml.Unmarshal(text, &doc))
	for media := range doc.Webhooks.Event.Post.RequestBody.Content {
		return media
	}
	t.Fatal("a delivery is not described")
	return ""
}

func TestThePublishedLibraryVerifiesADelivery(t *testing.T) {
	rig, to := newRig(t), newReceiver(t)
	rig.event(t, "before")
	h := rig.start(t)
	w := create(t, h, webhooks.Request{Name: "siem", URL: to.URL, Types: []string{"key.*"}})
	to.verifies(w.Secrets[0].Symmetric)
	id := rig.event(t, "a")
	to.has(t, id)
	if len(to.got) != 1 || len(to.wrong) > 0 {
		t.Fatalf("%d deliveries, %v", len(to.got), to.wrong)
	}
	header, body := to.headers[0], to.bodies[0]
	library, err := standardwebhooks.NewWebhook(w.Secrets[0].Symmetric)
	check(t, err)
	check(t, library.Verify(body, header)) // with the timestamp
	if header.Get("Webhook-Id") != id || header.Get("Content-Type") != describedType(t) {
		t.Errorf("%v", header)
	}

	// v1a: a signature by the Ed25519 key over the same text
	_, v1a, _ := strings.Cut(header.Get("Webhook-Signature"), " v1a,")
	signature, err := base64.StdEncoding.DecodeString(v1a)
	check(t, err)
	public, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(w.Secrets[0].Public, "whpk_"))
	check(t, err)
	signed := id + "." + header.Get("Webhook-Timestamp") + "." + string(body)
	if !ed25519.Verify(public, []byte(signed), signature) {
		t.Error("the v1a signature is wrong")
	}

	// a replay: the library refuses an old timestamp, also under a signature of the right key
	old := header.Clone()
	then := time.Now().Add(-10 * time.Minute)
	old.Set("Webhook-Timestamp", strconv.FormatInt(then.Unix(), 10))
	again, err := library.Sign(id, then, body)
	check(t, err)
	old.Set("Webhook-Signature", again)
	if err := library.Verify(body, old); err == nil {
		t.Error("an old delivery is accepted")
	}
	check(t, library.VerifyIgnoringTimestamp(body, old))
	old.Set("Webhook-Timestamp", header.Get("Webhook-Timestamp"))
	if err := library.Verify(body, old); err == nil {
		t.Error("an old signature is accepted under a new timestamp")
	}
}

func TestASubjectThatIsRefusedDelaysNoOtherAndStaysInOrder(t *testing.T) {
	rig, to := newRig(t), newReceiver(t)
	h := rig.start(t)
	create(t, h, webhooks.Request{Name: "siem", URL: to.URL})
	to.refuses(func(subject string) int {
		if subject == "bad" {
			return http.StatusInternalServerError
		}
		return 0
	})
	first, second := rig.event(t, "bad"), rig.event(t, "bad")
	to.has(t, rig.event(t, "good"))
	until(t, "waiting", func() bool { return statusOf(t, h, "siem").Waiting == 2 })
	to.refuses(nil)
	rig.advance(time.Minute)
	to.has(t, second)
	if to.index(first) > to.index(second) {
		t.Errorf("%v: %s came after %s", to.got, first, second)
	}
	until(t, "empty", func() bool { s := statusOf(t, h, "siem"); return s.Waiting == 0 && s.Failing.IsZero() })
}

func TestNothingIsLostWhenTheDaemonEndsWhileTheReceiverIsDown(t *testing.T) {
	rig, to := newRig(t), newReceiver(t)
	h := rig.start(t)
	create(t, h, webhooks.Request{Name: "siem", URL: to.URL})
	to.refuses(func(string) int { return http.StatusBadGateway })
	var ids []string
	for i := range 300 { // more than may wait
		ids = append(ids, rig.event(t, strconv.Itoa(i)))
	}
	until(t, "waiting", func() bool { return statusOf(t, h, "siem").Waiting >= 250 })
	stop(h)
	ids = append(ids, rig.event(t, "while it was down"))
	to.refuses(nil)
	h = rig.start(t)
	rig.advance(time.Hour)
	for _, id := range ids {
		to.has(t, id)
	}
}

func TestAWebhookIsDisabledAfterThreeDaysAndResumed(t *testing.T) {
	rig, to := newRig(t), newReceiver(t)
	h := rig.start(t)
	create(t, h, webhooks.Request{Name: "siem", URL: to.URL})
	to.refuses(func(string) int { return http.StatusBadGateway })
	id := rig.event(t, "a")
	until(t, "failing", func() bool { return statusOf(t, h, "siem").Failures == 1 })
	rig.advance(71 * time.Hour)
	until(t, "tried again", func() bool { return statusOf(t, h, "siem").Failures == 2 })
	if s := statusOf(t, h, "siem"); !s.Disabled.IsZero() {
		t.Fatalf("disabled too early: %+v", s)
	}
	rig.advance(2 * time.Hour)
	until(t, "disabled", func() bool { return !statusOf(t, h, "siem").Disabled.IsZero() })
	to.refuses(nil)
	check(t, h.Resume(t.Context(), "siem"))
	to.has(t, id)
	until(t, "enabled", func() bool { return statusOf(t, h, "siem").State() == webhooks.Works })
}

func TestAWebhookThatAnOperatorDisabledKeepsItsEventsAndIsNoFailure(t *testing.T) {
	rig, to := newRig(t), newReceiver(t)
	h := rig.start(t)
	create(t, h, webhooks.Request{Name: "siem", URL: to.URL})
	create(t, h, webhooks.Request{Name: "other", URL: to.URL + "/other"})
	to.refuses(func(string) int { return http.StatusBadGateway })
	waits := rig.event(t, "a")
	until(t, "failing", func() bool { return statusOf(t, h, "siem").Waiting == 1 && statusOf(t, h, "other").Waiting == 1 })
	check(t, h.Disable(t.Context(), "siem"))
	delivering := func() (s webhooks.Status) {
		for _, one := range h.Delivering() {
			if one.Name == "siem" {
				s = one
			}
		}
		return s
	}
	until(t, "disabled", func() bool { return delivering().Operator })
	stop(h)
	to.refuses(nil)
	rig.advance(100 * time.Hour)
	h = rig.start(t)
	meantime := rig.event(t, "a")
	until(t, "sent to the other", func() bool { return statusOf(t, h, "other").Delivered == 2 })
	s := delivering()
	if s.State() != webhooks.Disabled || s.Reason != webhooks.ByOperator || !s.Failing.IsZero() || s.Waiting != 1 ||
		s.Delivered != 0 {
		t.Errorf("%+v", s)
	}
	check(t, h.Resume(t.Context(), "siem"))
	until(t, "sent", func() bool { return statusOf(t, h, "siem").Delivered == 2 })
	recent, err := h.Deliveries(t.Context(), "siem")
	check(t, err)
	if recent[0].ID != meantime || recent[1].ID != waits || delivering().State() != webhooks.Works {
		t.Errorf("%+v, %s", recent, delivering().State())
	}
}

func TestAnEventThatIsRefusedForThreeDaysIsGivenUpIfOthersAreAccepted(t *testing.T) {
	rig, to := newRig(t), newReceiver(t)
	h := rig.start(t)
	create(t, h, webhooks.Request{Name: "siem", URL: to.URL})
	to.refuses(func(subject string) int {
		if subject == "bad" {
			return http.StatusBadRequest
		}
		return 0
	})
	rig.event(t, "bad")
	until(t, "failing", func() bool { return statusOf(t, h, "siem").Failures == 1 })
	rig.advance(time.Second)
	to.has(t, rig.event(t, "good"))
	rig.advance(73 * time.Hour)
	until(t, "given up", func() bool { return statusOf(t, h, "siem").GivenUp == 1 })
	if s := statusOf(t, h, "siem"); !s.Disabled.IsZero() || s.Waiting != 0 {
		t.Errorf("%+v", s)
	}
}

func TestBothSecretsSignUntilTheOverlapIsOver(t *testing.T) {
	rig, to := newRig(t), newReceiver(t)
	h := rig.start(t)
	old := create(t, h, webhooks.Request{Name: "siem", URL: to.URL}).Secrets[0].Symmetric
	rotated, err := h.Rotate(t.Context(), "siem", time.Hour)
	check(t, err)
	for _, secret := range []string{old, rotated.Secrets[0].Symmetric} {
		to.verifies(secret)
		if d, err := h.Test(t.Context(), "siem"); err != nil || d.Outcome != webhooks.Delivered {
			t.Fatalf("%+v, %v", d, err)
		}
	}
	if len(to.wrong) > 0 {
		t.Fatalf("during the overlap: %v", to.wrong)
	}
	rig.advance(time.Hour)
	to.verifies(old)
	_, err = h.Test(t.Context(), "siem")
	check(t, err)
	if len(to.wrong) != 1 {
		t.Error("the old secret signs after the overlap")
	}
}

func TestAnAPIKeyGetsOnlyItsEventsAndNoneAfterItsRevocation(t *testing.T) {
	rig, to := newRig(t), newReceiver(t)
	key, _, err := appliance.NewAPIKey(appliance.KeyRequest{Name: "payments"}, time.Now())
	check(t, err)
	check(t, rig.store.Keys().Create(t.Context(), key))
	h := rig.start(t)
	create(t, h, webhooks.Request{Name: "siem", URL: to.URL, KeyID: key.ID})
	if _, err := h.New(t.Context(), webhooks.Request{Name: "other", URL: to.URL, KeyID: key.ID,
		Types: []string{"key.*"}}, ""); appliance.CodeOf(err) != appliance.CodeScopeRequired {
		t.Errorf("types of operators: %v", err)
	}
	rig.event(t, "operators")
	e, _, err := rig.store.Journal().Append(t.Context(), storetest.Record(t, key.ID))
	check(t, err)
	to.has(t, e.Record.ID.String())
	if len(to.got) != 1 {
		t.Errorf("%v", to.got)
	}
	_, err = rig.store.Keys().Revoke(t.Context(), key.ID, time.Now())
	check(t, err)
	until(t, "disabled", func() bool { return statusOf(t, h, "siem").Reason == "its API key is revoked" })
}
