package daemon

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/hsm"
)

// Each loss of a token is recorded once, and so is its return.
func TestATokenIsLostAndFound(t *testing.T) {
	t.Parallel()
	w := tokenWatch{lost: make(map[int]time.Time)}
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	standings := func(ready ...bool) (all []hsm.Standing) {
		for i, r := range ready {
			s := hsm.Standing{Position: i + 1, Name: fmt.Sprint("token", i+1)}
			if s.Ready = r; !r {
				s.Reason = "no answer"
			}
			all = append(all, s)
		}
		return all
	}
	for i, test := range []struct {
		ready []bool
		want  string
	}{
		{[]bool{true, true}, ""},
		{[]bool{true, false}, "hsm_lost position:2 ready:1 token:token2 why:no answer"},
		{[]bool{true, false}, ""},
		{[]bool{false, false}, "hsm_lost position:1 ready:0 token:token1 why:no answer"},
		{[]bool{true, true},
			"hsm_found away:1s position:1 ready:2 token:token1; hsm_found away:3s position:2 ready:2 token:token2"},
		{[]bool{true, true}, ""},
	} {
		var got []string
		for _, e := range w.changes(standings(test.ready...), now.Add(time.Duration(i)*time.Second)) {
			got = append(got, string(e.Kind)+" "+strings.Trim(strings.TrimPrefix(fmt.Sprint(e.Details), "map"), "[]"))
		}
		if text := strings.Join(got, "; "); text != test.want {
			t.Errorf("look %d tells %q, not %q", i+1, text, test.want)
		}
	}
}

func TestWhatAnEventTellsOfAnErrorIsBoundedText(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"short", strings.Repeat("é", maxWhy), "\xff\xfe", "x" + strings.Repeat("é", maxWhy)} {
		e := journal.Event{Kind: journal.EventStopped, Details: map[string]string{"why": shorten(text)}}
		if err := e.Prepare(); err != nil || len(e.Details["why"]) > maxWhy+3 {
			t.Errorf("%.10q: %d bytes: %v", text, len(e.Details["why"]), err)
		}
	}
}
