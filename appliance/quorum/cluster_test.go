package quorum

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"github.com/attestd/attestd/appliance"
)

// The next appliance of a member that is a cluster is asked if one fails, and first from then on. A refusal by the
// rules is the member's answer.
func TestTheNextApplianceOfAMemberIsAskedIfOneFails(t *testing.T) {
	t.Parallel()
	var asked []string // one request at a time
	serve := func(name string, answer http.HandlerFunc) string {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			asked = append(asked, name)
			answer(w, r)
		}))
		t.Cleanup(s.Close)
		return s.URL
	}
	problem := func(status int, code appliance.Code) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(status)
			_, _ = io.WriteString(w, fmt.Sprintf(`{"code":%q}`, code))
		}
	}
	good := func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "{}") }
	for name, c := range map[string]struct {
		first http.HandlerFunc
		code  appliance.Code
		asked []string
	}{
		"the first is good":  {good, "", []string{"first", "first"}},
		"its HSM is away":    {problem(503, appliance.CodeHSMUnavailable), "", []string{"first", "second", "second"}},
		"its policy refuses": {problem(403, appliance.CodePolicyDeny), appliance.CodePolicyDeny, []string{"first", "first"}},
		"its people are asked": {problem(403, appliance.CodeApprovalRequired), appliance.CodeApprovalRequired,
			[]string{"first", "first"}},
	} {
		asked = nil
		m := &member{Member: Member{URLs: []string{serve("first", c.first), serve("second", good)}, HTTP: http.DefaultClient},
			quorum: &Quorum{opts: Options{Timeout: time.Minute}}, slots: make(chan struct{}, 1)}
		for range 2 {
			_, err := m.fetch(t.Context(), http.MethodGet, "", "", nil)
			if f, _ := errors.AsType[*failure](err); (f == nil) != (c.code == "") || f != nil && f.code != c.code {
				t.Errorf("%s: %v", name, err)
			}
		}
		if !slices.Equal(asked, c.asked) {
			t.Errorf("%s: %v were asked, want %v", name, asked, c.asked)
		}
	}
}
