package main

import (
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/store/postgres"
	"github.com/attestd/attestd/store/postgres/postgrestest"
)

// TestDrillReleasedVersionsSideBySide runs each released attestd and this one over one database. docs/cluster.md,
// "Upgrade", has the rule.
func TestDrillReleasedVersionsSideBySide(t *testing.T) {
	list, err := os.ReadFile("testdata/released.txt")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(list)) {
		if revision := strings.TrimSpace(line); !strings.HasPrefix(revision, "#") {
			t.Run(revision, func(t *testing.T) { startMixed(t, buildRevision(t, revision)).run() })
		}
	}
}

// buildRevision builds attestd from the repository's history.
func buildRevision(t *testing.T, revision string) (program string) {
	t.Helper()
	source := t.TempDir()
	archive := filepath.Join(source, "source.tar")
	if out, err := exec.Command("git", "-C", "../../..", "archive", "--output", archive,
		revision).CombinedOutput(); err != nil {
		t.Skipf("the source of %s is not here: %v: %s", revision, err, out)
	}
	program = filepath.Join(source, "attestd")
	build := exec.Command("sh", "-ec",
		"tar -xf source.tar && go build -buildvcs=false -o "+program+" ./appliance/cmd/attestd")
	build.Dir = source
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", revision, err, out)
	}
	return program
}

// mixed is an appliance of a released attestd and one of this attestd. Both have the same attestor key and database.
type mixed struct {
	*testing.T
	server   *postgrestest.Server
	owner    string // URL of the tables' owner
	released *daemonProcess
	current  *daemonProcess
}

// startMixed starts the released appliance. Its own attestd makes its folder and the tables, and moves its journal
// there.
func startMixed(t *testing.T, program string) *mixed {
	t.Helper()
	m := &mixed{T: t, server: postgrestest.NewServer(t, nil),
		released: &daemonProcess{dir: t.TempDir(), program: program}}
	m.server.Exec(t, postgrestest.Owner, "CREATE DATABASE "+clusterDatabase)
	m.owner = m.server.URL(clusterDatabase)
	listen := freeAddress(t)
	m.released.url = "http://" + listen
	dev := exec.Command(program, "dev", "--dir", m.released.dir, "--listen", listen, "--transfers", "0")
	if err := dev.Start(); err != nil {
		t.Fatal(err)
	}
	err := waitReady(filepath.Join(m.released.dir, "admin.sock"))
	_ = dev.Process.Kill()
	_ = dev.Wait()
	if err != nil {
		t.Fatal(err)
	}
	password := filepath.Join(m.released.dir, "database-password")
	if err := os.WriteFile(password, []byte(databasePassword), 0o600); err != nil {
		t.Fatal(err)
	}
	m.released.run(t, "store", "init", "--url", m.owner, "--password-file", password)
	m.current = m.released.twin(t)
	m.current.program = ""
	shared := m.server.RoleURL(url.User(databaseRole), clusterDatabase)
	for _, d := range []*daemonProcess{m.released, m.current} {
		d.configure("ATTESTD_STORE_URL="+shared, "PGPASSWORD="+databasePassword)
	}
	m.released.run(t, "store", "copy", "--from", "bolt:"+filepath.Join(m.released.dir, "data"), "--to", shared)
	m.start(m.released)
	m.released.token = m.key(m.released)
	m.current.token = m.released.token
	return m
}

func (m *mixed) start(d *daemonProcess) {
	m.Helper()
	d.start(m)
	m.Cleanup(func() {
		if d.cmd.ProcessState == nil {
			d.kill(m)
		}
	})
}

// key makes an API key.
func (m *mixed) key(d *daemonProcess) string {
	m.Helper()
	return strings.TrimSpace(d.run(m, "key", "create", "--name", "mixed", "--scope", "attest"))
}

// schema returns the version of the tables, and the newest one that this attestd knows.
func (m *mixed) schema() postgres.Schema {
	m.Helper()
	s, err := postgres.Status(m.Context(), m.owner)
	if err != nil {
		m.Fatal(err)
	}
	return s
}

// attests waits until an appliance attests.
func (m *mixed) attests(d *daemonProcess) (a appliance.Attestation) {
	m.Helper()
	await(m, "it attests", func() (bool, string) {
		var status int
		var code string
		a, status, code = d.attestation(m.T)
		return status == http.StatusOK, code + "\n" + string(d.log())
	})
	return a
}

// attestsNothing sends requests at once, which must all be refused.
func (m *mixed) attestsNothing(d *daemonProcess, why string) {
	m.Helper()
	for range 20 {
		if _, status, _ := d.attestation(m.T); status == http.StatusOK {
			m.Fatalf("%s: it attests", why)
		}
	}
}

func (m *mixed) run() {
	m.attests(m.released)
	old := m.schema()
	m.start(m.current)
	if old.Version < old.Newest {
		m.attestsNothing(m.current, "with older tables")
		m.current.awaitReadiness(m.T, http.StatusServiceUnavailable, "")
		if log := string(m.current.log()); !strings.Contains(log, "attestd store migrate") {
			m.Errorf("the log does not name the remedy:\n%s", log)
		}
		m.current.run(m, "store", "migrate", "--url", m.owner)
	}
	m.attests(m.current)
	if m.oldest() <= old.Version {
		m.sideBySide()
	}
	if old.Version < old.Newest { // as a migration excludes an attestd, unless one has done so already
		m.server.Exec(m, clusterDatabase, fmt.Sprint("UPDATE log_head SET oldest_schema = ", old.Newest))
		m.excluded()
	}
	m.attests(m.current)
	m.current.run(m, "log", "verify")
}

// oldest returns the oldest schema version whose attestd may use the tables.
func (m *mixed) oldest() int64 {
	m.Helper()
	n, err := strconv.ParseInt(m.server.Query(m, clusterDatabase, "SELECT oldest_schema FROM log_head"), 10, 64)
	if err != nil {
		m.Fatal(err)
	}
	return n
}

// sideBySide checks that each appliance obeys the other one.
func (m *mixed) sideBySide() {
	for _, pair := range [][2]*daemonProcess{{m.current, m.released}, {m.released, m.current}} {
		at, other := pair[0], pair[1]
		made := m.attests(at)
		if resp, body := other.ask(m.T, http.MethodGet, "/functions/v1/attest/"+made.ID.String(), other.token,
			nil); resp.StatusCode != http.StatusOK {
			m.Errorf("an attestation of the other: %s %s", resp.Status, body)
		}
		at.run(m, "pause", "--reason", "a test")
		m.attestsNothing(other, "while the other is paused")
		at.run(m, "resume")

		usual := other.token
		other.token = m.key(at)
		m.attests(other)
		id, _, _ := strings.Cut(strings.TrimPrefix(other.token, "attestd_"), "_")
		at.run(m, "key", "revoke", id)
		m.attestsNothing(other, "with a revoked key")
		other.token = usual
		m.attests(other)
	}
}

// excluded checks that the released appliance attests nothing, neither at once nor after a restart.
func (m *mixed) excluded() {
	m.attestsNothing(m.released, "with tables that exclude it")
	m.released.kill(m)
	m.start(m.released)
	m.attestsNothing(m.released, "with tables that exclude it, after a restart")
	await(m, "the log names the remedy", func() (bool, string) {
		log := string(m.released.log())
		return strings.Contains(log, "install the newer attestd"), log
	})
}
