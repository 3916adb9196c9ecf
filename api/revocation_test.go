package api_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/attestd/attestd/api"
	"github.com/attestd/attestd/appliance"
)

// watchedKeys signals when a key was looked up.
type watchedKeys struct {
	appliance.Keys
	found chan<- struct{}
}

func (k watchedKeys) Key(ctx context.Context, id string) (appliance.APIKey, error) {
	defer func() { k.found <- struct{}{} }()
	return k.Keys.Key(ctx, id)
}

func TestNothingIsRecordedForAKeyThatEndsWhileItsRequestIsUnderWay(t *testing.T) {
	t.Parallel()
	revoke := func(r *rig, id string) {
		_, err := r.attestor.Keys.Revoke(context.Background(), id, r.clock.Now())
		r.must(err)
	}
	for name, c := range map[string]struct {
		end  func(r *rig, id string)
		code appliance.Code
	}{
		"revoked": {revoke, appliance.CodeAPIKeyRevoked},
		"expired": {func(r *rig, _ string) { r.clock.move(time.Hour) }, appliance.CodeAPIKeyExpired},
	} {
		t.Run(name+" while its body trickles in", func(t *testing.T) {
			t.Parallel()
			authenticated := make(chan struct{}, 10)
			r := newRig(t, func(o *api.Options) { o.Attestor.Keys = watchedKeys{o.Attestor.Keys, authenticated} })
			var id string
			r.token, id = r.newKey(appliance.KeyRequest{Expires: r.clock.Now().Add(time.Hour)})
			w := r.dial()
			body := good + strings.Repeat(" ", 15<<10) // more than fasthttp reads before the key is looked up
			w.send(r.head(length(len(body))) + body[:10<<10])
			within(t, authenticated)
			c.end(r, id)
			w.send(body[10<<10:])
			if a := w.receive(); a.status != 403 || a.problem().Code != c.code {
				t.Errorf("%s, want 403 %s", a, c.code)
			}
			if r.size() != 0 {
				t.Error("it was recorded")
			}
		})
	}
	t.Run("revoked while the HSM signs", func(t *testing.T) {
		t.Parallel()
		r := newRig(t)
		token, id := r.newKey(appliance.KeyRequest{})
		entered, release := r.signer.close()
		answered := make(chan answer, 1)
		go func() {
			answered <- r.do("POST", attestPath, good, "x-api-key", token, "Content-Type", "application/json")
		}()
		within(t, entered)
		revoke(r, id)
		release()
		if a := within(t, answered); a.status != 403 || a.problem().Code != appliance.CodeAPIKeyRevoked {
			t.Errorf("%s, want 403", a)
		}
		if r.size() != 0 {
			t.Error("it was recorded")
		}
	})
}
