package daemontest

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"testing"

	"github.com/attestd/attestd/appliance/daemon"
)

// CountsQuery is a query of GraphQL for the number of rows, as the body of a request.
const CountsQuery = `{"query":"{ v2_stats_count { name value } }"}`

// NewUpstream runs an appliance with so many generated transfers until the test ends. program may name another version
// of attestd.
func NewUpstream(tb testing.TB, transfers string, program ...string) *Daemon {
	tb.Helper()
	d := New(tb)
	d.Program = cmp.Or(strings.Join(program, ""), d.Program)
	d.Run(tb, "replica", "generate", "--transfers", transfers)
	d.Start(tb)
	tb.Cleanup(d.End)
	return d
}

// NewReplica prepares a folder that suffices for 'attestd replica sync'. It has no HSM.
func NewReplica(t testing.TB, upstream string) *Daemon {
	t.Helper()
	d := &Daemon{Dir: t.TempDir(), Program: Program(t)}
	d.Write(t, "attestd.yaml", fmt.Sprintf("data_dir: %q\nadmin: { socket: %q }\ngraphql: { upstream: %q }\n",
		filepath.Join(d.Dir, "data"), filepath.Join(d.Dir, "admin.sock"), upstream+daemon.GraphQLPath))
	return d
}

// Replica is the file of the replica.
func (d *Daemon) Replica() string { return filepath.Join(d.Dir, "data", daemon.ReplicaFile) }

// export begins an export. Lines that are unread when end is called are lost.
func (d *Daemon) export(tb testing.TB) (lines *bufio.Reader, end func()) {
	tb.Helper()
	cmd := d.Command("replica", "export", "-")
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		tb.Fatal(err)
	}
	return bufio.NewReaderSize(out, 1<<20), func() {
		_ = out.Close()
		_ = cmd.Wait() // fails if lines are unread
	}
}

// Compare compares the exports of two replicas line by line, up to the first difference. It returns the number of equal
// lines.
func Compare(tb testing.TB, a, b *Daemon) (lines int, difference string) {
	tb.Helper()
	one, endOne := a.export(tb)
	defer endOne()
	other, endOther := b.export(tb)
	defer endOther()
	for ; ; lines++ {
		x, errX := one.ReadString('\n')
		y, errY := other.ReadString('\n')
		switch {
		case x != y:
			return lines, fmt.Sprintf("line %d:\n%s%s", lines+1, x, y)
		case errX == io.EOF && errY == io.EOF:
			return lines, ""
		case errX != nil || errY != nil:
			return lines, fmt.Sprintf("line %d: %v, %v", lines+1, errX, errY)
		}
	}
}
