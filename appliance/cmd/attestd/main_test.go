package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/attestd/attestd/api/client"
	"github.com/attestd/attestd/hsm/hsmtest"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"attestd": main})
}

// Each script is a session at a terminal: see testdata/script.
func TestCommands(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(e *testscript.Env) error {
			module, err := hsmtest.Module()
			e.Setenv("MODULE", module)
			e.Setenv("LISTEN", freeAddress(t))
			return err
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"ready": ready, "status": status, "replace": replace, "firstline": firstLine, "verifierkey": verifierKey,
		},
	})
}

// freeAddress is an address on which nothing listens.
func freeAddress(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// ready SOCKET waits until a daemon answers there.
func ready(ts *testscript.TestScript, negated bool, args []string) {
	if negated || len(args) != 1 {
		ts.Fatalf("usage: ready SOCKET")
	}
	ts.Check(waitReady(ts.MkAbs(args[0])))
}

// waitReady waits until a daemon answers on the admin socket.
func waitReady(socket string) error {
	daemon := client.NewAdmin(socket)
	defer daemon.Close()
	for deadline := time.Now().Add(time.Minute); ; {
		_, err := daemon.Status(context.Background())
		if err == nil {
			return nil
		}
		if !errors.Is(err, client.ErrNotRunning) || time.Now().After(deadline) {
			return fmt.Errorf("the daemon at %s is not ready: %w", socket, err)
		}
		time.Sleep(10 * time.Millisecond) // between two questions; nothing tells from outside when the socket is there
	}
}

// replace FILE OLD NEW changes a text in a file.
func replace(ts *testscript.TestScript, negated bool, args []string) {
	if negated || len(args) != 3 {
		ts.Fatalf("usage: replace FILE OLD NEW")
	}
	path := ts.MkAbs(args[0])
	text := ts.ReadFile(path)
	changed := strings.Replace(text, args[1], args[2], 1)
	if changed == text {
		ts.Fatalf("%s does not hold %q", args[0], args[1])
	}
	ts.Check(os.WriteFile(path, []byte(changed), 0o600))
}

// status N COMMAND… runs a command and expects that exit status.
func status(ts *testscript.TestScript, negated bool, args []string) {
	if negated || len(args) < 2 {
		ts.Fatalf("usage: status N COMMAND...")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	got := 0
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		exit, ok := errors.AsType[*exec.ExitError](err)
		if !ok {
			ts.Fatalf("%v", err)
		}
		got = exit.ExitCode()
	}
	if got != want {
		ts.Fatalf("exit status %d, want %d", got, want)
	}
}

// firstline FROM TO copies a file's first line.
func firstLine(ts *testscript.TestScript, negated bool, args []string) {
	if negated || len(args) != 2 {
		ts.Fatalf("usage: firstline FROM TO")
	}
	line, _, _ := strings.Cut(ts.ReadFile(args[0]), "\n")
	ts.Check(os.WriteFile(ts.MkAbs(args[1]), []byte(line+"\n"), 0o600))
}

// verifierkey ADDRESS sets VKEY to what the appliance publishes as its log's key.
func verifierKey(ts *testscript.TestScript, negated bool, args []string) {
	if negated || len(args) != 1 {
		ts.Fatalf("usage: verifierkey ADDRESS")
	}
	c, err := client.New("http://"+args[0], "", client.Options{})
	ts.Check(err)
	attestor, err := c.Attestor(context.Background())
	ts.Check(err)
	ts.Setenv("VKEY", attestor.Log.VerifierKey)
}
