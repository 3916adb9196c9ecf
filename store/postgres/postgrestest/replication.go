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

// Follow makes the server a standby of another, with the other's data, whatever it was before.
func (s *Server) Follow(tb testing.TB, primary *Server) {
	tb.Helper()
	s.kill()
	check(tb, os.RemoveAll(s.data()))
	check(tb, s.tools.run("pg_basebackup", "--host="+primary.Dir, "--port="+strconv.Itoa(primary.Port), "--username="+Owner,
		"--pgdata="+s.data(), "--checkpoint=fast", "--wal-method=stream", "--no-sync"))
	check(tb, s.write("standby.signal", ""))
	s.own = Settings{"primary_conninfo": fmt.Sprintf("host=%s port=%d user=%s application_name=%s", primary.Dir, primary.Port, Owner, s.Name)}
	check(tb, s.start())
}

// Synchronous makes commits wait for one of these standbys, once one of them follows; without names, for none.
func (s *Server) Synchronous(tb testing.TB, names ...string) {
	tb.Helper()
	setting := ""
	if len(names) > 0 {
		setting = `FIRST 1 ("` + strings.Join(names, `", "`) + `")`
	}
	s.Set(tb, Settings{"synchronous_standby_names": setting})
	s.await(tb, fmt.Sprintf("SELECT count(*) %s FROM pg_stat_replication WHERE sync_state = 'sync'", map[bool]string{true: "> 0", false: "= 0"}[len(names) > 0]))
}

// Detach ends a standby's following: what is committed from now on it does not have.
func (s *Server) Detach(tb testing.TB) {
	tb.Helper()
	s.Set(tb, Settings{"primary_conninfo": ""})
	s.await(tb, "SELECT count(*) = 0 FROM pg_stat_wal_receiver")
}

// Promote makes a standby the primary. It returns when it is. It waits for no standby of its own.
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
			tb.Fatalf("postgrestest: %s has not come true in %s\n%s", condition, s.Name, s.Log())
		}
		time.Sleep(10 * time.Millisecond) // between two questions
	}
}

// Start starts a server that was killed or stopped.
func (s *Server) Start(tb testing.TB) {
	tb.Helper()
	check(tb, s.start())
}

// Stop ends the server as its operator does, with all connections.
func (s *Server) Stop(tb testing.TB) {
	tb.Helper()
	check(tb, s.tools.run("pg_ctl", "stop", "--mode=fast", "--wait", "--silent", "--pgdata="+s.data()))
}

// Kill ends the server and all its processes at once, as when its machine dies, but for what the kernel has yet to write.
func (s *Server) Kill(tb testing.TB) {
	tb.Helper()
	if !s.kill() {
		tb.Fatalf("postgrestest: %s does not run", s.Name)
	}
}

func (s *Server) kill() bool {
	pids := s.signal(syscall.SIGSTOP) // so that it starts no more
	s.signal(syscall.SIGKILL)
	for _, pid := range pids {
		for runs(pid) {
			time.Sleep(time.Millisecond) // nobody tells of the end of what is no child
		}
	}
	// They name a process which is there until its parent, the system's first, has taken note of its end.
	_ = os.Remove(filepath.Join(s.data(), "postmaster.pid"))
	_ = os.Remove(filepath.Join(s.Dir, fmt.Sprintf(".s.PGSQL.%d.lock", s.Port)))
	return len(pids) > 0
}

// Freeze stops all its processes, as when its machine hangs: connections stay, and nothing answers.
func (s *Server) Freeze(tb testing.TB) {
	tb.Helper()
	if len(s.signal(syscall.SIGSTOP)) == 0 {
		tb.Fatalf("postgrestest: %s does not run", s.Name)
	}
}

// Thaw lets a frozen server go on.
func (s *Server) Thaw(tb testing.TB) {
	tb.Helper()
	s.signal(syscall.SIGCONT)
}

// signal sends a signal to the server, and then to its children.
func (s *Server) signal(sig syscall.Signal) []int {
	server := s.PID()
	if server == 0 {
		return nil
	}
	first := sig
	if sig == syscall.SIGKILL { // what is ended has no children to be found
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

// PID is the process of the server, 0 where it does not run.
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

// runs reports whether a server runs as that process.
func runs(pid int) bool {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)) // it may have ended
	return strings.Contains(string(text), "(postgres)") && !strings.Contains(string(text), ") Z ")
}
