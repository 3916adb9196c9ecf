package postgrestest

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// CPU is the processor time that the server and all its processes have used, those that have ended among them.
func (s *Server) CPU() time.Duration {
	server := s.PID()
	if server == 0 {
		return 0
	}
	const own, ended = 14 - 3, 16 - 3 // where utime and cutime are, each followed by its stime; proc(5), stat
	sum := ticks(server, own) + ticks(server, ended)
	for _, pid := range children(server) {
		sum += ticks(pid, own)
	}
	return sum
}

// ticks is the sum of two values of a process, 0 for one that is gone. They are in ticks of 10 ms.
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

// children are the processes that a process has started, and that have not ended.
func children(pid int) (pids []int) {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid)) // it may have ended
	for field := range strings.FieldsSeq(string(text)) {
		if child, err := strconv.Atoi(field); err == nil {
			pids = append(pids, child)
		}
	}
	return pids
}
