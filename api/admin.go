package api

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gofiber/fiber/v2"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/index"
	"github.com/attestd/attestd/appliance/index/follower"
)

// AdminOptions are what an Admin needs.
type AdminOptions struct {
	Attestor  *appliance.Attestor
	HSMStatus func(ctx context.Context) (any, error) // answered as JSON at /hsm
	// Reload loads the configuration again and returns the names of values that changed but need a restart. An error
	// means that all stays as it was. Nil means that it cannot.
	Reload func() (needRestart []string, err error)
	// Backup writes a consistent copy of keys and journal, as an archive. Nil means that it cannot.
	Backup  func(ctx context.Context, w io.Writer) error
	Version string
	Index   index.Index // the replica; nil where there is none
	// Follower keeps Index in step with Upstream; both are nil where it follows none.
	Follower *follower.Follower
	Upstream follower.Upstream
	// ReplicaReady is as in Options.
	ReplicaReady func() error
	// Routes are served beside the admin's own. Their Scope is ignored.
	Routes []Route

	Logger *slog.Logger     // slog.Default
	Now    func() time.Time // time.Now
}

// Admin is what the operator's commands talk to while the daemon runs. It asks for no key: whoever may open its socket
// is the operator; see ListenAdmin.
type Admin struct {
	*frame
	opts     AdminOptions
	attestor *appliance.Attestor
	started  time.Time
	routes   []Route

	streams    context.Context // of long answers; they end at Shutdown, which cannot wait for an audit
	endStreams context.CancelFunc
}

const (
	adminReadTimeout  = 10 * time.Second
	adminIdleTimeout  = time.Minute
	adminWriteTimeout = 30 * time.Second // for each piece of an answer: a stream may take hours, a stuck reader may not
	adminTimeout      = 30 * time.Second // for what is not a stream
	adminBodyLimit    = 64 << 10
)

// NewAdmin returns an admin server that is ready to Serve.
func NewAdmin(opts AdminOptions) *Admin {
	setDefault(&opts.Logger, slog.Default())
	if opts.Now == nil {
		opts.Now = time.Now
	}
	a := &Admin{opts: opts, attestor: opts.Attestor, started: opts.Now()}
	a.streams, a.endStreams = context.WithCancel(context.Background())
	a.frame = newFrame(frameOptions{
		Logger: opts.Logger.With("socket", "admin"), Now: opts.Now, Candid: true,
		ReadTimeout: adminReadTimeout, IdleTimeout: adminIdleTimeout, EachWriting: adminWriteTimeout,
	})
	a.routes = slices.Concat(a.ownRoutes(), a.replicaRoutes(), opts.Routes)
	for _, r := range a.routes {
		a.mount(r)
	}
	a.start()
	return a
}

func (a *Admin) ownRoutes() []Route {
	return []Route{
		{Method: fiber.MethodPost, Path: "/keys", BodyLimit: adminBodyLimit, Handler: a.createKey},
		{Method: fiber.MethodGet, Path: "/keys", Handler: a.listKeys},
		{Method: fiber.MethodPost, Path: "/keys/:id/revoke", Handler: a.revokeKey},
		{Method: fiber.MethodGet, Path: "/log/records", Handler: a.records},
		{Method: fiber.MethodGet, Path: "/log/records/:id", Handler: a.record},
		{Method: fiber.MethodGet, Path: "/log/records/:id/proof", Handler: a.prove},
		{Method: fiber.MethodGet, Path: "/log/entries", Handler: a.entries},
		{Method: fiber.MethodGet, Path: "/log/checkpoint", Handler: a.checkpoint},
		{Method: fiber.MethodPost, Path: "/log/verify", BodyLimit: adminBodyLimit, Handler: a.verify},
		{Method: fiber.MethodGet, Path: "/hsm", Handler: a.hsm},
		{Method: fiber.MethodGet, Path: "/status", Handler: a.status},
		{Method: fiber.MethodPost, Path: "/reload", Handler: a.reload},
		{Method: fiber.MethodGet, Path: "/backup", Handler: a.backup},
	}
}

// Serve answers on the listener until Shutdown, and then returns nil.
func (a *Admin) Serve(ln net.Listener) error { return a.serve(ln) }

// Shutdown stops accepting, ends streams, lets other requests finish and returns; when ctx ends first, with its error.
func (a *Admin) Shutdown(ctx context.Context) error {
	a.endStreams()
	return a.shutdown(ctx)
}

func (a *Admin) mount(r Route) {
	a.app.Add(r.Method, r.Path, func(c *fiber.Ctx) error {
		x := exchangeOf(c.Context())
		x.route = r.Path
		if r.BodyLimit > 0 {
			if err := receiveJSON(c, x, r.BodyLimit); err != nil {
				return err
			}
		}
		return r.Handler(c)
	})
}

func (a *Admin) deadline() (context.Context, context.CancelFunc) {
	return context.WithTimeout(a.base, adminTimeout)
}

// keyView is an APIKey as it may be shown: without the hash of its secret.
type keyView struct {
	appliance.APIKey
	SecretHash struct{} `json:"secretHash,omitzero"` // hides the embedded one
}

func view(k appliance.APIKey) keyView { return keyView{APIKey: k} }

func (a *Admin) createKey(c *fiber.Ctx) error {
	var request appliance.KeyRequest
	if err := unmarshalStrict(c.Body(), &request); err != nil {
		return err
	}
	key, token, err := appliance.NewAPIKey(request, a.now())
	if err != nil {
		return err
	}
	ctx, cancel := a.deadline()
	defer cancel()
	if err := a.attestor.Keys.Create(ctx, key); err != nil {
		return err
	}
	return sendJSON(c, fiber.StatusCreated, struct {
		Key   keyView `json:"key"`
		Token string  `json:"token"`
	}{view(key), token})
}

func (a *Admin) listKeys(c *fiber.Ctx) error {
	ctx, cancel := a.deadline()
	defer cancel()
	keys, err := a.attestor.Keys.List(ctx)
	if err != nil {
		return err
	}
	views := make([]keyView, len(keys))
	for i, k := range keys {
		views[i] = view(k)
	}
	return sendJSON(c, fiber.StatusOK, struct {
		Keys []keyView `json:"keys"`
	}{views})
}

func (a *Admin) revokeKey(c *fiber.Ctx) error {
	ctx, cancel := a.deadline()
	defer cancel()
	key, err := a.attestor.Keys.Revoke(ctx, strings.Clone(c.Params("id")), a.now())
	if err != nil {
		return err
	}
	return sendJSON(c, fiber.StatusOK, struct {
		Key keyView `json:"key"`
	}{view(key)})
}

// entryView is an entry with the bytes that the tree is made of.
type entryView struct {
	appliance.Entry
	Leaf []byte `json:"leaf"`
}

func (a *Admin) records(c *fiber.Ctx) error {
	query, err := journalQuery(c)
	if err != nil {
		return err
	}
	ctx, cancel := a.deadline()
	defer cancel()
	entries, err := a.attestor.Journal.List(ctx, query)
	if err != nil {
		return err
	}
	views := make([]entryView, len(entries))
	for i, e := range entries {
		views[i] = entryView{e, e.Leaf}
	}
	return sendJSON(c, fiber.StatusOK, struct {
		Records []entryView `json:"records"`
	}{views})
}

func journalQuery(c *fiber.Ctx) (q appliance.JournalQuery, err error) {
	q.KeyID = strings.Clone(c.Query("key"))
	if q.From, err = queryTime(c, "from"); err != nil {
		return q, err
	}
	if q.Until, err = queryTime(c, "until"); err != nil {
		return q, err
	}
	if q.Before, err = queryInt(c, "before"); err != nil {
		return q, err
	}
	limit, err := queryInt(c, "limit")
	if err == nil && limit > 1000 {
		err = appliance.Errorf(appliance.CodeInvalidField, "limit must be at most 1000").In("limit")
	}
	q.Limit = int(limit)
	return q, err
}

func queryTime(c *fiber.Ctx, name string) (time.Time, error) {
	text := c.Query(name)
	if text == "" {
		return time.Time{}, nil
	}
	t, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return t, appliance.Errorf(appliance.CodeInvalidField, "%s must be a time as in RFC 3339", name).In(name)
	}
	return t, nil
}

func queryInt(c *fiber.Ctx, name string) (int64, error) {
	text := c.Query(name)
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 {
		return 0, appliance.Errorf(appliance.CodeInvalidField, "%s must be a whole number, 0 or more", name).In(name)
	}
	return n, nil
}

func (a *Admin) find(ctx context.Context, c *fiber.Ctx) (appliance.Entry, error) {
	id, err := parseID(c.Params("id"))
	if err != nil {
		return appliance.Entry{}, err
	}
	return a.attestor.Journal.ByID(ctx, id)
}

func (a *Admin) record(c *fiber.Ctx) error {
	ctx, cancel := a.deadline()
	defer cancel()
	e, err := a.find(ctx, c)
	if err != nil {
		return err
	}
	return sendJSON(c, fiber.StatusOK, entryView{e, e.Leaf})
}

func (a *Admin) prove(c *fiber.Ctx) error {
	ctx, cancel := a.deadline()
	defer cancel()
	e, err := a.find(ctx, c)
	if err != nil {
		return err
	}
	proof, err := a.attestor.Journal.Prove(ctx, e.Index)
	if err != nil {
		return err
	}
	return sendJSON(c, fiber.StatusOK, struct {
		entryView
		Proof appliance.InclusionProof `json:"proof"`
	}{entryView{e, e.Leaf}, proof})
}

func (a *Admin) checkpoint(c *fiber.Ctx) error {
	ctx, cancel := a.deadline()
	defer cancel()
	signed, err := a.attestor.Journal.Checkpoint(ctx)
	if err != nil {
		return err
	}
	c.Context().Response.Header.SetContentType("text/plain; charset=utf-8")
	return c.Send(signed)
}

// entries streams leaves, one a line: a leaf has no newline. An answer that breaks off is cut off, without the end that
// HTTP would give it.
func (a *Admin) entries(c *fiber.Ctx) error {
	first, err := queryInt(c, "from")
	if err != nil {
		return err
	}
	return a.stream(c, func(ctx context.Context, w io.Writer) error {
		out := bufio.NewWriterSize(w, 32<<10)
		err := a.attestor.Journal.Entries(ctx, first, func(e appliance.Entry) error {
			if _, err := out.Write(e.Leaf); err != nil {
				return err
			}
			return out.WriteByte('\n')
		})
		return errors.Join(err, out.Flush())
	})
}

// reportLine is a line of an answer that shows progress. The last has a report or a problem.
type reportLine[Report any] struct {
	Done    int64    `json:"done,omitempty"`
	Total   int64    `json:"total,omitempty"`
	Report  *Report  `json:"report,omitempty"`
	Problem *problem `json:"problem,omitempty"`
}

// streamReport answers with how far find is, and at last with what it found. find ends when nobody listens any more.
func streamReport[Report any](a *Admin, c *fiber.Ctx, find func(ctx context.Context, progress func(done, total int64)) (Report, error)) error {
	return a.stream(c, func(ctx context.Context, w io.Writer) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		out := json.NewEncoder(w)
		report, err := find(ctx, func(done, total int64) {
			if out.Encode(reportLine[Report]{Done: done, Total: total}) != nil {
				cancel()
			}
		})
		if err != nil {
			e := asError(err)
			return out.Encode(reportLine[Report]{Problem: &problem{Type: "about:blank", Status: statuses[e.Code], Code: e.Code, Detail: err.Error()}})
		}
		return out.Encode(reportLine[Report]{Report: &report})
	})
}

func (a *Admin) verify(c *fiber.Ctx) error {
	var request struct {
		Earlier []byte `json:"earlier"` // a checkpoint
	}
	if err := unmarshalStrict(c.Body(), &request); err != nil {
		return err
	}
	return streamReport(a, c, func(ctx context.Context, progress func(done, total int64)) (appliance.AuditReport, error) {
		return a.attestor.Journal.Verify(ctx, appliance.VerifyOptions{Earlier: request.Earlier, Progress: progress})
	})
}

func (a *Admin) hsm(c *fiber.Ctx) error {
	if a.opts.HSMStatus == nil {
		return appliance.Errorf(appliance.CodeNotFound, "there is no HSM to ask")
	}
	ctx, cancel := a.deadline()
	defer cancel()
	status, err := a.opts.HSMStatus(ctx)
	if err != nil {
		return err
	}
	return sendJSON(c, fiber.StatusOK, status)
}

// reload answers when the new configuration is in effect, or refused.
func (a *Admin) reload(c *fiber.Ctx) error {
	if a.opts.Reload == nil {
		return appliance.Errorf(appliance.CodeNotFound, "this daemon cannot load its configuration again")
	}
	needRestart, err := a.opts.Reload()
	if err != nil {
		return appliance.Errorf(CodeReloadRefused, "the configuration is refused, and the old one stays").Because(err)
	}
	if needRestart == nil {
		needRestart = []string{}
	}
	return sendJSON(c, fiber.StatusOK, struct {
		NeedRestart []string `json:"needRestart"`
	}{needRestart})
}

// backup streams an archive. One that broke off has no end, and is refused by whoever reads it.
func (a *Admin) backup(c *fiber.Ctx) error {
	if a.opts.Backup == nil {
		return appliance.Errorf(appliance.CodeNotFound, "this daemon cannot make backups")
	}
	if err := a.stream(c, a.opts.Backup); err != nil {
		return err
	}
	c.Context().Response.Header.SetContentType("application/x-tar")
	return nil
}

// adminStatus is the answer of GET /status.
type adminStatus struct {
	Version       string               `json:"version"`
	Started       time.Time            `json:"started"`
	UptimeSeconds int64                `json:"uptimeSeconds"`
	SignerAddress appliance.Address    `json:"signerAddress"`
	Scheme        appliance.SchemeName `json:"scheme"`
	TreeSize      int64                `json:"treeSize"`
	Ready         bool                 `json:"ready"`
	Failing       map[string]string    `json:"failing,omitempty"` // by part: what an operator may know of it
}

func (a *Admin) status(c *fiber.Ctx) error {
	ctx, cancel := context.WithTimeout(a.base, readyTimeout)
	defer cancel()
	s := adminStatus{
		Version: a.opts.Version, Started: a.started.UTC(), UptimeSeconds: int64(a.now().Sub(a.started).Seconds()),
		SignerAddress: a.attestor.Signer.Address(), Scheme: a.attestor.Scheme.Name, Failing: map[string]string{},
	}
	signed, err := a.attestor.Journal.Checkpoint(ctx)
	if err == nil {
		s.TreeSize, err = treeSize(signed)
	}
	if err != nil {
		s.Failing["journal"] = err.Error()
	}
	for part, err := range failing(ctx, a.attestor, a.opts.ReplicaReady) {
		s.Failing[part] = err.Error()
	}
	s.Ready = len(s.Failing) == 0
	return sendJSON(c, fiber.StatusOK, s)
}

// treeSize reads a checkpoint of our own, so it does not check who signed it.
func treeSize(checkpoint []byte) (int64, error) {
	_, body, _ := bytes.Cut(checkpoint, []byte("\n"))
	tree, err := tlog.ParseTree(append([]byte("go.sum database tree\n"), body...))
	return tree.N, err
}

// stream answers with what produce writes, as it writes it. Its context ends when the client leaves or the server shuts
// down. When it fails, the answer is cut off.
func (a *Admin) stream(c *fiber.Ctx, produce func(ctx context.Context, w io.Writer) error) error {
	ctx, cancel := context.WithCancel(a.streams)
	r, w := io.Pipe()
	id := exchangeOf(c.Context()).id
	go func() {
		defer cancel()
		err := a.produce(ctx, w, produce)
		if err != nil && !errors.Is(err, io.ErrClosedPipe) {
			a.logger.Error("stream", "request_id", id, "error", err)
		}
		_ = w.CloseWithError(err) // never fails
	}()
	c.Context().Response.Header.SetContentType("application/x-ndjson")
	c.Context().Response.SetBodyStream(streamReader{r, cancel}, -1)
	return nil
}

func (a *Admin) produce(ctx context.Context, w io.Writer, produce func(ctx context.Context, w io.Writer) error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			a.logger.Error("panic", "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			err = errors.New("internal error")
		}
	}()
	return produce(ctx, w)
}

// streamReader is closed by fasthttp when the answer is written, or when the client has left.
type streamReader struct {
	*io.PipeReader
	cancel context.CancelFunc
}

func (r streamReader) Close() error {
	r.cancel()
	return r.PipeReader.Close()
}

// unmarshalStrict reads one JSON value without unknown members.
func unmarshalStrict(body []byte, v any) error {
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(v); err != nil {
		return appliance.Errorf(appliance.CodeInvalidJSON, "%s", err)
	}
	if decoder.More() {
		return appliance.Errorf(appliance.CodeInvalidJSON, "there is more after the JSON object")
	}
	return nil
}
