package drills

import (
	"bufio"
	"bytes"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/attestd/attestd/appliance/daemontest"
)

// soakFigures are the resources that an appliance holds.
type soakFigures struct {
	goroutines, descriptors int
	memory                  int64 // RssAnon of the process and its children, in bytes
}

func (f soakFigures) String() string {
	return fmt.Sprintf("%d goroutines, %d descriptors, %d MiB", f.goroutines, f.descriptors, f.memory>>20)
}

func (s *soak) figures() (f soakFigures) {
	s.Helper()
	resp, err := http.Get("http://" + s.metrics + "/metrics")
	if err != nil {
		s.Fatalf("metrics: %v\n%s", err, s.d.Log())
	}
	defer resp.Body.Close()
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		name, value, _ := strings.Cut(lines.Text(), " ")
		n, _ := strconv.ParseFloat(value, 64) // other lines are ignored
		switch name {
		case "go_goroutines":
			f.goroutines = int(n)
		case "process_open_fds":
			f.descriptors = int(n)
		}
	}
	f.memory = anonymous(s.d.Cmd.Process.Pid)
	http.DefaultClient.CloseIdleConnections()
	return f
}

// anonymous is the anonymous memory of a process and its children, in bytes. It is 0 for a process that has exited.
func anonymous(pid int) (bytes int64) {
	bytes = int64(daemontest.MemoryOf(pid).Anonymous)
	command := commandLine(pid)
	lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, list := range lists {
		children, _ := os.ReadFile(list) // a thread may have exited
		for _, child := range strings.Fields(string(children)) {
			// Until its execve, a child shares its parent's memory (CLONE_VM) and command line.
			if n, err := strconv.Atoi(child); err == nil && commandLine(n) != command {
				bytes += anonymous(n)
			}
		}
	}
	return bytes
}

func commandLine(pid int) string {
	line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return string(line)
}

// sampleDuring samples the memory while f runs.
func (s *soak) sampleDuring(f func()) (memory []int64) {
	done := make(chan struct{})
	go func() { defer close(done); f() }()
	ticker := time.NewTicker(max(*soakTime/200, 100*time.Millisecond))
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			memory = append(memory, anonymous(s.d.Cmd.Process.Pid))
		case <-done:
			return memory
		}
	}
}

// settle waits until the appliance has closed its clients' connections, and returns the resources that it holds. With
// before, they must not exceed the earlier ones.
func (s *soak) settle(before *soakFigures) soakFigures {
	s.Helper()
	// The server keeps goroutines for new connections for 10 s, and the follower keeps connections to the upstream.
	// After a short load, settle does not wait for these: a leak per connection or per fault is far larger.
	some, still := 40, 2
	if *soakTime >= time.Minute {
		some, still = 8, 40
	}
	last, steady := s.figures(), 0
	for deadline := time.Now().Add(daemontest.Patience); time.Now().Before(deadline); {
		time.Sleep(300 * time.Millisecond) // between two polls
		now := s.figures()
		if before != nil && now.goroutines <= before.goroutines+some && now.descriptors <= before.descriptors+some {
			return now
		}
		if steady++; now.goroutines != last.goroutines || now.descriptors != last.descriptors {
			steady = 0
		}
		if before == nil && steady >= still {
			return now
		}
		last = now
	}
	if before != nil {
		s.Errorf("left behind: before %s, after %s", before, last)
	}
	return last
}

// checkMemory compares the second quarter of the samples with the last quarter.
func (s *soak) checkMemory(samples []int64) {
	s.Helper()
	const most = 500 << 20
	if len(samples) < 8 {
		s.Fatalf("only %d samples", len(samples))
	}
	quarter := len(samples) / 4
	early, late := middleOf(samples[quarter:2*quarter]), middleOf(samples[len(samples)-quarter:])
	s.Logf("RssAnon in MiB: %d in the second quarter, %d in the last, %d at most, slope %+.1f an hour",
		early>>20, late>>20, slices.Max(samples)>>20,
		slope(samples[quarter:])*float64(time.Hour)/float64(*soakTime)*float64(len(samples))/(1<<20))
	if slices.Max(samples) > most {
		s.Errorf("%d MiB at most, want %d", slices.Max(samples)>>20, most>>20)
	}
	if *soakTime >= 2*time.Minute && late > early+early/10+16<<20 {
		s.Errorf("the memory grows: %d MiB, then %d", early>>20, late>>20)
	}
}

func middleOf(samples []int64) int64 {
	sorted := slices.Sorted(slices.Values(samples))
	return sorted[len(sorted)/2]
}

// slope is the slope of the best-fitting line through the samples, per step.
func slope(samples []int64) float64 {
	n := float64(len(samples))
	var sumX, sumY, sumXY, sumXX float64
	for i, y := range samples {
		x := float64(i)
		sumX, sumY, sumXY, sumXX = sumX+x, sumY+float64(y), sumXY+x*float64(y), sumXX+x*x
	}
	return (n*sumXY - sumX*sumY) / (n*sumXX - sumX*sumX)
}

// report logs the counts, and fails the test if a part of the load never ran.
func (s *soak) report(before, after soakFigures) {
	s.Helper()
	s.Logf("before: %s; after: %s", before, after)
	s.Logf("%d attestations; after a fault of the token the next came within %s", len(s.answered),
		s.longest.Round(time.Millisecond))
	names := make([]string, 0, len(s.counts))
	for name := range s.counts {
		names = append(names, name)
	}
	slices.Sort(names)
	var text strings.Builder
	for _, name := range names {
		fmt.Fprintf(&text, "%8d %s\n", s.counts[name], name)
	}
	s.Logf("done:\n%s", text.String())
	if name := s.never(*soakTime, calm, faulty); name != "" {
		s.Errorf("%s: never", name)
	}
}

// end stops the daemon as a service manager does.
func (s *soak) end() {
	s.Helper()
	if err := s.d.Cmd.Process.Signal(syscall.SIGTERM); err != nil {
		s.Fatal(err)
	}
	if err := s.d.Cmd.Wait(); err != nil {
		s.Errorf("the daemon ended with %v\n%s", err, s.d.Log())
	}
	if log := s.d.Events(); bytes.Contains(log, []byte(`"panic":`)) { // a worker's panic has another form
		s.Errorf("the log has a panic:\n%s", log)
	}
}

// checkJournal compares the journal with the answers.
func (s *soak) checkJournal() {
	s.Helper()
	if out := s.d.Run(s.T, "log", "verify"); !strings.Contains(out, "Journal integrity: verified") {
		s.Error(out)
	}
	recorded := s.d.Records(s.T)
	for id, one := range s.answered {
		a := one.attestation
		if r, ok := recorded[id]; !ok || r.Attestation != a {
			s.Errorf("attestation %s was answered but is not in the journal: %+v", id, r)
		}
		if err := a.Verify(); err != nil {
			s.Errorf("attestation %s: %v", id, err)
		}
	}
}
