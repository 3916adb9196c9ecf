package drills

import (
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/attestd/attestd/api/client"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/daemontest"
)

// quorumRig is a quorum of three appliances, each with its own token, journal and API keys.
type quorumRig struct {
	*testing.T
	members   [3]*quorumMember
	threshold int
}

// quorumMember is a member, and the network between the others and it.
type quorumMember struct {
	*daemontest.Daemon
	name   string
	signer appliance.Address
	// network changes the member's answers, for the others. Nil changes nothing.
	network atomic.Pointer[func(*http.Response) error]
	proxy   *httptest.Server
}

// startQuorum starts three members of which threshold must sign. Their time limits are far above the needs of a busy
// machine, so that only a member that is down or stopped does not sign.
func startQuorum(t *testing.T, threshold int) *quorumRig {
	t.Helper()
	return startQuorumOf(t, threshold, func() *daemontest.Daemon { return daemontest.New(t) })
}

// startQuorumOf starts members in prepared folders.
func startQuorumOf(t *testing.T, threshold int, folder func() *daemontest.Daemon) *quorumRig {
	t.Helper()
	q := &quorumRig{T: t, threshold: threshold}
	for i := range q.members {
		q.members[i] = newQuorumMemberIn(t, fmt.Sprintf("member%d", i), folder())
	}
	for i, m := range q.members {
		var others []map[string]string
		for k, other := range q.members {
			if k != i {
				others = append(others, map[string]string{
					"name": other.name, "signer": other.signer.String(), "url": other.proxy.URL,
					"api_key": "file:" + other.cosignKey(t, m), "verifier_key": other.VerifierKey(t),
				})
			}
		}
		list, _ := json.Marshal(others)
		m.Configure("ATTESTD_QUORUM_CONTRACT="+daemontest.QuorumContract, "ATTESTD_QUORUM_MEMBERS="+string(list),
			fmt.Sprintf("ATTESTD_QUORUM_THRESHOLD=%d", threshold), "ATTESTD_QUORUM_TIMEOUT=50s",
			"ATTESTD_SERVER_REQUEST_TIMEOUT=60s")
	}
	for _, m := range q.members {
		m.restart(t)
	}
	return q
}

func newQuorumMember(t *testing.T, name string) *quorumMember {
	t.Helper()
	return newQuorumMemberIn(t, name, daemontest.New(t))
}

// newQuorumMemberIn starts an appliance in a prepared folder, with an attestor key of its own.
func newQuorumMemberIn(t *testing.T, name string, folder *daemontest.Daemon) *quorumMember {
	t.Helper()
	m := &quorumMember{Daemon: folder, name: name}
	m.NewAttestorKey(t)
	m.BeginLog(t, name+".example/attestd")
	target, err := url.Parse(m.URL)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(target)
	proxy.Transport = &http.Transport{DisableKeepAlives: true} // a restarted member has no old connections
	proxy.ErrorLog = log.New(io.Discard, "", 0)                // members are killed
	proxy.ModifyResponse = func(r *http.Response) error {
		if change := m.network.Load(); change != nil {
			return (*change)(r)
		}
		return nil
	}
	m.proxy = httptest.NewServer(proxy)
	t.Cleanup(m.proxy.Close)
	m.Start(t)
	t.Cleanup(m.End)
	_, text := m.Ask(t, http.MethodGet, "/functions/v1/attestor", "", nil)
	var described struct{ SignerAddress appliance.Address }
	if err := json.Unmarshal([]byte(text), &described); err != nil {
		t.Fatal(err)
	}
	m.signer = described.SignerAddress
	return m
}

// cosignKey makes an API key for another member, and returns the file that has it.
func (m *quorumMember) cosignKey(t *testing.T, other *quorumMember) string {
	t.Helper()
	admin := client.NewAdmin(filepath.Join(m.Dir, "admin.sock"))
	defer admin.Close()
	_, token, err := admin.CreateKey(t.Context(), appliance.KeyRequest{
		Name: other.name, Scopes: []appliance.Scope{appliance.ScopeCosign}, Rate: appliance.Unlimited,
	})
	if err != nil {
		t.Fatal(err)
	}
	other.Write(t, m.name+".key", token)
	return filepath.Join(other.Dir, m.name+".key")
}

func (m *quorumMember) restart(t *testing.T) {
	t.Helper()
	_ = m.Cmd.Process.Signal(syscall.SIGCONT)
	if m.Cmd.ProcessState == nil {
		m.Kill(t)
	}
	m.Start(t)
}

func (m *quorumMember) signal(t *testing.T, s syscall.Signal) {
	t.Helper()
	if err := m.Cmd.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
}

// lie changes an answer of the member to cosign requests.
func (m *quorumMember) lie(change func(a *appliance.Attestation)) {
	f := func(r *http.Response) error {
		text, err := io.ReadAll(r.Body)
		if err != nil {
			return err
		}
		var a appliance.Attestation
		if r.StatusCode == http.StatusOK && json.Unmarshal(text, &a) == nil {
			change(&a)
			if text, err = json.Marshal(a); err != nil {
				return err
			}
		}
		r.Body, r.ContentLength = io.NopCloser(strings.NewReader(string(text))), int64(len(text))
		r.Header.Set("Content-Length", fmt.Sprint(len(text)))
		return nil
	}
	m.network.Store(&f)
}

// quorumAnswer is the answer of a coordinator.
type quorumAnswer struct {
	appliance.Attestation
	Signatures []appliance.MemberSignature
	Code       appliance.Code
	Members    []appliance.MemberFailure
	ApprovalID string

	status     int
	retryAfter string
	text       string
}

// attestAs asks a member for an attestation of the n-th pair of addresses.
func (m *quorumMember) attestAs(t *testing.T, n int, idempotencyKey string) (a quorumAnswer, err error) {
	t.Helper()
	body := fmt.Sprintf(`{"unspendableAddress":"0x%040x","beneficiary":"0x%040x"}`, 0xa000+n, 0xb000+n)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, m.URL+"/functions/v1/attest",
		strings.NewReader(body))
	if err != nil {
		return a, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Api-Key", m.Token)
	if idempotencyKey != "" {
		req.Header.Set("Idempotency-Key", idempotencyKey)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return a, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return a, err
	}
	a.status, a.retryAfter, a.text = resp.StatusCode, resp.Header.Get("Retry-After"), string(text)
	return a, json.Unmarshal(text, &a)
}

// attests asks a member for an attestation. The answer must be valid, and signed by enough of these members only.
func (q *quorumRig) attests(n int, from *quorumMember, by ...*quorumMember) quorumAnswer {
	q.Helper()
	a, err := from.attestAs(q.T, n, "")
	if err != nil || a.status != http.StatusOK {
		q.Fatalf("%s: %v, %d %s\n%s", from.name, err, a.status, a.text, from.Log())
	}
	var signers []appliance.Address
	for _, m := range by {
		signers = append(signers, m.signer)
	}
	if err := a.VerifyQuorum(signers, q.threshold); err != nil {
		q.Fatalf("%s: %v\n%s", from.name, err, a.text)
	}
	if !strings.EqualFold(a.SignerAddress.String(), daemontest.QuorumContract) || len(a.Signatures) != q.threshold ||
		len(a.Signature.Joined) != 65*q.threshold {
		q.Fatalf("the answer is not the contract's: %s", a.text)
	}
	return a
}

// load makes many requests at once, each of which must succeed.
func (q *quorumRig) load(n int, from *quorumMember) {
	q.Helper()
	var clients sync.WaitGroup
	for i := range 24 {
		clients.Go(func() {
			if a, err := from.attestAs(q.T, n+i, ""); err != nil || a.status != http.StatusOK ||
				len(a.Signatures) != q.threshold {
				q.Errorf("%s: %v, %d %s", from.name, err, a.status, a.text)
			}
		})
	}
	clients.Wait()
}

// recordsOf returns the records that a member has of a hash.
func (m *quorumMember) recordsOf(t *testing.T, hash appliance.Digest) (found []appliance.Record) {
	t.Helper()
	for _, r := range m.Records(t) {
		if r.Hash == hash {
			found = append(found, r)
		}
	}
	return found
}

func (q *quorumRig) auditAll() {
	q.Helper()
	for _, m := range q.members {
		if out := m.Run(q.T, "log", "verify"); !strings.Contains(out, "Journal integrity: verified") {
			q.Errorf("%s: %s", m.name, out)
		}
	}
}

// hashOf returns the hash of the n-th pair of addresses.
func hashOf(t *testing.T, n int) appliance.Digest {
	t.Helper()
	pair := appliance.Request{}
	_ = pair.UnspendableAddress.UnmarshalText(fmt.Appendf(nil, "0x%040x", 0xa000+n))
	_ = pair.Beneficiary.UnmarshalText(fmt.Appendf(nil, "0x%040x", 0xb000+n))
	scheme, err := appliance.NewScheme(appliance.SchemeKeccak256BN254, nil)
	if err != nil {
		t.Fatal(err)
	}
	return scheme.Digest(pair)
}
