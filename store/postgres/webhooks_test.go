package postgres_test

import (
	"context"
	"testing"
	"time"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/store/postgres"
)

func definitions(t *testing.T, w postgres.Webhooks) map[string]string {
	t.Helper()
	all := make(map[string]string)
	check(t, w.Webhooks(t.Context(), func(name string, definition, state []byte) error {
		all[name] = string(definition) + " " + string(state)
		return nil
	}))
	return all
}

// One appliance at a time delivers. Another takes over when the first has not renewed its hold, and at once when the
// first ends.
func TestOneApplianceDeliversWebhooksAndAnotherTakesOver(t *testing.T) {
	url, _ := newDatabase(t)
	key := newLogKey(t)
	first, second := open(t, url, options(key)).Webhooks(), open(t, url, options(key)).Webhooks()
	holds := func(w postgres.Webhooks) bool {
		held, err := w.HoldWebhooks(t.Context())
		check(t, err)
		return held
	}
	once, again := holds(first), holds(first)
	if !once || !again || holds(second) {
		t.Fatal("not exactly the first appliance delivers")
	}
	check(t, second.CreateWebhook(t.Context(), "siem", []byte("definition"), []byte("state")))
	check(t, first.SaveWebhookState(t.Context(), "siem", []byte("by the first")))
	if second.SaveWebhookState(t.Context(), "siem", []byte("by the second")) == nil {
		t.Error("an appliance that does not deliver changed the state")
	}

	began := time.Now() // the first is dead: nothing renews its hold
	for !holds(second) {
		if time.Since(began) > 10*time.Minute { // only a hang reaches it
			t.Fatal("the second appliance does not take over")
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Logf("taken over after %s", time.Since(began).Round(time.Millisecond))
	if holds(first) || first.SaveWebhookState(t.Context(), "siem", nil) == nil {
		t.Error("the first appliance still delivers")
	}
	if got := definitions(t, second)["siem"]; got != "definition by the first" {
		t.Errorf("%q", got)
	}
	check(t, second.ReleaseWebhooks(t.Context()))
	if !holds(first) {
		t.Error("a hold that was released is not free")
	}
}

// The database's owner can neither read nor change a definition, which has the webhook's secrets.
func TestTheDatabasesOwnerCannotReadOrChangeWebhooks(t *testing.T) {
	url, d := newDatabase(t)
	store := open(t, url, options(newLogKey(t)))
	w := store.Webhooks()
	const secret = "whsec_c2VjcmV0"
	check(t, w.CreateWebhook(t.Context(), "siem", []byte(secret), []byte("{}")))
	check(t, w.CreateWebhook(t.Context(), "other", []byte("other"), []byte("{}")))
	if err := w.CreateWebhook(t.Context(), "siem", nil, []byte("{}")); appliance.CodeOf(err) != appliance.CodeInvalidField {
		t.Errorf("the same name twice: %v", err)
	}
	if got := d.Query(t, "SELECT count(*)::text FROM webhooks WHERE position('whsec'::bytea IN definition) > 0"); got != "0" {
		t.Error("the secret is in the database")
	}
	check(t, w.ChangeWebhook(t.Context(), "siem", []byte(secret+"2")))
	if got := definitions(t, w)["siem"]; got != secret+"2 {}" {
		t.Errorf("%q", got)
	}
	d.Exec(t, "UPDATE webhooks SET definition = (SELECT definition FROM webhooks WHERE name = 'other') WHERE name = 'siem'")
	if err := w.Webhooks(context.Background(), func(string, []byte, []byte) error { return nil }); err == nil {
		t.Error("another webhook's definition is accepted")
	}
	check(t, w.DeleteWebhook(t.Context(), "siem"))
	if err := w.DeleteWebhook(t.Context(), "siem"); appliance.CodeOf(err) != appliance.CodeNotFound {
		t.Errorf("%v", err)
	}
}
