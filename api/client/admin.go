package client

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"syscall"
	"time"

	"github.com/google/uuid"

	"github.com/attestd/attestd/api/wire"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/audit"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/appliance/report"
	"github.com/attestd/attestd/appliance/sinks"
	"github.com/attestd/attestd/appliance/stop"
	"github.com/attestd/attestd/appliance/witness"
)

// ErrNotRunning means that no daemon listens on the admin socket. If this user may not open the socket, the error is
// fs.ErrPermission instead.
var ErrNotRunning = errors.New("no daemon listens on this socket")

// Admin is a client of the admin socket. It is safe for concurrent use.
type Admin struct{ caller caller }

// adminBase stands for a socket, which has no URL.
const adminBase = "http://attestd"

// NewAdmin returns a client of the daemon with the admin socket at socketPath. It does not connect yet.
func NewAdmin(socketPath string) *Admin {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, "unix", socketPath)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) {
			return nil, fmt.Errorf("admin socket %s: %w", socketPath, ErrNotRunning)
		}
		if err != nil {
			return nil, fmt.Errorf("admin socket %s: %w", socketPath, err)
		}
		return c, nil
	}
	return &Admin{caller{base: adminBase, http: &http.Client{Transport: &http.Transport{DialContext: dial}}}}
}

// CreateKey makes an API key and returns it with its token. The token cannot be retrieved again.
func (a *Admin) CreateKey(ctx context.Context, r appliance.KeyRequest) (appliance.APIKey, string, error) {
	var answer wire.CreatedKey
	err := a.do(ctx, call{method: http.MethodPost, path: "/keys", body: r, into: &answer})
	return answer.Key.APIKey, answer.Token, err
}

// ListKeys returns all API keys, oldest first, without the hashes of their secrets.
func (a *Admin) ListKeys(ctx context.Context) ([]appliance.APIKey, error) {
	var answer wire.Keys
	err := a.do(ctx, call{method: http.MethodGet, path: "/keys", into: &answer})
	keys := make([]appliance.APIKey, len(answer.Keys))
	for i, k := range answer.Keys {
		keys[i] = k.APIKey
	}
	return keys, err
}

// KeyUse returns how often API keys were used in the past day.
func (a *Admin) KeyUse(ctx context.Context) (use wire.KeyUse, err error) {
	err = a.do(ctx, call{method: http.MethodGet, path: "/keys/use", into: &use})
	return use, err
}

// RevokeKey revokes an API key permanently.
func (a *Admin) RevokeKey(ctx context.Context, id string) (appliance.APIKey, error) {
	var answer wire.ChangedKey
	err := a.do(ctx, call{method: http.MethodPost, path: "/keys/" + url.PathEscape(id) + "/revoke", into: &answer})
	return answer.Key.APIKey, err
}

// BindKey binds an API key to the attestor key with that name, or to the default key if attestor is empty.
func (a *Admin) BindKey(ctx context.Context, id, attestor string) (appliance.APIKey, error) {
	var answer wire.ChangedKey
	err := a.do(ctx, call{method: http.MethodPost, path: "/keys/" + url.PathEscape(id) + "/bind",
		body: wire.BindKey{Attestor: attestor}, into: &answer})
	return answer.Key.APIKey, err
}

// Records returns the entries that match, newest first.
func (a *Admin) Records(ctx context.Context, q journal.Query) ([]journal.Entry, error) {
	var answer wire.Records
	err := a.do(ctx, call{method: http.MethodGet, path: "/log/records?" + queryOf(q).Encode(), into: &answer})
	entries := make([]journal.Entry, len(answer.Records))
	for i, e := range answer.Records {
		entries[i] = e.Whole()
	}
	return entries, err
}

func queryOf(q journal.Query) url.Values {
	v := url.Values{}
	if q.KeyID != "" {
		v.Set("key", q.KeyID)
	}
	if !q.From.IsZero() {
		v.Set("from", q.From.Format(time.RFC3339Nano))
	}
	if !q.Until.IsZero() {
		v.Set("until", q.Until.Format(time.RFC3339Nano))
	}
	if q.Before != 0 {
		v.Set("before", strconv.FormatInt(q.Before, 10))
	}
	if q.Limit != 0 {
		v.Set("limit", strconv.Itoa(q.Limit))
	}
	if q.AttestationsOnly {
		v.Set("attestations", "true")
	}
	if q.EventsOnly {
		v.Set("events", "true")
	}
	if q.Hash != nil {
		v.Set("hash", q.Hash.String())
	}
	if q.Unspendable != nil {
		v.Set("unspendable", q.Unspendable.String())
	}
	return v
}

// Record returns the entry of an attestation or an event.
func (a *Admin) Record(ctx context.Context, id uuid.UUID) (journal.Entry, error) {
	var e wire.Entry
	err := a.do(ctx, call{method: http.MethodGet, path: "/log/records/" + id.String(), into: &e})
	return e.Whole(), err
}

// Prove returns an attestation's entry and the proof that it is in the log.
func (a *Admin) Prove(ctx context.Context, id uuid.UUID) (journal.Entry, journal.InclusionProof, error) {
	var answer wire.ProvenEntry
	err := a.do(ctx, call{method: http.MethodGet, path: "/log/records/" + id.String() + "/proof", into: &answer})
	return answer.Whole(), answer.Proof, err
}

// LogKey returns the log's verifier key (C2SP signed-note vkey).
func (a *Admin) LogKey(ctx context.Context) (string, error) {
	var answer wire.LogKey
	err := a.do(ctx, call{method: http.MethodGet, path: "/log/key", into: &answer})
	return answer.VerifierKey, err
}

// Checkpoint returns the newest signed checkpoint.
func (a *Admin) Checkpoint(ctx context.Context) ([]byte, error) {
	var signed []byte
	err := a.do(ctx, call{method: http.MethodGet, path: "/log/checkpoint", into: &signed})
	return signed, err
}

// Published returns the checkpoint that clients see; see witness.Gatherer.Published.
func (a *Admin) Published(ctx context.Context) ([]byte, error) {
	var signed []byte
	err := a.do(ctx, call{method: http.MethodGet, path: "/log/published", into: &signed})
	return signed, err
}

// ProveWitnessed is Prove under a checkpoint that a quorum of witnesses has cosigned. The daemon waits for such a
// checkpoint for a limited time.
func (a *Admin) ProveWitnessed(ctx context.Context, id uuid.UUID) (journal.Entry, journal.InclusionProof, error) {
	var answer wire.ProvenEntry
	err := a.do(ctx, call{method: http.MethodGet, path: "/log/records/" + id.String() + "/witnessed", into: &answer})
	return answer.Whole(), answer.Proof, err
}

// Witnesses returns the status of the witnesses.
func (a *Admin) Witnesses(ctx context.Context) (s witness.Status, err error) {
	err = a.do(ctx, call{method: http.MethodGet, path: "/log/witnesses", into: &s})
	return s, err
}

// Entries calls yield with each leaf from index first on, until the end or an error of yield. A leaf is valid until
// yield returns.
func (a *Admin) Entries(ctx context.Context, first int64, yield func(leaf []byte) error) error {
	return a.lines(ctx, call{method: http.MethodGet, path: "/log/entries?from=" + strconv.FormatInt(first, 10)}, yield)
}

// Verify audits the journal inside the daemon. The audit ends when ctx ends.
func (a *Admin) Verify(ctx context.Context, opts audit.Options) (audit.Report, error) {
	request := wire.VerifyLog{Earlier: opts.Earlier, Signers: opts.Signers}
	return lastLine[audit.Report](ctx, a, call{method: http.MethodPost, path: "/log/verify", body: request},
		opts.Progress)
}

// Report makes a signed audit report of a period. A zero until means now. progress may be nil.
func (a *Admin) Report(ctx context.Context, from, until time.Time,
	progress func(done, total int64)) (report.Signed, error) {
	return lastLine[report.Signed](ctx, a, call{method: http.MethodPost, path: "/log/report",
		body: wire.MakeReport{From: from, Until: until}}, progress)
}

// lastLine reads lines of wire.Progress up to the last, which holds the report. progress may be nil.
func lastLine[Report any](ctx context.Context, a *Admin, call call,
	progress func(done, total int64)) (found Report, err error) {
	var report *Report
	err = a.lines(ctx, call, func(line []byte) error {
		var l wire.Progress[Report]
		if err := json.Unmarshal(line, &l); err != nil {
			return fmt.Errorf("read the answer of %s: %w", call.path, err)
		}
		switch {
		case l.Problem != nil:
			return &Problem{Problem: *l.Problem}
		case l.Report != nil:
			report = l.Report
		case progress != nil:
			progress(l.Done, l.Total)
		}
		return nil
	})
	if err == nil && report == nil {
		err = fmt.Errorf("the daemon ended its response to %s without a report", call.path)
	}
	if err != nil {
		return found, err
	}
	return *report, nil
}

// HSMStatus decodes the status of the daemon's HSM into status, like encoding/json. The status is an hsm.Status, but
// the client does not import that package.
func (a *Admin) HSMStatus(ctx context.Context, status any) error {
	return a.do(ctx, call{method: http.MethodGet, path: "/hsm", into: status})
}

// Cluster returns the appliances that share the daemon's store.
func (a *Admin) Cluster(ctx context.Context) (wire.Cluster, error) {
	var c wire.Cluster
	err := a.do(ctx, call{method: http.MethodGet, path: "/cluster", into: &c})
	return c, err
}

// Sinks returns the state of each audit sink.
func (a *Admin) Sinks(ctx context.Context) ([]sinks.Status, error) {
	var answer wire.Sinks
	err := a.do(ctx, call{method: http.MethodGet, path: "/sinks", into: &answer})
	return answer.Sinks, err
}

// Reload makes the daemon load its configuration again, and returns the names of changed settings that need a restart.
// After an error, the old configuration stays in effect.
func (a *Admin) Reload(ctx context.Context) (needRestart []string, err error) {
	var answer wire.Reloaded
	err = a.do(ctx, call{method: http.MethodPost, path: "/reload", into: &answer})
	return answer.NeedRestart, err
}

// Stopped returns whether attesting is stopped, and why.
func (a *Admin) Stopped(ctx context.Context) (state stop.State, err error) {
	err = a.do(ctx, call{method: http.MethodGet, path: "/stop", into: &state})
	return state, err
}

// Pause stops attesting until Resume.
func (a *Admin) Pause(ctx context.Context, reason string) (state stop.State, err error) {
	err = a.do(ctx, call{method: http.MethodPost, path: "/pause", body: wire.Pause{Reason: reason}, into: &state})
	return state, err
}

// Resume resumes attesting, and returns the stop that it ended: a pause, a halt, or neither.
func (a *Admin) Resume(ctx context.Context) (ended stop.State, err error) {
	err = a.do(ctx, call{method: http.MethodPost, path: "/resume", into: &ended})
	return ended, err
}

// Backup writes a consistent copy of keys and journal to w, as a tar archive. After an error, w holds an incomplete
// archive.
func (a *Admin) Backup(ctx context.Context, w io.Writer) error {
	const path = "/backup"
	resp, err := a.caller.open(ctx, call{method: http.MethodGet, path: path})
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(w, resp.Body); err != nil {
		return fmt.Errorf("read the answer of %s: %w", path, err)
	}
	return nil
}

// Profile returns a profile of the daemon as text: goroutine or heap.
func (a *Admin) Profile(ctx context.Context, name string) (string, error) {
	path := "/profiles/" + name
	resp, err := a.caller.open(ctx, call{method: http.MethodGet, path: path})
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		err = fmt.Errorf("read the answer of %s: %w", path, err)
	}
	return string(text), err
}

// Close closes idle connections. The client remains usable.
func (a *Admin) Close() error {
	a.caller.http.CloseIdleConnections()
	return nil
}

// Status returns the daemon's state.
func (a *Admin) Status(ctx context.Context) (wire.Status, error) {
	var s wire.Status
	err := a.do(ctx, call{method: http.MethodGet, path: "/status", into: &s})
	return s, err
}

// Activity calls yield with the samples of the last seconds, at most 900. With follow it also yields each new sample,
// until ctx ends, the daemon stops, or yield returns an error.
func (a *Admin) Activity(ctx context.Context, seconds int, follow bool, yield func(wire.Sample) error) error {
	path := fmt.Sprintf("/activity?seconds=%d&follow=%t", seconds, follow)
	return a.lines(ctx, call{method: http.MethodGet, path: path}, func(line []byte) error {
		var s wire.Sample
		if err := json.Unmarshal(line, &s); err != nil {
			return fmt.Errorf("read the answer of %s: %w", path, err)
		}
		return yield(s)
	})
}

// History returns the daemon's work in the last seconds, at most those of 30 days.
func (a *Admin) History(ctx context.Context, seconds int) (h wire.History, err error) {
	err = a.do(ctx, call{method: http.MethodGet, path: fmt.Sprintf("/history?seconds=%d", seconds), into: &h})
	return h, err
}

func (a *Admin) do(ctx context.Context, call call) error { return a.caller.do(ctx, call) }

// lines calls yield with each line of a streamed answer. An answer that was cut off returns io.ErrUnexpectedEOF.
func (a *Admin) lines(ctx context.Context, call call, yield func(line []byte) error) error {
	resp, err := a.caller.open(ctx, call)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	lines := bufio.NewReaderSize(resp.Body, 64<<10)
	for {
		line, err := lines.ReadBytes('\n')
		if err == io.EOF && len(line) == 0 {
			return nil
		}
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return fmt.Errorf("read the answer of %s: %w", call.path, err)
		}
		if err := yield(line[:len(line)-1]); err != nil {
			return err
		}
	}
}
