package drills

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/attestd/attestd/appliance/daemontest"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/attestd/attestd/api/client"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/store/postgres/postgrestest"
)

// reader follows the attestations of a daemon that is killed and started again.
type reader struct {
	d    *daemontest.Daemon
	last string // Last-Event-ID

	mu      sync.Mutex // protects the fields below
	ids     []string   // in the order of arrival
	repeats int
	opened  int // streams
	wrong   error
}

// run reads until ctx ends.
func (r *reader) run(ctx context.Context) {
	tick := time.NewTicker(10 * time.Millisecond) // between two attempts to connect
	defer tick.Stop()
	for index := int64(-1); ctx.Err() == nil; <-tick.C {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, r.d.URL+"/v1/events?types=attestation.*", nil)
		if err != nil {
			r.fail(err)
			return
		}
		request.Header.Set("X-Api-Key", r.d.Token)
		request.Header.Set("Last-Event-ID", r.last)
		answer, err := new(http.Transport).RoundTrip(request)
		if err != nil {
			continue // the daemon is down
		}
		if answer.StatusCode == http.StatusOK {
			index = r.read(answer.Body, index)
		}
		_ = answer.Body.Close()
	}
}

// read reads one stream. index is that of the newest event.
func (r *reader) read(stream io.Reader, index int64) int64 {
	r.mu.Lock()
	r.opened++
	r.mu.Unlock()
	var data string
	lines := bufio.NewScanner(stream)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		switch name, value, _ := strings.Cut(lines.Text(), ": "); name {
		case "data":
			data = value
		case "id":
			r.last = value
			if data != "" {
				index = r.take(data, index)
			}
			data = ""
		}
	}
	return index
}

func (r *reader) take(data string, index int64) int64 {
	var e struct {
		ID, Type string
		Data     struct{ Index int64 }
	}
	err := json.Unmarshal([]byte(data), &e)
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case err != nil || e.Type != "attestation.issued":
		r.wrong = fmt.Errorf("%s: %w", data, err)
	case slices.Contains(r.ids, e.ID):
		r.repeats++
	case e.Data.Index <= index:
		r.wrong = fmt.Errorf("leaf %d came after leaf %d", e.Data.Index, index)
	default:
		r.ids = append(r.ids, e.ID)
		return e.Data.Index
	}
	return index
}

func (r *reader) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.wrong = err
}

// A client reads the stream of a daemon that is killed a hundred times while clients attest. It gets each attestation
// once, in the order of the log.
func TestDrillAStreamLosesNoEventWhenTheDaemonIsKilled(t *testing.T) {
	t.Parallel()
	const kills, clients = 100, 4
	d := daemontest.New(t)
	t.Cleanup(d.End)
	d.Start(t)
	r := &reader{d: d, last: string(d.StreamPosition(t))}
	d.Kill(t)
	ctx, stop := context.WithCancel(t.Context())
	var reading sync.WaitGroup
	reading.Go(func() { r.run(ctx) })
	defer reading.Wait()
	defer stop()
	random, answered := rand.New(rand.NewPCG(1, 2)), 0
	for range kills {
		d.Start(t)
		answered += len(attestUntilKilled(t, d, clients, 1+random.IntN(50)))
	}
	d.Start(t)
	want := recordedIDs(t, d)
	for late := time.Now().Add(daemontest.Patience); ; <-time.After(50 * time.Millisecond) {
		r.mu.Lock()
		got, wrong, repeats, opened := slices.Clone(r.ids), r.wrong, r.repeats, r.opened
		r.mu.Unlock()
		if wrong != nil {
			t.Fatal(wrong)
		}
		if slices.Equal(got, want) {
			t.Logf("%d kills, %d streams, %d attestations answered, %d recorded and streamed, %d events came again", kills,
				opened, answered, len(want), repeats)
			return
		}
		if time.Now().After(late) {
			t.Fatalf("the stream had %d of %d attestations, or in another order", len(got), len(want))
		}
	}
}

// recordedIDs returns the ids of the attestations in the journal, in its order.
func recordedIDs(t *testing.T, d *daemontest.Daemon) (ids []string) {
	t.Helper()
	for line := range strings.Lines(d.Run(t, "log", "export")) {
		if journal.IsEvent([]byte(line)) {
			continue
		}
		var r struct{ ID uuid.UUID }
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatal(err)
		}
		ids = append(ids, r.ID.String())
	}
	return ids
}

// arrivals is a receiver of a webhook. It verifies each delivery and keeps the first arrivals.
type arrivals struct {
	mu     sync.Mutex // protects the fields below
	secret string
	events []arrival
	wrong  error
}

type arrival struct {
	Type, Subject string
	at            time.Time
}

func (a *arrivals) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	a.mu.Lock()
	defer a.mu.Unlock()
	library, errSecret := standardwebhooks.NewWebhook(a.secret)
	var e arrival
	if err == nil && errSecret == nil {
		if err = library.Verify(body, r.Header); err == nil {
			err = json.Unmarshal(body, &e)
		}
	}
	if err != nil {
		a.wrong = err
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	if !slices.ContainsFunc(a.events, func(o arrival) bool { return o.Type == e.Type && o.Subject == e.Subject }) {
		e.at = time.Now()
		a.events = append(a.events, e)
	}
}

// position returns the position of an event, -1 if it has not come.
func (a *arrivals) position(kind, subject string) int {
	return slices.IndexFunc(a.events, func(e arrival) bool { return e.Type == kind && e.Subject == subject })
}

// have waits until the creation and the revocation of each key came, in this order. It returns when the first event
// after a time came.
func (a *arrivals) have(t *testing.T, keys []string, after time.Time) (first time.Time) {
	t.Helper()
	missing := func() int {
		a.mu.Lock()
		defer a.mu.Unlock()
		return slices.IndexFunc(keys, func(key string) bool { return a.position("key.revoked", key) < 0 })
	}
	for late := time.Now().Add(daemontest.Patience); missing() >= 0; <-time.After(20 * time.Millisecond) {
		if time.Now().After(late) {
			t.Fatalf("the events of the API key %d of %d did not come", missing(), len(keys))
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.wrong != nil {
		t.Fatal(a.wrong)
	}
	for _, key := range keys {
		if created := a.position("key.created", key); created < 0 || created > a.position("key.revoked", key) {
			t.Errorf("the creation of the API key %s came after its revocation, or never", key)
		}
	}
	for _, e := range a.events {
		if e.at.After(after) {
			return e.at
		}
	}
	t.Fatal("no event came")
	return first
}

// makeKeys makes and revokes API keys, and returns their ids.
func makeKeys(t *testing.T, d *daemontest.Daemon, n int) (ids []string) {
	t.Helper()
	admin := client.NewAdmin(filepath.Join(d.Dir, "admin.sock"))
	defer admin.Close()
	for range n {
		key, _, err := admin.CreateKey(t.Context(), appliance.KeyRequest{Name: uuid.NewString()})
		if err == nil {
			_, err = admin.RevokeKey(t.Context(), key.ID)
		}
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, key.ID)
	}
	return ids
}

// Two appliances share a database. The one that delivers webhooks is killed, and the other one delivers: no event is
// lost, and those of one subject come in order.
func TestDrillWebhooksAreTakenOver(t *testing.T) {
	t.Parallel()
	server := postgrestest.NewServer(t, nil)
	server.Exec(t, postgrestest.Owner, "CREATE DATABASE "+clusterDatabase)
	store := daemontest.InitStore(t, server, clusterDatabase)
	delivers := daemontest.New(t)
	waits := delivers.Twin(t)
	for _, d := range []*daemontest.Daemon{delivers, waits} {
		d.Configure("ATTESTD_STORE_URL="+store, "ATTESTD_CLUSTER_NAME="+uuid.NewString()[:8],
			"ATTESTD_WEBHOOKS_ALLOW_PLAIN_HTTP=true", "ATTESTD_WEBHOOKS_ALLOW_NETWORKS=127.0.0.0/8")
		t.Cleanup(d.End)
	}
	to := &arrivals{}
	receiver := httptest.NewServer(to)
	defer receiver.Close()
	delivers.Start(t)
	secret := delivers.Run(t, "webhook", "create", "drill", "--url", receiver.URL, "--types", "key.*")
	to.mu.Lock()
	to.secret = strings.TrimSpace(secret)
	to.mu.Unlock()
	all := makeKeys(t, delivers, 1)
	to.have(t, all, time.Time{})
	waits.Start(t)
	for range 3 {
		all = append(all, makeKeys(t, waits, 10)...)
		delivers.Kill(t)
		killed := time.Now()
		all = append(all, makeKeys(t, waits, 10)...)
		t.Logf("the first delivery came %s after the kill", to.have(t, all, killed).Sub(killed).Round(time.Millisecond))
		delivers.Start(t)
		delivers, waits = waits, delivers
	}
}
