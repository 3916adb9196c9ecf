package postgrestest

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// CPU returns the processor time used by the server and its processes, including ended ones.
func (s *Server) CPU() time.Duration {
	server := s.PID()
	if server == 0 {
		return 0
	}
	const own, ended = 14 - 3, 16 - 3 // positions of utime and cutime, each followed by its stime; proc(5), stat
	sum := ticks(server, own) + ticks(server, ended)
	for _, pid := range children(server) {
		sum += ticks(pid, own)
	}
	return sum
}

// ticks returns the sum of two adjacent fields of a process, in ticks of 10 ms; 0 if the process has ended.
func ticks(pid, at int) (sum time.Duration) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(text), ") ")
	fields := strings.Fields(rest)
	if len(fields) < at+2 {
		return 0
	}
	for _, f := range fields[at : at+2] {
		n, _ := strconv.Atoi(f) // the kernel writes numbers
		sum += time.Duration(n) * 10 * time.Millisecond
	}
	return sum
}

// children returns the running child processes of a process.
func children(pid int) (pids []int) {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid)) // it may have ended
	for field := range strings.FieldsSeq(string(text)) {
		if child, err := strconv.Atoi(field); err == nil {
			pids = append(pids, child)
		}
	}
	return pids
}
