package api_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/attestd/attestd/api"
	"github.com/attestd/attestd/api/client"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/attest"
	"github.com/attestd/attestd/appliance/audit"
	"github.com/attestd/attestd/appliance/journal"
)

// adminRig is a rig with an admin socket.
type adminRig struct {
	*rig
	path   string
	admin  *api.Admin
	client *client.Admin
	served chan error

	reload func() ([]string, error) // the daemon's handler of POST /reload
	backup func(context.Context, io.Writer) error
}

func newAdminRig(t testing.TB, change ...func(*attest.Attestor)) *adminRig {
	t.Helper()
	o := &adminRig{rig: newRig(t), path: filepath.Join(t.TempDir(), "admin.sock"), served: make(chan error, 1)}
	o.attestor.Uses = new(attest.KeyUse)
	attestor := o.attestor
	if len(change) > 0 {
		attestor = &attest.Attestor{Keys: attestor.Keys, Signer: attestor.Signer, Journal: attestor.Journal,
			Scheme: attestor.Scheme, Now: attestor.Now}
		change[0](attestor)
	}
	o.open(api.AdminOptions{
		Attestor: attestor, Version: "v1.2.3", LogVerifier: o.log.VerifierText,
		HSMStatus: func(context.Context) (any, error) { return map[string]string{"token": "attestd"}, nil },
		Reload:    func(string) ([]string, error) { return o.reload() },
		Backup:    func(ctx context.Context, w io.Writer) error { return o.backup(ctx, w) },
	})
	return o
}

// open serves the admin socket until the test ends.
func (o *adminRig) open(opts api.AdminOptions) {
	o.Helper()
	ln, err := api.ListenAdmin(o.path, nil)
	o.must(err)
	opts.Now, opts.Logger = o.clock.Now, slog.New(slog.NewJSONHandler(o.logs, nil))
	o.admin = api.NewAdmin(opts)
	go func() { o.served <- o.admin.Serve(ln) }()
	o.client = client.NewAdmin(o.path)
	o.Cleanup(func() {
		o.client.Close()
		if err := o.admin.Shutdown(context.Background()); err != nil {
			o.Error(err)
		}
	})
}

// raw sends a request to the socket like curl --unix-socket.
func (o *adminRig) raw(method, path, body string, headers ...string) answer {
	o.Helper()
	transport := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return net.Dial("unix", o.path) }}
	defer transport.CloseIdleConnections()
	a, err := o.try(&http.Client{Transport: transport}, method, "http://attestd"+path, strings.NewReader(body), headers...)
	o.must(err)
	return a
}

func TestTheOperatorMakesListsAndRevokesKeys(t *testing.T) {
	t.Parallel()
	o := newAdminRig(t)
	ctx := t.Context()
	made, token, err := o.client.CreateKey(ctx, appliance.KeyRequest{Name: "payments", Rate: appliance.Rate{PerSecond: 5}, Scopes: []appliance.Scope{appliance.ScopeAttest}})
	o.must(err)
	if made.Name != "payments" || made.Rate.PerSecond != 5 || made.ID == "" {
		t.Errorf("%+v", made)
	}
	found, err := appliance.Authenticate(ctx, o.attestor.Keys, token)
	if err != nil || found.ID != made.ID {
		t.Errorf("the token is of %+v, %v", found, err)
	}
	listed, err := o.client.ListKeys(ctx)
	if err != nil || len(listed) != 2 || listed[1].ID != made.ID && listed[0].ID != made.ID {
		t.Errorf("%+v, %v", listed, err)
	}
	revoked, err := o.client.RevokeKey(ctx, made.ID)
	if err != nil || revoked.Revoked.IsZero() {
		t.Errorf("%+v, %v", revoked, err)
	}
	if a := o.do("POST", attestPath, good, "x-api-key", token, "Content-Type", "application/json"); a.status != 403 {
		t.Errorf("it still attests: %s", a)
	}
	if _, err := o.client.RevokeKey(ctx, "aaaaaaaaaaaaaaaa"); client.CodeOf(err) != appliance.CodeNotFound {
		t.Errorf("a key that is none: %v", err)
	}
}

func TestNoAnswerShowsTheHashOfASecret(t *testing.T) {
	t.Parallel()
	o := newAdminRig(t)
	key, err := o.attestor.Keys.Key(t.Context(), o.key)
	o.must(err)
	created := o.raw("POST", "/keys", `{"name":"x"}`, "Content-Type", "application/json")
	if created.status != 201 || !strings.Contains(created.String(), `"token":"attestd_`) {
		t.Error(created)
	}
	for _, a := range []answer{created, o.raw("GET", "/keys", ""), o.raw("POST", "/keys/"+o.key+"/revoke", "")} {
		if strings.Contains(strings.ToLower(a.String()), "secrethash") || strings.Contains(a.String(), key.SecretHash.String()[2:]) || !strings.Contains(a.String(), `"scopes"`) {
			t.Error(a)
		}
	}
}

func TestTheOperatorReadsTheJournal(t *testing.T) {
	t.Parallel()
	o := newAdminRig(t)
	ctx := t.Context()
	var ids []uuid.UUID
	for range 5 {
		ids = append(ids, o.parse(o.attest()).ID)
	}
	records, err := o.client.Records(ctx, journal.Query{KeyID: o.key, Before: 4, Limit: 2,
		From: o.clock.Now().Add(-time.Hour)})
	if err != nil || len(records) != 2 || records[0].Index != 3 || records[1].Record.ID != ids[2] || !bytes.Equal(records[0].Leaf, o.entry(3).Leaf) {
		t.Errorf("%+v, %v", records, err)
	}
	record, err := o.client.Record(ctx, ids[1])
	if err != nil || record.Index != 1 || record.Record.ID != ids[1] {
		t.Errorf("%+v, %v", record, err)
	}
	proven, proof, err := o.client.Prove(ctx, ids[4])
	o.must(err)
	o.must(proof.Verify(proven.Leaf, o.log.Verifier))
	checkpoint, err := o.client.Checkpoint(ctx)
	o.must(err)
	if tree, err := journal.OpenCheckpoint(checkpoint, o.log.Verifier); err != nil || tree.N != 5 {
		t.Errorf("%s, %v", checkpoint, err)
	}
	if key, err := o.client.LogKey(ctx); err != nil || key != o.log.VerifierText {
		t.Errorf("%q, %v", key, err)
	}
	next := int64(2)
	o.must(o.client.Entries(ctx, next, func(leaf []byte) error {
		if !bytes.Equal(leaf, o.entry(next).Leaf) {
			t.Errorf("leaf %d is %s", next, leaf)
		}
		next++
		return nil
	}))
	if next != 5 {
		t.Errorf("the entries end at %d", next)
	}
	stop := errors.New("stop")
	if err := o.client.Entries(ctx, 0, func([]byte) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("stopped by the caller: %v", err)
	}
}

func TestTheOperatorAudits(t *testing.T) {
	t.Parallel()
	o := newAdminRig(t)
	ctx := t.Context()
	o.attest() // creates the API key
	earlier, err := o.client.Checkpoint(ctx)
	o.must(err)
	o.attest()
	o.tellKeys()
	var last [2]int64
	report, err := o.client.Verify(ctx, audit.Options{Earlier: earlier,
		Progress: func(done, total int64) { last = [2]int64{done, total} }})
	if err != nil || !report.OK() || report.Size != 3 {
		t.Errorf("%+v, %v", report, err)
	}
	if last != [2]int64{3, 3} && last != [2]int64{} {
		t.Errorf("progress ended at %v", last)
	}
	if _, err := o.client.Verify(ctx, audit.Options{Earlier: []byte("rubbish")}); err == nil {
		t.Error("rubbish was taken for a checkpoint")
	}
}

// longAudit is a journal with an audit that runs until it is cancelled.
type longAudit struct {
	audit.Journal
	ended chan error
}

func (j longAudit) Verify(ctx context.Context, opts audit.Options) (audit.Report, error) {
	for i := int64(0); ctx.Err() == nil; i++ {
		opts.Progress(i, -1)
	}
	j.ended <- ctx.Err()
	return audit.Report{}, ctx.Err()
}

func TestAnAuditEndsWhenItsClientLeavesAndAtShutdown(t *testing.T) {
	t.Parallel()
	ended := make(chan error, 1)
	o := newAdminRig(t, func(a *attest.Attestor) { a.Journal = longAudit{a.Journal, ended} })
	ctx, leave := context.WithCancel(t.Context())
	_, err := o.client.Verify(ctx, audit.Options{Progress: func(int64, int64) { leave() }})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("the client: %v", err)
	}
	within(t, ended)

	first := make(chan struct{}, 1)
	failed := make(chan error, 1)
	go func() {
		_, err := o.client.Verify(t.Context(), audit.Options{Progress: func(int64, int64) {
			select {
			case first <- struct{}{}:
			default:
			}
		}})
		failed <- err
	}()
	within(t, first)
	o.must(o.admin.Shutdown(t.Context()))
	within(t, ended)
	if err := within(t, failed); err == nil {
		t.Error("an audit that was ended has a report")
	}
	o.must(within(t, o.served))
}

func within[T any](t testing.TB, c <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(patience):
		t.Fatal("it did not happen")
	}
	return v
}

// brokenDisk is a journal that fails in the middle of a listing.
type brokenDisk struct{ audit.Journal }

func (j brokenDisk) Entries(ctx context.Context, first int64, yield func(journal.Entry) error) error {
	_ = yield(journal.Entry{Leaf: []byte("{}")})
	return appliance.Errorf(appliance.CodeJournalUnavailable, "the disk is gone")
}

func TestAStreamThatBreaksOffIsNoWholeAnswer(t *testing.T) {
	t.Parallel()
	o := newAdminRig(t, func(a *attest.Attestor) { a.Journal = brokenDisk{a.Journal} })
	leaves := 0
	err := o.client.Entries(t.Context(), 0, func([]byte) error { leaves++; return nil })
	if !errors.Is(err, io.ErrUnexpectedEOF) || leaves != 1 {
		t.Errorf("%d leaves, %v", leaves, err)
	}
}

func TestTheOperatorSeesStateAndCauses(t *testing.T) {
	t.Parallel()
	o := newAdminRig(t)
	o.attest()
	o.clock.move(90 * time.Second)
	s, err := o.client.Status(t.Context())
	if err != nil || s.Version != "v1.2.3" || s.UptimeSeconds != 90 || s.TreeSize != 1 || !s.Ready || s.SignerAddress != o.attestor.Signer.Address() {
		t.Errorf("%+v, %v", s, err)
	}
	o.signer.fail(func() error {
		return appliance.Errorf(appliance.CodeHSMUnavailable, "the HSM cannot sign").Because(errors.New("CKR_DEVICE_REMOVED"))
	})
	if s, err = o.client.Status(t.Context()); err != nil || s.Ready || !strings.Contains(s.Failing["hsm"], "CKR_DEVICE_REMOVED") {
		t.Errorf("%+v, %v", s, err)
	}
	var status struct{ Token string }
	if err := o.client.HSMStatus(t.Context(), &status); err != nil || status.Token != "attestd" {
		t.Errorf("%+v, %v", status, err)
	}
}

func TestTheOperatorLearnsHowAReloadWent(t *testing.T) {
	t.Parallel()
	o := newAdminRig(t)
	o.reload = func() ([]string, error) { return []string{"server.listen"}, nil }
	if need, err := o.client.Reload(t.Context()); err != nil || len(need) != 1 || need[0] != "server.listen" {
		t.Errorf("%v, %v", need, err)
	}
	o.reload = func() ([]string, error) { return nil, errors.New("log.level: \"loud\"") }
	_, err := o.client.Reload(t.Context())
	if client.CodeOf(err) != api.CodeReloadRefused || !strings.Contains(err.Error(), `the old one stays in effect: log.level: "loud"`) {
		t.Errorf("%v", err)
	}
}

func TestABackupIsWholeOrAnError(t *testing.T) {
	t.Parallel()
	o := newAdminRig(t)
	want := bytes.Repeat([]byte("archive "), 1<<17)
	o.backup = func(_ context.Context, w io.Writer) error { _, err := w.Write(want); return err }
	var got bytes.Buffer
	if err := o.client.Backup(t.Context(), &got); err != nil || !bytes.Equal(got.Bytes(), want) {
		t.Errorf("%d bytes, want %d; %v", got.Len(), len(want), err)
	}
	o.backup = func(_ context.Context, w io.Writer) error {
		_, err := w.Write(want)
		return errors.Join(err, errors.New("the disk cannot be read"))
	}
	if err := o.client.Backup(t.Context(), io.Discard); err == nil {
		t.Error("a backup that broke off is taken for whole")
	}
	o.backup = func(context.Context, io.Writer) error {
		return appliance.Errorf(appliance.CodeJournalUnavailable, "copy /data/attestd.db: no space left on device")
	}
	err := o.client.Backup(t.Context(), io.Discard)
	if client.CodeOf(err) != appliance.CodeJournalUnavailable || !strings.Contains(err.Error(), "copy /data/attestd.db: no space left on device") {
		t.Errorf("a backup that cannot be begun: %v", err)
	}
}

func TestBadInputAtTheAdminSocketIsRefused(t *testing.T) {
	t.Parallel()
	o := newAdminRig(t)
	for _, c := range []struct {
		method, path, body string
		status             int
		code               appliance.Code
	}{
		{"POST", "/keys", "{", 400, appliance.CodeInvalidJSON},
		{"POST", "/keys", `{"name":"a"}{}`, 400, appliance.CodeInvalidJSON},
		{"POST", "/keys", `{"nam":"a"}`, 400, appliance.CodeUnknownField},
		{"POST", "/keys", `{"name":""}`, 400, appliance.CodeInvalidField},
		{"POST", "/keys", `{"name":"a","scopes":["root"]}`, 400, appliance.CodeInvalidField},
		{"POST", "/keys", `{"name":"a","rate":"fast"}`, 400, appliance.CodeInvalidJSON},
		{"POST", "/keys", strings.Repeat("a", 1<<20), 413, api.CodeBodyTooLarge},
		{"POST", "/keys/x/revoke", "", 404, appliance.CodeNotFound},
		{"GET", "/log/records?from=yesterday", "", 400, appliance.CodeInvalidField},
		{"GET", "/log/records?before=-1", "", 400, appliance.CodeInvalidField},
		{"GET", "/log/records?limit=1001", "", 400, appliance.CodeInvalidField},
		{"GET", "/log/records/1", "", 400, appliance.CodeInvalidID},
		{"GET", "/log/records/" + uuid.NewString(), "", 404, appliance.CodeNotFound},
		{"GET", "/log/records/" + uuid.NewString() + "/proof", "", 404, appliance.CodeNotFound},
		{"GET", "/log/entries?from=x", "", 400, appliance.CodeInvalidField},
		{"DELETE", "/keys", "", 405, api.CodeMethodNotAllowed},
		{"GET", "/nowhere", "", 404, appliance.CodeNotFound},
	} {
		a := o.raw(c.method, c.path, c.body, "Content-Type", "application/json")
		if a.status != c.status || a.problem().Code != c.code {
			t.Errorf("%s %s: %s, want %d %s", c.method, c.path, a, c.status, c.code)
		}
	}
}

func TestTheSocketIsTheOwnersOnlyAndGoesWithTheServer(t *testing.T) {
	t.Parallel()
	o := newAdminRig(t)
	found, err := os.Lstat(o.path)
	if err != nil || found.Mode() != fs.ModeSocket|0o600 {
		t.Errorf("%v, %v", found.Mode(), err)
	}
	if rest, _ := filepath.Glob(filepath.Join(filepath.Dir(o.path), ".s*")); len(rest) != 0 {
		t.Errorf("left behind: %v", rest)
	}
	if _, err := api.ListenAdmin(o.path, nil); !errors.Is(err, api.ErrSocketInUse) {
		t.Errorf("a second daemon: %v", err)
	}
	if _, err := o.client.Status(t.Context()); err != nil {
		t.Errorf("the first one after that: %v", err)
	}
	o.client.Close()
	o.must(o.admin.Shutdown(t.Context()))
	o.must(<-o.served)
	if _, err := os.Lstat(o.path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the socket is still there: %v", err)
	}
	if _, err := o.client.Status(t.Context()); !errors.Is(err, client.ErrNotRunning) {
		t.Errorf("no daemon: %v", err)
	}
}

func TestAStaleSocketIsReplacedAndAnotherFileIsNot(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "admin.sock")
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	dead.SetUnlinkOnClose(false)
	dead.Close()
	if _, err := client.NewAdmin(path).Status(t.Context()); !errors.Is(err, client.ErrNotRunning) {
		t.Errorf("a dead daemon's socket: %v", err)
	}
	ln, err := api.ListenAdmin(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	ln.Close()
	if err := os.WriteFile(path, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := api.ListenAdmin(path, nil); err == nil {
		t.Error("a file was replaced")
	}
	if kept, err := os.ReadFile(path); err != nil || string(kept) != "mine" {
		t.Errorf("%q, %v", kept, err)
	}
}

func TestASocketThatMayNotBeOpenedIsNoAbsentDaemon(t *testing.T) {
	t.Parallel()
	if syscall.Geteuid() == 0 {
		t.Skip("root may open everything")
	}
	o := newAdminRig(t)
	o.must(os.Chmod(o.path, 0))
	if _, err := o.client.Status(t.Context()); !errors.Is(err, fs.ErrPermission) || errors.Is(err, client.ErrNotRunning) {
		t.Error(err)
	}
}

func TestTheClientAttestsReadsBackAndLearnsWhoSigns(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	c, err := client.New("http://"+r.address+"/", r.token, client.Options{Timeout: patience})
	r.must(err)
	request, err := api.ParseRequest([]byte(good))
	r.must(err)
	made, err := c.Attest(t.Context(), request, client.AttestOptions{})
	r.must(err)
	r.must(made.Verify())
	back, err := c.ReadBack(t.Context(), made.ID)
	if err != nil || back.Attestation != made || back.Request != request {
		t.Errorf("%+v, %v", back, err)
	}
	r.must(back.Proof.Verify(back.Leaf, r.log.Verifier))
	who, err := c.Attestor(t.Context())
	if err != nil || who.SignerAddress != made.SignerAddress || who.Log.VerifierKey != r.log.VerifierText {
		t.Errorf("%+v, %v", who, err)
	}
	_, err = c.ReadBack(t.Context(), uuid.New())
	if p, ok := errors.AsType[*client.Problem](err); !ok || p.Status != 404 || p.Code != appliance.CodeNotFound || p.RequestID == "" {
		t.Errorf("%v", err)
	}
}

func TestTheClientAsksAgainUnderTheSameIdempotencyKey(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	request, err := api.ParseRequest([]byte(good))
	r.must(err)
	busy := appliance.Errorf(appliance.CodeHSMUnavailable, "busy")
	busy.RetryAfter = 7 * time.Second
	failures := 2
	r.signer.fail(func() error {
		if failures--; failures >= 0 {
			return busy
		}
		return nil
	})
	var waits []time.Duration
	opts := client.Options{Timeout: patience, Wait: func(_ context.Context, d time.Duration) error { waits = append(waits, d); return nil }}
	c, err := client.New("http://"+r.address, r.token, opts)
	r.must(err)
	if _, err := c.Attest(t.Context(), request, client.AttestOptions{}); err != nil || len(waits) != 2 || waits[0] != 7*time.Second {
		t.Errorf("%v after waits %v", err, waits)
	}
	if e := r.entry(0); e.Record.IdempotencyKey == "" || r.size() != 1 {
		t.Errorf("%d records, the first under %q", r.size(), e.Record.IdempotencyKey)
	}

	failures = 1000
	waits = nil
	opts.Timeout = busy.RetryAfter - time.Second
	if c, err = client.New("http://"+r.address, r.token, opts); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Attest(t.Context(), request, client.AttestOptions{}); client.CodeOf(err) != appliance.CodeHSMUnavailable || len(waits) != 0 {
		t.Errorf("%v after waits %v", err, waits)
	}
	opts.Timeout = patience
	if c, err = client.New("http://"+r.address, "attestd_x", opts); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Attest(t.Context(), request, client.AttestOptions{}); client.CodeOf(err) != appliance.CodeInvalidAPIKey || len(waits) != 0 {
		t.Errorf("a bad key was tried again: %v, %v", err, waits)
	}
}
