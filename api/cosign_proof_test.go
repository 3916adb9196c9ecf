package api_test

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/mod/sumdb/note"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/quorum"
)

// prove asks a member at a URL about a hash, as the watchtower of another member does.
func (r *rig) prove(member quorum.Member, hash appliance.Digest, until time.Time) (state string) {
	r.Helper()
	member.Name, member.HTTP = "geneva", http.DefaultClient
	q := quorum.New(quorum.Options{Timeout: patience, Members: []quorum.Member{member},
		Logger: slog.New(slog.DiscardHandler)})
	defer q.Close()
	proven, lacking, silent := q.Prove(r.Context(), hash, until, 1, nil)
	if len(proven)+len(lacking)+len(silent) != 1 {
		r.Errorf("one member has %d answers", len(proven)+len(lacking)+len(silent))
	}
	return strings.Join(slices.Concat(proven, lacking, silent), "") +
		map[bool]string{true: " proves"}[len(proven) > 0] +
		map[bool]string{true: " lacks"}[len(lacking) > 0]
}

// A member's journal counts for another member's watchtower by proof: with the configured key of its log, and for an
// attestation of that hash from before the redemption.
func TestAMemberProvesAnAttestationOfItsJournal(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	token, _ := r.newKey(appliance.KeyRequest{Scopes: []appliance.Scope{appliance.ScopeCosign}})
	client, _ := r.newKey(appliance.KeyRequest{})
	made := r.parse(r.cosign(token, "request-1", r.cosignBody("geneva/log", 2, nil)))
	other := r.parse(r.cosign(token, "request-2", r.cosignBody("geneva/log", 3, nil)))
	at := r.entry(0).Record.Time
	_, foreign := newAttestor(t)
	// liar answers every question with the proof of the other attestation.
	target, err := url.Parse("http://" + r.address)
	r.must(err)
	liar := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		path := "/functions/v1/cosign/" + other.Hash.String() + "?" + q.URL.RawQuery
		_, _ = w.Write(r.do("GET", path, "", "x-api-key", token).body)
	}))
	defer liar.Close()
	for name, c := range map[string]struct {
		url   string
		token string
		log   note.Verifier
		hash  appliance.Digest
		until time.Time
		want  string
	}{
		"its attestation":           {target.String(), token, r.log.Verifier, made.Hash, at.Add(1), "geneva proves"},
		"made after the redemption": {target.String(), token, r.log.Verifier, made.Hash, at, "geneva lacks"},
		"another hash": {target.String(), token, r.log.Verifier, appliance.Digest{31: 1}, at.Add(1),
			"geneva lacks"},
		"no verifier key":            {target.String(), token, nil, made.Hash, at.Add(1), "geneva"},
		"another log's verifier key": {target.String(), token, foreign.Verifier, made.Hash, at.Add(1), "geneva"},
		"a client's API key":         {target.String(), client, r.log.Verifier, made.Hash, at.Add(1), "geneva"},
		"a proof of another":         {liar.URL, token, r.log.Verifier, made.Hash, at.Add(time.Hour), "geneva"},
		"nobody there":               {"http://127.0.0.1:1", token, r.log.Verifier, made.Hash, at.Add(1), "geneva"},
	} {
		member := quorum.Member{URLs: []string{c.url}, APIKey: c.token, Log: c.log}
		if got := r.prove(member, c.hash, c.until); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func TestAQuestionForAProofIsChecked(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	token, _ := r.newKey(appliance.KeyRequest{Scopes: []appliance.Scope{appliance.ScopeCosign}})
	client, _ := r.newKey(appliance.KeyRequest{})
	const path = "/functions/v1/cosign/"
	hash := appliance.Digest{31: 1}.String()
	for name, c := range map[string]struct {
		path, token string
		code        appliance.Code
	}{
		"a client's key": {path + hash + "?until=2026-01-31T12:00:00Z", client, appliance.CodeScopeRequired},
		"no hash":        {path + "0x12?until=2026-01-31T12:00:00Z", token, appliance.CodeInvalidField},
		"no time":        {path + hash, token, appliance.CodeInvalidField},
		"unknown":        {path + hash + "?until=2026-01-31T12:00:00Z", token, appliance.CodeNotFound},
	} {
		if a := r.do("GET", c.path, "", "x-api-key", c.token); a.problem().Code != c.code {
			t.Errorf("%s: %s", name, a)
		}
	}
}
