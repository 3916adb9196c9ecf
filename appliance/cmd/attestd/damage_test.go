package main

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/attestd/attestd/appliance/daemon"
	"github.com/attestd/attestd/appliance/daemontest"
	"github.com/attestd/attestd/store/replica"
)

// damages are ways to damage a file, by their result.
var damages = map[string]func(path string) error{
	"nothing is left":  func(path string) error { return os.Truncate(path, 0) },
	"a part is left":   func(path string) error { return os.Truncate(path, 100_000) },
	"garbage in front": func(path string) error { return writeGarbage(path, 0, 64<<10) },
	"garbage behind":   func(path string) error { return writeGarbage(path, 32<<10, 4<<20) },
}

func writeGarbage(path string, at int64, n int) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.WriteAt(bytes.Repeat([]byte("garbage\x00\xff"), n/9), at)
	return err
}

// aFolder replaces the file by a folder. It only works if no process has the file open.
func aFolder(path string) error {
	if err := os.Remove(path); err != nil {
		return err
	}
	return os.Mkdir(path, 0o700)
}

func TestADamagedReplicaNeverStopsAttestations(t *testing.T) {
	t.Parallel()
	for name, damage := range damages {
		for _, while := range []string{"stopped", "serving"} {
			t.Run(name+", "+while, func(t *testing.T) { damageReplica(t, damage, while == "serving") })
		}
	}
	t.Run("a folder, stopped", func(t *testing.T) { damageReplica(t, aFolder, false) })
}

func damageReplica(t *testing.T, damage func(path string) error, serving bool) {
	t.Parallel()
	d := daemontest.New(t)
	metrics := daemontest.FreeAddress(t)
	d.Configure("ATTESTD_METRICS_LISTEN=" + metrics)
	d.Run(t, "replica", "generate", "--transfers", "200", "--file", filepath.Join(d.Dir, "records"))
	d.Run(t, "replica", "import", filepath.Join(d.Dir, "records"))
	if serving {
		d.Start(t)
		checkMetrics(t, metrics, "attestd_replica_available 1", "attestd_replica_set_aside_total 0")
	}
	if err := damage(d.Replica()); err != nil {
		t.Fatal(err)
	}
	if !serving {
		if out := d.Run(t, "doctor"); !strings.Contains(out, "warn  replica") ||
			!strings.Contains(out, "→ start attestd, which sets the file aside") {
			t.Errorf("doctor before the start:\n%s", out)
		}
		d.Start(t)
	}
	process := d.Cmd.Process.Pid
	defer d.Kill(t)

	const query = `{"query":"{ v2_transfers(args: {p_limit: 100}) { packet_hash sort_order } v2_stats_count { value } }"}`
	daemontest.Await(t, "the replica is set aside", func() (bool, string) {
		attests(t, d)
		resp, body := d.Ask(t, http.MethodPost, daemon.GraphQLPath, "", strings.NewReader(query))
		if resp.StatusCode != http.StatusOK && resp.StatusCode != http.StatusServiceUnavailable {
			t.Errorf("a read of a damaged replica: %s %s", resp.Status, body)
		}
		found, err := replica.SetAside(d.Replica())
		return len(found) == 1 && strings.Contains(body, `"v2_transfers":[]`), fmt.Sprint(found, err, body)
	})
	checkMetrics(t, metrics, "attestd_replica_available 1", "attestd_replica_set_aside_total 1")
	if !strings.Contains(string(d.Log()), "set aside") {
		t.Errorf("the log does not say so:\n%s", d.Log())
	}
	out := d.Run(t, "doctor")
	for _, want := range []string{"warn  replica", ".damaged-", "→ fill the new replica: attestd replica import FILE"} {
		if !strings.Contains(out, want) {
			t.Errorf("doctor lacks %q:\n%s", want, out)
		}
	}
	d.Run(t, "replica", "import", filepath.Join(d.Dir, "records"))
	if s := replicaStatus(t, d); s.Rows["transfer"] != 200 {
		t.Errorf("%d transfers of 200 after the import", s.Rows["transfer"])
	}
	attests(t, d)
	if d.Cmd.Process.Pid != process || d.Cmd.ProcessState != nil {
		t.Error("the daemon was started again")
	}
}

func TestADamagedReplicaFillsAgainFromItsUpstream(t *testing.T) {
	t.Parallel()
	up := daemontest.NewUpstream(t, "300")
	d := daemontest.New(t)
	follow(d, up.URL)
	d.Configure("ATTESTD_GRAPHQL_MAX_LAG=15s")
	d.Start(t)
	t.Cleanup(func() { d.Kill(t) })
	d.Run(t, "replica", "sync")
	awaitSame(t, up, d)
	before := replicaStatus(t, d).ID
	if err := damages["garbage behind"](d.Replica()); err != nil {
		t.Fatal(err)
	}
	daemontest.Await(t, "the damage is noticed", func() (bool, string) {
		attests(t, d)
		resp, body := d.Ask(t, http.MethodPost, daemon.GraphQLPath, "",
			strings.NewReader(`{"query":"{ v2_packets { packet_hash } }"}`))
		found, _ := replica.SetAside(d.Replica())
		return len(found) > 0, fmt.Sprint(resp.Status, len(body))
	})
	awaitSame(t, up, d)
	awaitReadiness(t, d, http.StatusOK, "ok")
	if after := replicaStatus(t, d).ID; after == before {
		t.Error("it is still the replica that was damaged")
	}
	if out := d.Run(t, "doctor"); !strings.Contains(out, "the follower fills the new replica") {
		t.Errorf("doctor does not say so:\n%s", out)
	}
}
