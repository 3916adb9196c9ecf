package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/attestd/attestd/api/client"
	"github.com/attestd/attestd/appliance/daemontest"
	"github.com/attestd/attestd/store/postgres/postgrestest"
)

// database makes an empty database, and sets OWNER to its owner's URL. With the word initialised, it also makes the
// tables, and sets DATABASE and PGPASSFILE for the daemons.
func database(t *testing.T, ts *testscript.TestScript, negated bool, args []string) {
	if negated || len(args) > 1 || len(args) == 1 && args[0] != "initialised" {
		ts.Fatalf("usage: database [initialised]")
	}
	server := postgrestest.NewServer(t, postgrestest.Settings{}) // doctor only remarks that it has no standby
	const name = "attestd"
	server.Exec(t, postgrestest.Owner, "CREATE DATABASE "+name)
	ts.Setenv("OWNER", server.URL(name))
	ts.Setenv("DATABASE", server.RoleURL(url.User(daemontest.Role), name))
	passfile := ts.MkAbs("pgpass")
	ts.Check(os.WriteFile(passfile, []byte("*:*:*:"+daemontest.Role+":"+daemontest.Password+"\n"), 0o600))
	ts.Setenv("PGPASSFILE", passfile)
	if len(args) == 1 {
		daemontest.InitStore(t, server, name)
	}
}

// The scripts for an appliance with a file also pass with a database. The other scripts test the file itself, or are
// independent of API keys and journal.
func TestDrillCommandsOnADatabase(t *testing.T) {
	t.Parallel()
	p := scripts(t)
	p.Dir = ""
	for _, name := range []string{"audit", "dev", "health", "hsm_address", "policy", "reload", "screening",
		"approvals"} {
		p.Files = append(p.Files, "testdata/script/"+name+".txtar")
	}
	setup := p.Setup
	server := postgrestest.NewServer(t, postgrestest.Settings{}) // doctor finds no fault with it
	var databases atomic.Int64
	p.Setup = func(e *testscript.Env) error {
		name := fmt.Sprintf("attestd%d", databases.Add(1))
		server.Exec(t, postgrestest.Owner, "CREATE DATABASE "+name)
		e.Setenv("ATTESTD_STORE_URL", daemontest.InitStore(t, server, name))
		return setup(e)
	}
	testscript.Run(t, p)
}

// remedy FILE TEXT runs the command below the finding with that text.
func remedy(ts *testscript.TestScript, negated bool, args []string) {
	if negated || len(args) != 2 {
		ts.Fatalf("usage: remedy FILE TEXT")
	}
	found := regexp.MustCompile(`(?m)^.*` + args[1] + `.*\n +→ (.*)$`).FindStringSubmatch(ts.ReadFile(args[0]))
	if found == nil {
		ts.Fatalf("no finding with %q", args[1])
	}
	command := found[1]
	for _, end := range []string{", once ", ", then ", "; or ", "; look "} {
		command, _, _ = strings.Cut(command, end)
	}
	ts.Check(ts.Exec("sh", "-c", command))
}

// sql STATEMENT… runs statements as the owner.
func sql(ts *testscript.TestScript, negated bool, args []string) {
	conn, err := pgx.Connect(context.Background(), ts.Getenv("OWNER"))
	ts.Check(err)
	defer conn.Close(context.Background())
	for _, statement := range args {
		_, err = conn.Exec(context.Background(), statement)
		ts.Check(err)
	}
}

// shows SETTING VALUE waits until new connections have that value of a setting: the server reloads its configuration
// asynchronously.
func shows(ts *testscript.TestScript, negated bool, args []string) {
	if negated || len(args) != 2 {
		ts.Fatalf("usage: shows SETTING VALUE")
	}
	for deadline := time.Now().Add(daemontest.Patience); ; time.Sleep(20 * time.Millisecond) { // between two polls
		conn, err := pgx.Connect(context.Background(), ts.Getenv("OWNER"))
		ts.Check(err)
		var value string
		err = errors.Join(conn.QueryRow(context.Background(), "SELECT current_setting($1)", args[0]).Scan(&value),
			conn.Close(context.Background()))
		ts.Check(err)
		if value == args[1] {
			return
		}
		if time.Now().After(deadline) {
			ts.Fatalf("%s is %q", args[0], value)
		}
	}
}

// members N SOCKET waits until the daemon knows N members that were seen just now.
func members(ts *testscript.TestScript, negated bool, args []string) {
	if negated || len(args) != 2 {
		ts.Fatalf("usage: members N SOCKET")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	daemon := client.NewAdmin(ts.MkAbs(args[1]))
	defer daemon.Close()
	for deadline := time.Now().Add(daemontest.Patience); ; {
		status, err := daemon.Cluster(context.Background())
		current := 0
		for _, m := range status.Members {
			if m.Size == status.Head.Size && m.SignerAddress != "" {
				current++
			}
		}
		if err == nil && current == want {
			return
		}
		if time.Now().After(deadline) {
			ts.Fatalf("%+v, %v", status, err)
		}
		time.Sleep(50 * time.Millisecond) // between two polls; members report every two seconds
	}
}

// differ SOCKET [OF...] waits until exactly these differences between members are reported by the daemon.
func differ(ts *testscript.TestScript, negated bool, args []string) {
	if negated || len(args) < 1 {
		ts.Fatalf("usage: differ SOCKET [OF...]")
	}
	daemon := client.NewAdmin(ts.MkAbs(args[0]))
	defer daemon.Close()
	for deadline := time.Now().Add(daemontest.Patience); ; {
		status, err := daemon.Cluster(context.Background())
		found := []string{}
		for _, d := range status.Differences {
			found = append(found, d.Of)
		}
		if err == nil && slices.Equal(found, args[1:]) {
			return
		}
		if time.Now().After(deadline) {
			ts.Fatalf("%+v, %v", status, err)
		}
		time.Sleep(50 * time.Millisecond) // between two polls; members report every two seconds
	}
}

// stalled SOCKET [PART...] waits until the daemon reports exactly these parts as the reason to attest nothing.
func stalled(ts *testscript.TestScript, negated bool, args []string) {
	if negated || len(args) < 1 {
		ts.Fatalf("usage: stalled SOCKET [PART...]")
	}
	daemon := client.NewAdmin(ts.MkAbs(args[0]))
	defer daemon.Close()
	for deadline := time.Now().Add(daemontest.Patience); ; {
		status, err := daemon.Cluster(context.Background())
		if err == nil && slices.Equal(slices.Sorted(maps.Keys(status.Failing)), args[1:]) {
			return
		}
		if time.Now().After(deadline) {
			ts.Fatalf("%+v, %v", status, err)
		}
		time.Sleep(50 * time.Millisecond) // between two polls
	}
}
