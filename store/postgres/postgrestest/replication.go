package postgrestest

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Follow makes the server a standby of another one, with the other's data. It deletes the server's own data.
func (s *Server) Follow(tb testing.TB, primary *Server) {
	tb.Helper()
	s.kill()
	check(tb, os.RemoveAll(s.data()))
	check(tb,
		s.tools.run("pg_basebackup", "--host="+primary.Dir, "--port="+strconv.Itoa(primary.Port), "--username="+Owner,
			"--pgdata="+s.data(), "--checkpoint=fast", "--wal-method=stream", "--no-sync"))
	check(tb, s.write("standby.signal", ""))
	s.own = Settings{"primary_conninfo": fmt.Sprintf("host=%s port=%d user=%s application_name=%s", primary.Dir,
		primary.Port, Owner, s.Name)}
	check(tb, s.start())
}

// Synchronous makes commits wait for one of the named standbys, and returns once one of them follows. Without names,
// commits do not wait.
func (s *Server) Synchronous(tb testing.TB, names ...string) {
	tb.Helper()
	setting := ""
	if len(names) > 0 {
		setting = `FIRST 1 ("` + strings.Join(names, `", "`) + `")`
	}
	s.Set(tb, Settings{"synchronous_standby_names": setting})
	s.await(tb, fmt.Sprintf("SELECT count(*) %s FROM pg_stat_replication WHERE sync_state = 'sync'",
		map[bool]string{true: "> 0", false: "= 0"}[len(names) > 0]))
}

// Detach stops a standby's replication. It does not receive later commits.
func (s *Server) Detach(tb testing.TB) {
	tb.Helper()
	s.Set(tb, Settings{"primary_conninfo": ""})
	s.await(tb, "SELECT count(*) = 0 FROM pg_stat_wal_receiver")
}

// Promote makes a standby the primary, and returns when the promotion is complete. Its commits do not wait for a
// standby.
func (s *Server) Promote(tb testing.TB) {
	tb.Helper()
	check(tb, s.tools.run("pg_ctl", "promote", "--wait", "--silent", "--pgdata="+s.data()))
	s.own = nil
}

// Set changes settings of the running server.
func (s *Server) Set(tb testing.TB, settings Settings) {
	tb.Helper()
	if s.own == nil {
		s.own = Settings{}
	}
	for name, value := range settings {
		s.own[name] = value
	}
	check(tb, s.configure())
	check(tb, s.tools.run("pg_ctl", "reload", "--silent", "--pgdata="+s.data()))
	for name, value := range settings {
		s.await(tb, fmt.Sprintf("SELECT current_setting('%s') = '%s'", name, value))
	}
}

// await waits until a condition holds on the server.
func (s *Server) await(tb testing.TB, condition string) {
	tb.Helper()
	for deadline := time.Now().Add(30 * time.Second); s.Query(tb, Owner, condition) != "true"; {
		if time.Now().After(deadline) {
			tb.Fatalf("postgrestest: %s is still false after %s\n%s", condition, s.Name, s.Log())
		}
		time.Sleep(10 * time.Millisecond) // between two polls
	}
}

// Start starts a killed or stopped server.
func (s *Server) Start(tb testing.TB) {
	tb.Helper()
	check(tb, s.start())
}

// Stop stops the server cleanly and closes all connections.
func (s *Server) Stop(tb testing.TB) {
	tb.Helper()
	check(tb, s.tools.run("pg_ctl", "stop", "--mode=fast", "--wait", "--silent", "--pgdata="+s.data()))
}

// Kill ends the server and all its processes at once, like a crash of its machine, except that the kernel still writes
// its cache.
func (s *Server) Kill(tb testing.TB) {
	tb.Helper()
	if !s.kill() {
		tb.Fatalf("postgrestest: %s does not run", s.Name)
	}
}

func (s *Server) kill() bool {
	pids := s.signal(syscall.SIGSTOP) // so that it starts no further processes
	s.signal(syscall.SIGKILL)
	for _, pid := range pids {
		for runs(pid) {
			time.Sleep(time.Millisecond) // only the parent of a process is notified of its end
		}
	}
	// The files name a process that exists until its parent, init, has reaped it.
	_ = os.Remove(filepath.Join(s.data(), "postmaster.pid"))
	_ = os.Remove(filepath.Join(s.Dir, fmt.Sprintf(".s.PGSQL.%d.lock", s.Port)))
	return len(pids) > 0
}

// Freeze stops all processes of the server, like a hung machine: connections stay open, but remain unanswered.
func (s *Server) Freeze(tb testing.TB) {
	tb.Helper()
	if len(s.signal(syscall.SIGSTOP)) == 0 {
		tb.Fatalf("postgrestest: %s does not run", s.Name)
	}
}

// Thaw continues a frozen server.
func (s *Server) Thaw(tb testing.TB) {
	tb.Helper()
	s.signal(syscall.SIGCONT)
}

// signal sends a signal to the server and its children, and returns their process ids.
func (s *Server) signal(sig syscall.Signal) []int {
	server := s.PID()
	if server == 0 {
		return nil
	}
	first := sig
	if sig == syscall.SIGKILL { // a killed server would have no children to find
		first = syscall.SIGSTOP
	}
	_ = syscall.Kill(server, first)
	pids := append([]int{server}, children(server)...)
	for _, pid := range pids[1:] {
		_ = syscall.Kill(pid, sig)
	}
	_ = syscall.Kill(server, sig)
	return pids
}

// PID returns the process id of the server, or 0 if it does not run.
func (s *Server) PID() int {
	text, err := os.ReadFile(filepath.Join(s.data(), "postmaster.pid"))
	if err != nil {
		return 0
	}
	line, _, _ := strings.Cut(string(text), "\n")
	pid, err := strconv.Atoi(line)
	if err != nil || !runs(pid) {
		return 0
	}
	return pid
}

// runs reports whether the process is a running server.
func runs(pid int) bool {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)) // it may have ended
	return strings.Contains(string(text), "(postgres)") && !strings.Contains(string(text), ") Z ")
}
