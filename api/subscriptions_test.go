package api_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/gofiber/fiber/v2"
	"golang.org/x/mod/sumdb/note"

	"github.com/attestd/attestd/api"
	"github.com/attestd/attestd/api/graphql"
	"github.com/attestd/attestd/api/graphql/clienttest"
	"github.com/attestd/attestd/api/graphql/graphqltest"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/events"
	"github.com/attestd/attestd/appliance/index"
	"github.com/attestd/attestd/store/replica"
)

const graphqlPath = "/v1/graphql"

// newLiveRig serves GraphQL over a replica, with subscriptions. Keys are required if keyed is set.
func newLiveRig(t testing.TB, most int, keyed bool) (*rig, *replica.Store) {
	data := openReplica(t)
	return newRig(t, func(o *api.Options) {
		verifier, err := note.NewVerifier(o.LogVerifier)
		if err != nil {
			t.Fatal(err)
		}
		o.Events = &api.Events{MostPerClient: most, Packets: true, OpenPackets: !keyed, Hub: events.NewHub(
			events.Options{Journal: o.Attestor.Journal, Verifier: verifier, Changes: data})}
		endpoint := graphqltest.New(t, graphql.Options{Index: data, Subscribe: o.Events.Subscribe, Charge: api.Charge})
		for _, method := range []string{fiber.MethodGet, fiber.MethodPost} {
			o.Routes = append(o.Routes, api.Route{Method: method, Path: graphqlPath, Scope: appliance.ScopeGraphQL,
				Open: !keyed, ReadsBody: true, EndsWithClient: true, Read: true, Handler: endpoint.Handle})
		}
	}), data
}

func writeTransfer(t testing.TB, data *replica.Store, hash, order, sender, status string) {
	t.Helper()
	row, err := index.NewRow(index.Transfer{SortOrder: order, PacketHash: hash, Status: &status,
		SourceUniversalChainID: "ethereum.1", DestUniversalChainID: "union.union-1", SendTimestamp: new(time.Now()),
		SenderCanonical: &sender, ReceiverCanonical: new("0xbb")})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := data.Write(t.Context(), index.Batch{Rows: []index.Row{row}}); err != nil {
		t.Fatal(err)
	}
}

func TestAPublishedClientFollowsTransfers(t *testing.T) {
	t.Parallel()
	clienttest.Require(t, "node", "install Node.js 18 or later (make deps)")
	clienttest.Require(t, "./graphql/clienttest/node_modules/graphql-sse", "make clients")
	r, data := newLiveRig(t, 10, false)
	writeTransfer(t, data, "0xab", "1", "0xaa", "PACKET_SEND")
	writeTransfer(t, data, "0xcd", "2", "0xcc", "PACKET_SEND")
	ctx, cancel := context.WithTimeout(t.Context(), 5*patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "node", "graphql/clienttest/subscribe.mjs", "http://"+r.address+graphqlPath)
	in, err := cmd.StdinPipe()
	r.must(err)
	out, err := cmd.StdoutPipe()
	r.must(err)
	cmd.Stderr = cmd.Stdout
	r.must(cmd.Start())
	for lines := bufio.NewScanner(out); lines.Scan(); {
		t.Log(lines.Text())
		if status, ok := strings.CutPrefix(lines.Text(), "write "); ok {
			writeTransfer(t, data, "0xcd", "2", "0xcc", status) // of another address
			writeTransfer(t, data, "0xab", "1", "0xaa", status)
			fmt.Fprintln(in, "written")
		}
	}
	r.must(cmd.Wait())
}

// subscribe sends a subscription by GET, as the browser's EventSource does.
func (r *rig) subscribe(query, token string) *sse {
	r.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	req, err := http.NewRequestWithContext(ctx, "GET",
		"http://"+r.address+graphqlPath+"?query="+url.QueryEscape(query), nil)
	r.must(err)
	req.Header.Set("Accept", "text/event-stream")
	if token != "" {
		req.Header.Set("x-api-key", token)
	}
	r.Cleanup(cancel)
	return r.openSSE(req)
}

// statuses returns the statuses of the next message's transfers.
func (s *sse) statuses() (all []string) {
	s.Helper()
	for {
		data := s.block()
		if data == "" {
			continue
		}
		var message struct {
			Data struct{ Live []struct{ Status string } }
		}
		s.must(json.Unmarshal([]byte(data), &message))
		for _, row := range message.Data.Live {
			all = append(all, row.Status)
		}
		return all
	}
}

const followAll = "subscription { live: v2_transfers(args: { p_limit: 1 }) { status } }"

func TestASubscriptionEndsWithItsKey(t *testing.T) {
	t.Parallel()
	r, data := newLiveRig(t, 10, true)
	token, id := r.newKey(appliance.KeyRequest{Name: "follower", Scopes: []appliance.Scope{appliance.ScopeGraphQL}})
	s := r.subscribe(followAll, token)
	if got := s.statuses(); len(got) != 0 {
		t.Errorf("%v", got)
	}
	writeTransfer(t, data, "0xab", "1", "0xaa", "PACKET_SEND")
	if got := s.statuses(); len(got) != 1 || got[0] != "PACKET_SEND" {
		t.Errorf("%v", got)
	}
	_, err := r.attestor.Keys.Revoke(t.Context(), id, r.clock.Now())
	r.must(err)
	writeTransfer(t, data, "0xab", "1", "0xaa", "PACKET_RECV")
	s.ended()
	if strings.Contains(s.in.Text(), "PACKET_RECV") {
		t.Error("a change was sent after the revocation")
	}
	if a := r.do("GET", graphqlPath+"?query="+url.QueryEscape(followAll), "", "x-api-key", token,
		"Accept", "text/event-stream"); a.status != 403 {
		t.Errorf("%s", a)
	}
}

func TestSubscriptionsAreLimitedAsStreams(t *testing.T) {
	t.Parallel()
	r, _ := newLiveRig(t, 2, false)
	r.subscribe(followAll, "").statuses()
	r.stream("/v1/events", "", "")
	path := graphqlPath + "?query=" + url.QueryEscape(followAll)
	a := r.do("GET", path, "", "Accept", "text/event-stream")
	if a.status != 429 || a.problem().Code != api.CodeTooManyStreams || a.header.Get("Retry-After") == "" {
		t.Errorf("a third stream: %s", a)
	}
	if a := r.do("GET", path, ""); a.status != 405 || !strings.Contains(string(a.body), "Accept: text/event-stream") {
		t.Errorf("a subscription without a stream: %s", a)
	}
}

// Each message is charged as a query. If the client may make no more queries, a change waits.
func TestTheMessagesOfASubscriptionAreCharged(t *testing.T) {
	t.Parallel()
	r, data := newLiveRig(t, 10, true)
	token, _ := r.newKey(appliance.KeyRequest{Rate: appliance.Rate{PerSecond: 2},
		Scopes: []appliance.Scope{appliance.ScopeGraphQL}})
	query := func() int {
		return r.do("GET", graphqlPath+"?query="+url.QueryEscape("{ v2_transfers { status } }"), "", "x-api-key",
			token).status
	}
	s := r.subscribe(followAll, token) // the first of two requests
	s.statuses()
	writeTransfer(t, data, "0xab", "1", "0xaa", "PACKET_SEND")
	s.statuses() // the second
	if got := query(); got != 429 {
		t.Errorf("a query after two messages: %d", got)
	}
	writeTransfer(t, data, "0xab", "1", "0xaa", "PACKET_RECV")
	r.clock.move(time.Second)
	if got := s.statuses(); len(got) != 1 || got[0] != "PACKET_RECV" { // the first of two more
		t.Errorf("the change that waited: %v", got)
	}
	if first, second := query(), query(); first != 200 || second != 429 {
		t.Errorf("after one message a second: %d, %d", first, second)
	}
}
