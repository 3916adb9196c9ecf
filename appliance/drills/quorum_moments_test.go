package drills

import (
	"bufio"
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/attestd/attestd/api/client"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/daemontest"
)

// Each member has its own database. Everything that holds with a file holds there: the answer without one member, the
// same attestation for a repeated request, also after a kill, and whole journals.
func TestAQuorumAttestsOnPostgreSQL(t *testing.T) {
	q := startQuorumOf(t, 2, func() *daemontest.Daemon { return daemontest.NewMembers(t, 1)[0] })
	a, b, c := q.members[0], q.members[1], q.members[2]
	signers := []appliance.Address{a.signer, b.signer, c.signer}
	made, err := a.attestAs(t, 1, "order-1")
	if err != nil || made.status != http.StatusOK || made.VerifyQuorum(signers, 2) != nil {
		t.Fatalf("%v %s\n%s", err, made.text, a.Log())
	}
	c.Kill(t)
	q.attests(2, b, a, b)
	q.load(1000, a)
	a.Kill(t)
	a.Start(t)
	if again, err := a.attestAs(t, 1, "order-1"); err != nil || again.text != made.text {
		t.Errorf("a repeat: %v\n%s\n%s", err, again.text, made.text)
	}
	c.Start(t)
	q.attests(3, c, a, b, c)
	q.auditAll()
}

// c has signed, and its answer is held until a's client has its own. If a waited for c, a's time limit for c would end
// first, and count as a failure.
func TestAMemberThatHangsDoesNotDelayTheAnswer(t *testing.T) {
	q := startQuorum(t, 2)
	a, b, c := q.members[0], q.members[1], q.members[2]
	held, release := make(chan struct{}, 8), make(chan struct{})
	hold := func(*http.Response) error {
		held <- struct{}{}
		<-release
		return nil
	}
	c.network.Store(&hold)
	q.attests(1, a, a, b)
	<-held // c's answer is still on its way
	admin := client.NewAdmin(filepath.Join(a.Dir, "admin.sock"))
	defer admin.Close()
	counts := func() (signed, failed uint64) {
		status, err := admin.QuorumStatus(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range status.Members {
			if m.Name == c.name {
				signed, failed = m.Signed, m.Failed
			}
		}
		return signed, failed
	}
	c.network.Store(nil) // of later questions
	if signed, failed := counts(); signed != 0 || failed != 0 {
		t.Errorf("before c's answer arrived, it counts as %d signed, %d failed", signed, failed)
	}
	close(release)
	daemontest.Await(t, "c's late signature is counted", func() (bool, string) {
		signed, failed := counts()
		return signed == 1 && failed == 0, fmt.Sprintf("%d signed, %d failed", signed, failed)
	})
}

// The coordinator is killed at the write of its own append, and at the sync after it, when another member has signed.
// The repeated request has one attestation, and that member has signed once.
func TestDrillACoordinatorIsKilledInItsOwnAppend(t *testing.T) {
	if _, err := exec.LookPath("strace"); err != nil {
		t.Skip("no strace: packaging/deps.sh installs it")
	}
	q := startQuorum(t, 2)
	a, b, c := q.members[0], q.members[1], q.members[2]
	c.Kill(t) // so that b's signature is the second one
	n := 0
	for call, recorded := range map[string]int{"pwrite64": 0, "fdatasync": 1} {
		for tries, met := 0, false; !met; tries++ { // a write of another part may come first
			if tries == 10 {
				t.Fatalf("%s: always killed at another moment", call)
			}
			n++
			own, other := q.killedInAppend(a, b, call, n)
			met = own == recorded && other == 1
		}
	}
	c.Start(t)
	q.auditAll()
}

// killAt kills the daemon at its next system call of a name.
func (m *quorumMember) killAt(t *testing.T, call string) {
	t.Helper()
	trace := exec.Command("strace", "-f", "-e", "trace="+call, "-e", "inject="+call+":signal=KILL", "-p",
		strconv.Itoa(m.Cmd.Process.Pid))
	out, err := trace.StderrPipe()
	if err == nil {
		err = trace.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	if !lines.Scan() || !strings.Contains(lines.Text(), "attached") {
		t.Skipf("strace does not attach: %s", lines.Text())
	}
	go func() {
		for lines.Scan() {
		}
		_ = trace.Wait()
	}()
}

// killedInAppend kills the coordinator a at its next call, while it makes request n, and repeats the request. It
// returns how many records of it the two had before the repeat.
func (q *quorumRig) killedInAppend(a, b *quorumMember, call string, n int) (atA, atB int) {
	t, order := q.T, fmt.Sprintf("order-%d", n)
	hash := hashOf(t, n)
	a.killAt(t, call)
	if got, err := a.attestAs(t, n, order); err == nil {
		t.Fatalf("%s: answered %s", call, got.text)
	}
	_ = a.Cmd.Wait() // returns that it was killed
	a.Start(t)
	atA, atB = len(a.recordsOf(t, hash)), len(b.recordsOf(t, hash))
	made, err := a.attestAs(t, n, order)
	if err != nil || made.status != http.StatusOK || made.Hash != hash ||
		made.VerifyQuorum([]appliance.Address{a.signer, b.signer}, 2) != nil {
		t.Fatalf("%s: %v %s\n%s", call, err, made.text, a.Log())
	}
	if own, other := a.recordsOf(t, hash), b.recordsOf(t, hash); len(own) != 1 || len(other) != 1 ||
		own[0].ID != made.ID {
		t.Errorf("%s: %d attestations, and %s has signed %d times", call, len(own), b.name, len(other))
	}
	return atA, atB
}
