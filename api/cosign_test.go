package api_test

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"

	"github.com/attestd/attestd/api"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/quorum"
)

// cosignBody is a coordinator's request for the digest of two addresses.
func (r *rig) cosignBody(coordinator string, beneficiary byte, hash *appliance.Digest) string {
	r.Helper()
	pair := appliance.Request{UnspendableAddress: appliance.Address{19: 1},
		Beneficiary: appliance.Address{19: beneficiary}}
	if hash == nil {
		digest := r.attestor.Scheme.Digest(pair)
		hash = &digest
	}
	text, err := json.Marshal(quorum.Cosign{UnspendableAddress: &pair.UnspendableAddress,
		Beneficiary: &pair.Beneficiary, Hash: hash, Coordinator: coordinator})
	r.must(err)
	return string(text)
}

func (r *rig) cosign(token, id, body string) answer {
	r.Helper()
	headers := []string{"x-api-key", token, "Content-Type", "application/json"}
	if id != "" {
		headers = append(headers, "Idempotency-Key", id)
	}
	return r.do("POST", "/functions/v1/cosign", body, headers...)
}

// A member signs a coordinator's request once, even if the coordinator repeats it with another API key. A member never
// asks other members.
func TestAMemberSignsOnceForARequest(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.attestor.Cosign = func(context.Context, appliance.CosignRequest) func(appliance.Attestation) (*appliance.Quorum,
		error) {
		t.Error("a cosign request asked the other members")
		return nil
	}
	only := appliance.KeyRequest{Scopes: []appliance.Scope{appliance.ScopeCosign}}
	token, _ := r.newKey(only)
	other, _ := r.newKey(only)
	first := r.cosign(token, "request-1", r.cosignBody("geneva/log", 2, nil))
	made := r.parse(first)
	if e := r.entry(0); made.Verify() != nil || e.Record.Attestation != made || e.Record.Coordinator != "geneva/log" ||
		e.Record.IdempotencyKey != "request-1" || e.Verify() != nil {
		t.Errorf("%s, in the journal %s", first, e.Leaf)
	}
	for _, again := range []answer{
		r.cosign(token, "request-1", r.cosignBody("geneva/log", 2, nil)),
		r.cosign(other, "request-1", r.cosignBody("geneva/log", 2, nil)),
	} {
		if again.String() != first.String() {
			t.Errorf("%s, and before %s", again, first)
		}
	}
	if r.size() != 1 {
		t.Errorf("%d records of one request", r.size())
	}
	if a := r.cosign(token, "request-1", r.cosignBody("geneva/log", 3, nil)); a.status != 422 {
		t.Errorf("another request under the same id: %s", a)
	}
	if a := r.cosign(token, "request-1", r.cosignBody("tokyo/log", 2, nil)); a.status != 422 {
		t.Errorf("another coordinator with the same API key and id: %s", a)
	}
	if a := r.cosign(other, "request-1", r.cosignBody("tokyo/log", 2, nil)); a.status != 200 || r.size() != 2 {
		t.Errorf("another coordinator: %s", a)
	}
}

func TestACosignRequestIsChecked(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	token, _ := r.newKey(appliance.KeyRequest{Scopes: []appliance.Scope{appliance.ScopeCosign}})
	client, _ := r.newKey(appliance.KeyRequest{})
	good := r.cosignBody("geneva/log", 2, nil)
	for name, c := range map[string]struct {
		token, id, body string
		status          int
		code            appliance.Code
	}{
		"a client's key": {client, "1", good, 403, appliance.CodeScopeRequired},
		"no id":          {token, "", good, 400, appliance.CodeInvalidIdempotencyKey},
		"another digest": {token, "1", r.cosignBody("geneva/log", 2, &appliance.Digest{1}), 400,
			appliance.CodeInvalidField},
		"no coordinator": {token, "1", r.cosignBody("", 2, nil), 400, appliance.CodeMissingField},
		"no addresses":   {token, "1", `{"coordinator":"geneva/log"}`, 400, appliance.CodeMissingField},
		"a digest alone": {token, "1", fmt.Sprintf(`{"coordinator":"geneva/log","hash":"%s"}`, appliance.Digest{1}),
			400, appliance.CodeMissingField},
		"an unknown member": {token, "1", `{"digest":"0x"}`, 400, appliance.CodeUnknownField},
	} {
		if a := r.cosign(c.token, c.id, c.body); a.status != c.status || a.problem().Code != c.code {
			t.Errorf("%s: %s", name, a)
		}
	}
	if a := r.do("POST", "/functions/v1/attest", good, "x-api-key", token, "Content-Type",
		"application/json"); a.problem().Code != appliance.CodeScopeRequired {
		t.Errorf("a member's key attests: %s", a)
	}
	if r.size() != 0 {
		t.Error("something was recorded")
	}
	trial := r.parse(r.cosign(token, "", `{"trial":true}`))
	if !appliance.IsTrial(trial.Hash) || trial.Verify() != nil || r.size() != 0 {
		t.Errorf("a trial: %+v", trial)
	}
}

// A key of scope cosign names only the log of its own member, so it does not get a signature that was recorded for
// another one. Coordinators that the configuration does not name are free.
func TestAMembersKeyNamesOnlyItsOwnLog(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(o *api.Options) {
		o.Coordinators = map[string]string{"geneva/log": "geneva", "tokyo/log": "tokyo"}
	})
	key := func(name string) string {
		token, _ := r.newKey(appliance.KeyRequest{Name: name, Scopes: []appliance.Scope{appliance.ScopeCosign}})
		return token
	}
	geneva, next, tokyo, lima := key("geneva"), key("geneva.2027"), key("tokyo"), key("lima")
	first := r.cosign(geneva, "request-1", r.cosignBody("geneva/log", 2, nil))
	if again := r.cosign(next, "request-1", r.cosignBody("geneva/log", 2, nil)); first.status != 200 ||
		again.String() != first.String() {
		t.Errorf("geneva's next key: %s, and before %s", again, first)
	}
	for name, c := range map[string]struct{ token, coordinator string }{
		"another member": {tokyo, "geneva/log"},
		"a new member":   {lima, "geneva/log"},
		"this appliance": {lima, r.log.Verifier.Name()},
	} {
		a := r.cosign(c.token, "request-1", r.cosignBody(c.coordinator, 2, nil))
		if a.status != 400 || a.problem().Code != appliance.CodeInvalidField || a.problem().Field != "coordinator" {
			t.Errorf("%s: %s", name, a)
		}
	}
	if a := r.cosign(lima, "request-1", r.cosignBody("lima/log", 2, nil)); a.status != 200 || r.size() != 2 {
		t.Errorf("a member that is not configured yet: %s", a)
	}
}
