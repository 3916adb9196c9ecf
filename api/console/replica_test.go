package console_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/attestd/attestd/api/client"
	"github.com/attestd/attestd/appliance/config"
	"github.com/attestd/attestd/appliance/daemon"
	"github.com/attestd/attestd/appliance/index/dataset"
	"github.com/attestd/attestd/appliance/index/follower"
	"github.com/attestd/attestd/appliance/index/follower/followertest"
)

// startFollower starts another daemon on the rig's token, with a replica that follows an upstream, until the test ends.
func (r *rig) startFollower(t testing.TB, upstream string) *rig {
	t.Helper()
	return r.startAnother(t, fmt.Sprintf("graphql: { upstream: %q }\n", upstream))
}

// startAnother starts another daemon on the rig's token, with further settings, until the test ends.
func (r *rig) startAnother(t testing.TB, more string) *rig {
	t.Helper()
	return r.startIn(t, t.TempDir(), more)
}

// startIn starts a daemon in a folder. It runs until end is called, or the test ends.
func (r *rig) startIn(t testing.TB, dir, more string) *rig {
	t.Helper()
	settings, err := r.admin.Settings(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var uri any
	for _, s := range settings {
		if s.Name == "hsm.uri" {
			uri = s.Value
		}
	}
	file := filepath.Join(dir, "attestd.yaml")
	text := fmt.Sprintf(`data_dir: %q
server: { listen: "127.0.0.1:0" }
admin: { socket: %q }
metrics: { listen: "" }
console: { listen: "127.0.0.1:0" }
hsm: { uri: %q }
%s`, filepath.Join(dir, "data"), filepath.Join(dir, "s"), uri, more)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := (&config.Source{}).LoadFile(file, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ready, ended := make(chan daemon.Ready, 1), make(chan error, 1)
	go func() {
		ended <- daemon.Serve(ctx, c, slog.New(slog.DiscardHandler),
			daemon.Options{Version: "test", Ready: func(r daemon.Ready) error {
				ready <- r
				return nil
			}})
	}()
	end := sync.OnceFunc(func() { stop(); <-ended })
	t.Cleanup(end)
	select {
	case at := <-ready:
		return &rig{url: at.Console.String(), api: "http://" + at.API.String(), admin: client.NewAdmin(c.Admin.Socket),
			socket: c.Admin.Socket, end: end}
	case err := <-ended:
		ended <- err
		t.Fatal(err)
	}
	return nil
}

// lied is an upstream with a field missing in its schema, and with a transfer that contradicts its packet.
func lied(t testing.TB) *followertest.Proxy {
	t.Helper()
	upstream := followertest.NewUpstream(t, dataset.GenerateOptions{Transfers: 200, Seed: 1, Now: time.Now()})
	proxy := followertest.NewProxy(t, upstream.URL)
	proxy.Older("v2_channel_type.sla")
	once := ""
	proxy.Lie(followertest.AlterObjects(func(object map[string]any) {
		key, _ := object["packet_hash"].(string)
		if _, amount := object["base_amount"]; amount && (once == "" || once == key) {
			once, object["base_amount"] = key, "1"
		}
	}))
	return proxy
}

// inStep waits until the replica has all rows of its upstream.
func (r *rig) inStep(t testing.TB) {
	t.Helper()
	followertest.Await(t, time.Minute, "in step", func() bool {
		s, err := r.admin.ReplicaStatus(t.Context())
		return err == nil && s.Follower != nil && s.Follower.State == follower.StateLive && s.Follower.Unverified > 0
	})
}

func TestTheReplicaIsShownAsItFollows(t *testing.T) {
	t.Parallel()
	proxy := lied(t)
	r := start(t).startFollower(t, proxy.URL())
	r.inStep(t)
	apart, err := r.admin.UnverifiedRows(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	b := r.signedIn(t, "viewer")
	var body string
	for _, want := range []string{
		`<progress max="100" value="100"`, "live", "packets", "transfers", "Lag in the past hour", proxy.URL(),
		"v2_channel_type.sla", apart.Rows[0].Key, "base_amount", "Quarantined rows",
	} {
		followertest.Await(t, time.Minute, "the page holds "+want, func() bool {
			var status int
			status, _, body = b.get("/replica")
			return status == http.StatusOK && strings.Contains(body, want)
		})
	}
	proxy.Unplug()
	followertest.Await(t, time.Minute, "the page says that the upstream fails", func() bool {
		_, _, body = b.get("/replica")
		return strings.Contains(body, "Upstream unreachable, retrying")
	})
	if !strings.Contains(body, `class="notice bad"`) {
		t.Errorf("it does not say why: %s", body)
	}
}

func TestAReplicaThatFollowsNothingSaysSo(t *testing.T) {
	t.Parallel()
	status, _, body := start(t).signedIn(t, "viewer").get("/replica")
	for _, want := range []string{"does not follow an upstream", "Contents", "transfers"} {
		if status != http.StatusOK || !strings.Contains(body, want) {
			t.Errorf("%d: the page does not hold %q", status, want)
		}
	}
}
