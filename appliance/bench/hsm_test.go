package bench

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/attestd/attestd/appliance/daemontest"
	"github.com/attestd/attestd/hsm/hsmtest"
)

// The measured systems, by their names in the results.
const (
	inC        = "C_Sign from C"      // sessions of a C program that only signs
	inGo       = "C_Sign from Go"     // `attestd hsm bench`
	before     = "attestd before"     // -before
	now        = "attestd"            // -program, or the attestd that was compiled with this test
	integrated = "Tessera integrated" // the peer, which answers with a checkpoint
	sequenced  = "Tessera sequenced"
	alone      = "the journal alone" // callers of Append

	fastHSM = "fast"
	softHSM = "SoftHSM"
)

// everySystem has those names.
var everySystem = []string{inC, inGo, before, now, integrated, sequenced, alone}

// system is a measured system. connections may mean sessions or callers.
type system struct {
	name    string
	measure func(tb testing.TB, connections int) row
}

// rig is an HSM with the ways to measure it.
type rig struct {
	settings benchSettings
	hsm      string
	token    *hsmtest.Token
	spent    func() (signatures int, cpu time.Duration) // of C_Sign; nil if not known
	latency  time.Duration
}

// measuredDaemon is attestd on the token of a rig.
type measuredDaemon struct {
	*daemontest.Daemon
	worker int
	rig    rig
}

// newRig makes the HSM: SoftHSM, or a fast network HSM of the given latency.
func (s benchSettings) newRig(tb testing.TB, hsm string) rig {
	tb.Helper()
	if hsm == softHSM {
		return rig{settings: s, hsm: softHSM, token: hsmtest.New(tb)}
	}
	latency, err := time.ParseDuration(hsm)
	if err != nil {
		tb.Fatal(err)
	}
	token, fast := hsmtest.NewFast(tb, hsmtest.FastOptions{Latency: latency})
	return rig{settings: s, hsm: fastHSM, token: token, spent: fast.Spent, latency: latency}
}

// start starts a new appliance on the rig's token.
func (r rig) start(tb testing.TB, name, program string, sessions int) system {
	tb.Helper()
	d := measuredDaemon{rig: r,
		Daemon: &daemontest.Daemon{Dir: tb.TempDir(), Environ: r.token.Env,
			Program: cmp.Or(program, daemontest.Program(tb))}}
	listen := daemontest.FreeAddress(tb)
	d.URL = "http://" + listen
	settings := fmt.Sprintf(`data_dir: %q
server: { listen: %q, request_timeout: 1m }
admin: { socket: %q }
metrics: { listen: "127.0.0.1:0" }
hsm: { uri: %q, sessions: %d, worker_paths: [%q] }
journal: { origin: attestd.invalid/bench }
`, filepath.Join(d.Dir, "data"), listen, filepath.Join(d.Dir, "admin.sock"), r.token.URI.String(), sessions, filepath.Dir(r.token.URI.ModulePath))
	if err := os.WriteFile(filepath.Join(d.Dir, "attestd.yaml"), []byte(settings), 0o600); err != nil {
		tb.Fatal(err)
	}
	d.Token = strings.TrimSpace(d.Run(tb, "key", "create", "--name", "bench", "--rate", "unlimited"))
	r.settings.onServerCores(tb, func() { d.Start(tb) })
	tb.Cleanup(func() { d.Kill(tb) })
	d.worker = d.Worker(tb)
	settle := r.settings // attestd adapts the number of HSM sessions under load
	settle.window *= 5
	settle.load(tb, d.URL, d.Token, settleConnections, func(int) {})
	return system{name, d.measure}
}

// settleConnections exceeds the number of sessions.
const settleConnections = 256

func (d measuredDaemon) measure(tb testing.TB, connections int) row {
	r := d.rig.row(connections)
	var daemon, worker, sign, signs [2]float64
	f := d.rig.settings.load(tb, d.URL, d.Token, connections, func(edge int) {
		daemon[edge], worker[edge] = cpuOf(tb, d.Cmd.Process.Pid), cpuOf(tb, d.worker)
		if d.rig.spent != nil {
			n, cpu := d.rig.spent()
			signs[edge], sign[edge] = float64(n), micros(cpu)
		}
	})
	r.take(f, daemon[1]-daemon[0], worker[1]-worker[0])
	if signs[1] > signs[0] {
		r.Sign = (sign[1] - sign[0]) / (signs[1] - signs[0])
	}
	return r
}

// sessionsBefore is the number of sessions for an earlier attestd. The first versions did not adapt it.
func (r rig) sessionsBefore() int {
	if r.hsm == softHSM {
		return 0
	}
	return *benchSessions
}

func (r rig) row(connections int) row {
	return row{HSM: r.hsm, Latency: r.latency.Seconds() * 1000, Connections: connections, Cores: r.settings.cores}
}

// fromC measures C_Sign of the token from a C program.
func (r rig) fromC(tb testing.TB, sessions int) row {
	tb.Helper()
	row := r.row(sessions)
	sessions = r.useful(sessions)
	var result hsmtest.RawResult
	r.settings.onServerCores(tb, func() { result = hsmtest.Raw(tb, r.token, sessions, r.settings.window) })
	row.PerSecond, row.Sign = result.PerSecond, micros(result.CPU)
	return row
}

// useful returns the number of sessions with the highest rate. SoftHSM only uses CPU, so it gets slower with more
// sessions than cores.
func (r rig) useful(sessions int) int {
	if r.hsm == softHSM {
		return min(sessions, r.settings.cores)
	}
	return sessions
}

// fromGo measures in a child process, since the server is a separate process, too.
func (r rig) fromGo(tb testing.TB, sessions int) row {
	tb.Helper()
	row := r.row(sessions)
	sessions = r.useful(sessions)
	cmd := exec.CommandContext(tb.Context(), daemontest.Program(tb), "hsm", "bench", "--sessions", strconv.Itoa(sessions),
		"--duration", r.settings.window.String(),
		"--output", "json", "--config", os.DevNull)
	cmd.Env = append(os.Environ(), r.token.Env...)
	cmd.Env = append(cmd.Env, "ATTESTD_HSM_URI="+r.token.URI.String(), "ATTESTD_DATA_DIR="+tb.TempDir())
	var out []byte
	var err error
	r.settings.onServerCores(tb, func() { out, err = cmd.Output() })
	var results []struct{ PerSecond, CPUSeconds, P50Seconds, P99Seconds float64 }
	if err == nil {
		err = json.Unmarshal(out, &results)
	}
	if err != nil || len(results) != 1 {
		tb.Fatalf("attestd hsm bench: %v: %s", err, out)
	}
	row.PerSecond, row.Sign, row.P50, row.P99 = results[0].PerSecond, 1e6*results[0].CPUSeconds,
		1e6*results[0].P50Seconds, 1e6*results[0].P99Seconds
	return row
}

// load runs the clients on the cores that the server does not have, if there are any.
func (s benchSettings) load(tb testing.TB, url, key string, connections int, mark func(edge int)) (f loaded) {
	tb.Helper()
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	run := func() { f = runLoad(tb, strings.TrimPrefix(url, "http://"), key, connections, s.warm, s.window, mark) }
	if s.cores < runtime.NumCPU() {
		onCores(tb, s.cores, runtime.NumCPU(), run)
	} else {
		run()
	}
	return f
}

func (s benchSettings) onServerCores(tb testing.TB, f func()) {
	tb.Helper()
	onCores(tb, 0, s.cores, f)
}

// onCores calls f on a thread that may only use some of its cores: those numbered from first up to end. The processes
// that f starts inherit that.
func onCores(tb testing.TB, first, end int, f func()) {
	tb.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var all, some unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		tb.Fatal(err)
	}
	for core, n := 0, 0; n < min(end, all.Count()); core++ {
		if all.IsSet(core) {
			if n >= first {
				some.Set(core)
			}
			n++
		}
	}
	if err := unix.SchedSetaffinity(0, &some); err != nil {
		tb.Fatalf("use cores %d to %d: %v", first, end-1, err)
	}
	defer func() { _ = unix.SchedSetaffinity(0, &all) }()
	f()
}

// cpuOf is the CPU time that a process has used, in microseconds (clock_getcpuclockid(3)).
func cpuOf(tb testing.TB, pid int) float64 {
	tb.Helper()
	var t unix.Timespec
	if err := unix.ClockGettime(int32(^pid)<<3|2, &t); err != nil {
		tb.Fatalf("CPU clock of process %d: %v", pid, err)
	}
	return micros(time.Duration(t.Nano()))
}

func micros(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 }
