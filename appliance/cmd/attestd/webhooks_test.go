package main

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/attestd/attestd/appliance/daemontest"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
)

// hookReceivers are the receivers of the scripts, by their folder.
var hookReceivers sync.Map

// hookReceiver collects the types of the events that it gets. The published library verifies each.
type hookReceiver struct {
	*httptest.Server
	mu     sync.Mutex
	secret string
	down   bool
	types  []string
	ids    []string
	wrong  error
}

func (h *hookReceiver) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	h.mu.Lock()
	defer h.mu.Unlock()
	if err != nil || h.down {
		w.WriteHeader(http.StatusBadGateway)
		return
	}
	var e struct{ ID, Type string }
	_ = json.Unmarshal(body, &e)
	h.types, h.ids = append(h.types, e.Type), append(h.ids, e.ID)
	if h.secret == "" {
		return
	}
	library, err := standardwebhooks.NewWebhook(h.secret)
	if err == nil {
		err = library.Verify(body, r.Header)
	}
	if err != nil {
		h.wrong = err
	}
}

// webhook acts as a receiver:
//
//	webhook start         sets RECEIVER to its URL
//	webhook secret FILE   verifies each delivery with the secret in the file
//	webhook down          refuses deliveries
//	webhook up            accepts them
//	webhook got TYPE      waits until an event of the type came, and sets EVENT to its id
func webhook(ts *testscript.TestScript, negated bool, args []string) {
	if negated || len(args) == 0 {
		ts.Fatalf("usage: webhook start|secret|down|up|got")
	}
	if args[0] == "start" {
		h := &hookReceiver{}
		h.Server = httptest.NewServer(h)
		ts.Defer(h.Close)
		hookReceivers.Store(ts.Getenv("WORK"), h)
		ts.Setenv("RECEIVER", h.URL)
		return
	}
	found, _ := hookReceivers.Load(ts.Getenv("WORK"))
	h := found.(*hookReceiver)
	switch args[0] {
	case "secret":
		secret := strings.TrimSpace(ts.ReadFile(args[1]))
		h.mu.Lock()
		h.secret = secret
		h.mu.Unlock()
	case "down", "up":
		h.mu.Lock()
		h.down = args[0] == "down"
		h.mu.Unlock()
	case "got":
		for late := time.Now().Add(daemontest.Patience); ; time.Sleep(20 * time.Millisecond) {
			h.mu.Lock()
			types, ids, wrong := slices.Clone(h.types), slices.Clone(h.ids), h.wrong
			h.mu.Unlock()
			if wrong != nil {
				ts.Fatalf("a delivery is not verified: %v", wrong)
			}
			if i := slices.Index(types, args[1]); i >= 0 {
				ts.Setenv("EVENT", ids[i])
				return
			}
			if time.Now().After(late) {
				ts.Fatalf("no event of type %s came: %v", args[1], types)
			}
		}
	}
}

// The script webhooks.txtar runs the commands of docs/webhooks.md.
func TestTheCommandsOfWebhooksAreTyped(t *testing.T) {
	t.Parallel()
	script, err := os.ReadFile("testdata/script/webhooks.txtar")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("../../../docs/webhooks.md")
	if err != nil {
		t.Fatal(err)
	}
	commands := regexp.MustCompile("(?m)^ *# (attestd .*)$").FindAllStringSubmatch(string(text), -1)
	if len(commands) == 0 {
		t.Fatal("there are no commands")
	}
	typed := regexp.MustCompile(`\$RECEIVER|https://[a-z.]*/hooks`)
	id := regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f-]{27}`)
	for _, c := range commands {
		command, _, _ := strings.Cut(c[1], " > ")
		want := "exec " + id.ReplaceAllString(typed.ReplaceAllString(command, "$$RECEIVER"), "$$EVENT") + "\n"
		if !strings.Contains(string(script), want) {
			t.Errorf("%q is not typed", want)
		}
	}
}
