package drills

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/miekg/pkcs11"

	"github.com/attestd/attestd/api/client"
	"github.com/attestd/attestd/api/wire"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/audit"
	"github.com/attestd/attestd/appliance/daemon"
	"github.com/attestd/attestd/appliance/daemontest"
	"github.com/attestd/attestd/appliance/index/dataset"
	"github.com/attestd/attestd/appliance/index/follower/followertest"
	"github.com/attestd/attestd/hsm/hsmtest"
	"github.com/attestd/attestd/hsm/softhsm"
)

// `make soak` runs longer.
var soakTime = flag.Duration("soak", 6*time.Second, "how long TestDrillSoak loads the appliance and makes it fail")

// An appliance runs under every kind of load, while its token, its upstream and its clients fail in every known way.
// Afterwards it holds no more memory, descriptors or goroutines than before. All that it answered is in its journal,
// which is whole. No answer was an internal error.
func TestDrillSoak(t *testing.T) {
	s := newSoak(t)
	s.load(min(*soakTime/4, time.Minute), calm)
	before := s.settle(nil)
	samples := s.sampleDuring(func() { s.load(*soakTime, calm, faulty) })
	after := s.settle(&before)
	s.checkMemory(samples)
	s.report(before, after)
	s.end()
	s.checkJournal()
}

// soak is an appliance under load, and the results.
type soak struct {
	*testing.T
	d       *daemontest.Daemon
	metrics string
	admin   *client.Admin
	keys    []string
	faults  *hsmtest.Faults
	proxy   *followertest.Proxy

	mu       sync.Mutex
	answered map[uuid.UUID]answered
	counts   map[string]int // by task and outcome
	longest  time.Duration  // from a fault's end to the next attestation
	newest   atomic.Int64   // start of the newest answered attestation request, Unix nanoseconds
}

// answered is an answered attestation, and the API key that requested it.
type answered struct {
	attestation appliance.Attestation
	key         string
}

func newSoak(t *testing.T) *soak {
	t.Helper()
	s := &soak{T: t, answered: make(map[uuid.UUID]answered), counts: make(map[string]int)}
	s.d = daemontest.New(t)
	module, err := softhsm.Module()
	if err != nil {
		t.Fatal(err)
	}
	s.faults = hsmtest.NewFaults(t, module)
	s.d.WorkerUses(s.faults.Module)
	s.d.UseModule(t, s.faults.Module)
	upstream := followertest.NewUpstream(t, dataset.GenerateOptions{Transfers: 300, Seed: 1, Now: time.Now()})
	upstream.Live(time.Second, 2, 60)
	s.proxy = followertest.NewProxy(t, upstream.URL)
	s.metrics = daemontest.FreeAddress(t)
	s.d.Configure("ATTESTD_METRICS_LISTEN="+s.metrics, "ATTESTD_GRAPHQL_UPSTREAM="+s.proxy.URL(),
		"ATTESTD_GRAPHQL_POLL_INTERVAL=200ms")
	s.d.Start(t)
	t.Cleanup(s.d.End)
	s.admin = client.NewAdmin(filepath.Join(s.d.Dir, "admin.sock"))
	t.Cleanup(func() { _ = s.admin.Close() })
	for i := range 4 {
		_, token, err := s.admin.CreateKey(t.Context(),
			appliance.KeyRequest{Name: fmt.Sprintf("soak %d", i), Rate: appliance.Unlimited})
		if err != nil {
			t.Fatal(err)
		}
		s.keys = append(s.keys, token)
	}
	return s
}

// task is a repeated part of the load.
type task struct {
	name  string
	every time.Duration // pause between two runs
	at    int           // concurrent runs
	do    func(*soak, context.Context, *http.Client) error
}

// calm is the work of clients and operators.
var calm = []task{
	{"attestation", 20 * time.Millisecond, 8, (*soak).attest},
	{"read", 50 * time.Millisecond, 4, (*soak).read},
	{"attestation read back", 100 * time.Millisecond, 1, (*soak).readBack},
	{"reload", 2 * time.Second, 1, func(s *soak, ctx context.Context, _ *http.Client) error {
		_, err := s.admin.Reload(ctx)
		return err
	}},
	{"backup", 3 * time.Second, 1, func(s *soak, ctx context.Context, _ *http.Client) error {
		return s.admin.Backup(ctx, io.Discard)
	}},
	{"audit", 10 * time.Second, 1, (*soak).audit},
}

// faulty is the faults.
var faulty = []task{
	{"fault of the token", 500 * time.Millisecond, 1, (*soak).failToken},
	{"fault of the upstream", 300 * time.Millisecond, 1, (*soak).failUpstream},
	{"connection cut", 20 * time.Millisecond, 2, (*soak).cut},
	{"connection left alone", 200 * time.Millisecond, 2, (*soak).leaveAlone},
	{"slow request", 100 * time.Millisecond, 4, (*soak).slow},
	{"malformed request", 50 * time.Millisecond, 1, (*soak).malform},
}

// load runs the tasks for d, and until each that is due by then has run. Then it closes all their clients.
func (s *soak) load(d time.Duration, tasks ...[]task) {
	s.Helper()
	ctx, cancel := context.WithCancel(s.Context())
	defer cancel()
	var all sync.WaitGroup
	for _, task := range slices.Concat(tasks...) {
		for range task.at {
			all.Go(func() {
				transport := &http.Transport{MaxConnsPerHost: 1}
				defer transport.CloseIdleConnections()
				s.repeat(ctx, task, &http.Client{Transport: transport, Timeout: time.Minute})
			})
		}
	}
	late := d + daemontest.Patience
	for began := time.Now(); time.Since(began) < d || s.never(d, tasks...) != "" && time.Since(began) < late; {
		time.Sleep(10 * time.Millisecond) // between two polls
	}
	cancel()
	all.Wait()
	s.faults.Clear()
	s.proxy.Heal()
}

// never returns a task that has not run, although it is due several times within d; empty otherwise.
func (s *soak) never(d time.Duration, tasks ...[]task) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, task := range slices.Concat(tasks...) {
		if task.every < d/8 && s.counts[task.name] == 0 {
			return task.name
		}
	}
	return ""
}

func (s *soak) repeat(ctx context.Context, t task, c *http.Client) {
	for ctx.Err() == nil {
		err := t.do(s, ctx, c)
		if ctx.Err() == nil {
			s.count(t.name + outcome(err))
		}
		select {
		case <-time.After(t.every/2 + rand.N(t.every)):
		case <-ctx.Done():
		}
	}
}

// outcome is the name by which an error is counted.
func outcome(err error) string {
	switch code := client.CodeOf(err); {
	case err == nil:
		return ""
	case code != "":
		return ": " + string(code)
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, io.EOF):
		return ": connection ended"
	}
	return ": no answer"
}

func (s *soak) count(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts[what]++
}

func (s *soak) attest(ctx context.Context, c *http.Client) error {
	key := s.keys[rand.N(len(s.keys))]
	api, err := client.New(s.d.URL, key, client.Options{HTTP: c})
	if err != nil {
		return err
	}
	began := time.Now()
	a, err := api.Attest(context.WithoutCancel(ctx), daemontest.RandomRequest(), client.AttestOptions{})
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.answered[a.ID] = answered{a, key}
	s.mu.Unlock()
	for was := s.newest.Load(); was < began.UnixNano() && !s.newest.CompareAndSwap(was, began.UnixNano()); {
		was = s.newest.Load()
	}
	return nil
}

// readBack requests an answered attestation again.
func (s *soak) readBack(ctx context.Context, c *http.Client) error {
	s.mu.Lock()
	var id uuid.UUID
	var one answered
	for id, one = range s.answered {
		break
	}
	s.mu.Unlock()
	if one.key == "" {
		return nil // no answer yet
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.d.URL+"/functions/v1/attest/"+id.String(), nil)
	if err != nil {
		return err
	}
	req.Header.Set("X-Api-Key", one.key)
	return s.send(c, req)
}

func (s *soak) read(ctx context.Context, c *http.Client) error {
	queries := []string{
		daemontest.CountsQuery,
		`{"query":"{ v2_transfers(args: { p_limit: 100 }) { status base_amount base_token_symbol sort_order traces { type height } } }"}`,
		`{"query":"query Q @cached(ttl: 1) { v2_chains { display_name features { channel_list } rpcs { url } } v2_tokens { denom } }"}`,
		`{"query":"{ v2_nothing }"}`,
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.d.URL+daemon.GraphQLPath,
		strings.NewReader(queries[rand.N(len(queries))]))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	return s.send(c, req)
}

// send sends a request and reads the answer. A refusal because of overload is accepted.
func (s *soak) send(c *http.Client, req *http.Request) error {
	resp, err := c.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	switch resp.StatusCode {
	case http.StatusOK, http.StatusTooManyRequests, http.StatusServiceUnavailable:
	default:
		s.Errorf("%s %s: %s %s", req.Method, req.URL.Path, resp.Status, body)
	}
	if err == nil && resp.StatusCode != http.StatusOK {
		err = &client.Problem{Problem: wire.Problem{Code: appliance.Code(strconv.Itoa(resp.StatusCode))}}
	}
	return err
}

func (s *soak) audit(ctx context.Context, _ *http.Client) error {
	report, err := s.admin.Verify(ctx, audit.Options{})
	if err == nil && !report.OK() {
		s.Errorf("the journal under load: %v", report.Damages)
	}
	return err
}

// failToken makes the token fail in one way for a while, and waits until an attestation is answered again.
func (s *soak) failToken(ctx context.Context, _ *http.Client) error {
	sometimes := func(f hsmtest.Fault) func() { return func() { s.faults.Set("C_Sign", f) } }
	ways := map[string]func(){
		"restart":           s.faults.Restart,
		"down":              func() { s.faults.Down(pkcs11.CKR_DEVICE_REMOVED) },
		"server gone":       func() { s.faults.Down(pkcs11.CKR_GENERAL_ERROR); s.faults.Restart() },
		"device error":      sometimes(hsmtest.Fault{Error: pkcs11.CKR_DEVICE_ERROR, Chance: 0.3}),
		"function failed":   sometimes(hsmtest.Fault{Error: pkcs11.CKR_FUNCTION_FAILED, Chance: 0.3}),
		"slow":              sometimes(hsmtest.Fault{Delay: 200 * time.Millisecond}),
		"hang":              sometimes(hsmtest.Fault{Hang: true, Times: 2}),
		"bit flipped":       sometimes(hsmtest.Fault{Answer: hsmtest.BitFlipped, Chance: 0.1}),
		"of another digest": sometimes(hsmtest.Fault{Answer: hsmtest.OtherDigest, Times: 3}),
		"fewer sessions":    func() { s.faults.LimitSessions(2) },
		"logins fail": func() {
			s.faults.Set("C_Login", hsmtest.Fault{Error: pkcs11.CKR_FUNCTION_FAILED, Times: 3})
			s.faults.Restart()
		},
		"no sessions to open": func() {
			s.faults.Set("C_OpenSession", hsmtest.Fault{Error: pkcs11.CKR_SESSION_COUNT})
			s.faults.Restart()
		},
		"an unknown error": func() {
			s.faults.Set("C_SignInit", hsmtest.Fault{Error: pkcs11.CKR_MECHANISM_INVALID, Chance: 0.2})
		},
		"a crash": sometimes(hsmtest.Fault{Crash: true, Times: 1}),
		"a leak":  sometimes(hsmtest.Fault{Leak: 4 << 10}),
		"key handles are stale": func() {
			s.faults.Set("C_SignInit", hsmtest.Fault{Error: pkcs11.CKR_KEY_HANDLE_INVALID, Times: 4})
		},
	}
	names := make([]string, 0, len(ways))
	for name := range ways {
		names = append(names, name)
	}
	name := names[rand.N(len(names))]
	ways[name]()
	select {
	case <-time.After(time.Second/2 + rand.N(time.Second)):
	case <-ctx.Done():
	}
	s.faults.Clear()
	s.count("token: " + name)
	return s.awaitAttestation(ctx, name)
}

// awaitAttestation waits until a request that began after now is answered.
func (s *soak) awaitAttestation(ctx context.Context, after string) error {
	ended, bound := time.Now(), 20*time.Second
	if *soakTime < time.Minute {
		bound = daemontest.Patience // other tests run at the same time
	}
	for s.newest.Load() <= ended.UnixNano() {
		if ctx.Err() != nil {
			return nil
		}
		if time.Since(ended) > bound {
			s.Errorf("%s after the token's fault %q has ended there is no attestation", bound, after)
			return nil
		}
		time.Sleep(time.Millisecond) // between two polls
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.longest = max(s.longest, time.Since(ended))
	return nil
}

func (s *soak) failUpstream(context.Context, *http.Client) error {
	all := followertest.Faults()
	switch n := rand.N(len(all) + 2); n {
	case len(all):
		s.proxy.Unplug()
	case len(all) + 1:
		s.proxy.Heal()
	default:
		s.proxy.Plug()
		s.proxy.Fail(all[n].Sometimes(0.5))
	}
	return nil
}

// dial connects from another address than the well-behaved clients.
func (s *soak) dial() (*net.TCPConn, error) {
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 66)}, Timeout: 10 * time.Second}
	conn, err := dialer.Dial("tcp", strings.TrimPrefix(s.d.URL, "http://"))
	if err != nil {
		return nil, err
	}
	return conn.(*net.TCPConn), conn.SetDeadline(time.Now().Add(20 * time.Second))
}

// attestation is the bytes of an attestation request.
func (s *soak) attestation() string {
	r := daemontest.RandomRequest()
	body := fmt.Sprintf(`{"unspendableAddress":"%s","beneficiary":"%s"}`, r.UnspendableAddress, r.Beneficiary)
	return fmt.Sprintf(
		"POST /functions/v1/attest HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nX-Api-Key: %s\r\nContent-Length: %d\r\n\r\n%s",
		s.keys[0], len(body), body)
}

// cut sends a request, or a part of it, and resets the connection.
func (s *soak) cut(context.Context, *http.Client) error {
	conn, err := s.dial()
	if err != nil {
		return err
	}
	request := s.attestation()
	_, err = io.WriteString(conn, request[:rand.N(len(request)+1)])
	_ = conn.SetLinger(0)
	return errors.Join(err, conn.Close())
}

// leaveAlone connects and sends no bytes for a while.
func (s *soak) leaveAlone(ctx context.Context, _ *http.Client) error {
	conn, err := s.dial()
	if err != nil {
		return err
	}
	defer conn.Close()
	select {
	case <-time.After(rand.N(3 * time.Second)):
	case <-ctx.Done():
	}
	return nil
}

// slow sends a request byte by byte, and reads the answer in the same way.
func (s *soak) slow(ctx context.Context, _ *http.Client) error {
	conn, err := s.dial()
	if err != nil {
		return err
	}
	defer conn.Close()
	for _, c := range []byte(s.attestation()) {
		if _, err := conn.Write([]byte{c}); err != nil || ctx.Err() != nil {
			return err
		}
		time.Sleep(2 * time.Millisecond) // the speed of this client
	}
	one := make([]byte, 1)
	for range 20 {
		if _, err := conn.Read(one); err != nil {
			return err
		}
		time.Sleep(2 * time.Millisecond)
	}
	return nil
}

func (s *soak) malform(context.Context, *http.Client) error {
	conn, err := s.dial()
	if err != nil {
		return err
	}
	defer conn.Close()
	request := []byte(s.attestation())
	for range 1 + rand.N(3) {
		request[rand.N(len(request))] = byte(rand.Uint32())
	}
	_, _ = conn.Write(request)
	_ = conn.CloseWrite()
	_, _ = io.Copy(io.Discard, conn)
	return nil
}
