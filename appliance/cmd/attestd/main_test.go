package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/attestd/attestd/api/client"
	"github.com/attestd/attestd/appliance/config"
	"github.com/attestd/attestd/appliance/daemontest"
	"github.com/attestd/attestd/appliance/sinks"
	"github.com/attestd/attestd/hsm"
	"github.com/attestd/attestd/hsm/softhsm"
	"github.com/attestd/attestd/hsm/worker"
)

func TestMain(m *testing.M) { daemontest.Main(m, map[string]func(){"attestd": attestd}) }

// attestd is the program with fast encryption by passphrases: 256 MiB of scrypt take many seconds with the race
// detector.
func attestd() {
	worker.Main()
	os.Exit(runHere(terminal{in: os.Stdin, out: os.Stdout, err: os.Stderr, environ: os.Environ(), passphraseWork: 10}))
}

// racedScripts are the scripts whose daemons have the race detector.
var racedScripts = []string{"approvals", "events", "reload", "upstream"}

// Each script is a session at a terminal: see testdata/script.
func TestCommands(t *testing.T) {
	t.Parallel()
	testscript.Run(t, scripts(t))
}

// Each script waits for limits of many seconds.
func TestDrillCommands(t *testing.T) {
	p := scripts(t)
	p.Dir = "testdata/drills"
	testscript.Run(t, p)
}

func scripts(t *testing.T) testscript.Params {
	return testscript.Params{
		Dir: "testdata/script",
		Setup: func(e *testscript.Env) error {
			if script := strings.TrimPrefix(filepath.Base(e.WorkDir), "script-"); slices.Contains(racedScripts, script) {
				e.Setenv("PATH", filepath.Dir(daemontest.Raced(t))+string(filepath.ListSeparator)+e.Getenv("PATH"))
			}
			e.Defer(func() { eventsDescribed(t, e.WorkDir) })
			module, err := softhsm.Module()
			e.Setenv("MODULE", module)
			e.Setenv("GORACE", os.Getenv("GORACE"))
			e.Setenv("LISTEN", daemontest.FreeAddress(t))
			e.Setenv("LISTEN2", daemontest.FreeAddress(t))
			return err
		},
		Condition: func(condition string) (bool, error) {
			if condition != "fresh" {
				return false, fmt.Errorf("no condition %q", condition)
			}
			_, err := os.Stat(filepath.Dir(config.DefaultFile)) // this machine has no appliance
			return errors.Is(err, fs.ErrNotExist), nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"ready": ready, "status": status, "replace": replace, "firstline": firstLine, "verifierkey": verifierKey,
			"certificate": certificate, "served": served, "mode": mode, "truncate": truncate, "typed": typed,
			"documented": documented,
			"signedby":   signedBy, "walk": walk, "members": members, "differ": differ, "stalled": stalled,
			"remedy": remedy, "sql": sql, "shows": shows,
			"lost": lost, "shipped": waitSink, "failing": failingSink, "tokens": tokenStates, "jsonform": jsonForm,
			"refused": refused, "passkey": passkey, "asks": asks, "webhook": webhook,
			"database": func(ts *testscript.TestScript, negated bool, args []string) { database(t, ts, negated, args) },
		},
	}
}

// ready SOCKET waits until a daemon answers there.
func ready(ts *testscript.TestScript, negated bool, args []string) {
	if negated || len(args) != 1 {
		ts.Fatalf("usage: ready SOCKET")
	}
	ts.Check(daemontest.WaitReady(ts.MkAbs(args[0])))
}

// replace FILE OLD NEW changes a text in a file. In NEW, \n is a new line.
func replace(ts *testscript.TestScript, negated bool, args []string) {
	if negated || len(args) != 3 {
		ts.Fatalf("usage: replace FILE OLD NEW")
	}
	path := ts.MkAbs(args[0])
	text := ts.ReadFile(path)
	changed := strings.Replace(text, args[1], strings.ReplaceAll(args[2], `\n`, "\n"), 1)
	if changed == text {
		ts.Fatalf("%s does not hold %q", args[0], args[1])
	}
	ts.Check(os.WriteFile(path, []byte(changed), 0o600))
}

// refused KEYFILE CODE requests an attestation at ATTESTD_URL once and expects that code. `attestd attest` would try
// again until its timeout.
func refused(ts *testscript.TestScript, negated bool, args []string) {
	if negated || len(args) != 2 {
		ts.Fatalf("usage: refused KEYFILE CODE")
	}
	c, err := client.New(ts.Getenv("ATTESTD_URL"), strings.TrimSpace(ts.ReadFile(args[0])), client.Options{})
	ts.Check(err)
	_, err = c.Attest(context.Background(), daemontest.RandomRequest(), client.AttestOptions{})
	if string(client.CodeOf(err)) != args[1] {
		ts.Fatalf("an attestation: %v, want code %s", err, args[1])
	}
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

// certificate NAME LIFE makes NAME.pem and NAME.key for the host name NAME, valid for LIFE from now.
func certificate(ts *testscript.TestScript, negated bool, args []string) {
	if negated || len(args) != 2 {
		ts.Fatalf("usage: certificate NAME LIFE")
	}
	life, err := time.ParseDuration(args[1])
	ts.Check(err)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	ts.Check(err)
	template := x509.Certificate{
		SerialNumber: big.NewInt(1), DNSNames: []string{args[0]},
		NotBefore: time.Now().Add(-24 * time.Hour), NotAfter: time.Now().Add(life),
	}
	der, err := x509.CreateCertificate(rand.Reader, &template, &template, key.Public(), key)
	ts.Check(err)
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	ts.Check(err)
	for name, block := range map[string]*pem.Block{".pem": {Type: "CERTIFICATE", Bytes: der},
		".key": {Type: "PRIVATE KEY", Bytes: secret}} {
		ts.Check(os.WriteFile(ts.MkAbs(args[0]+name), pem.EncodeToMemory(block), 0o600))
	}
}

// served ADDRESS NAME expects the server's certificate to be for that host name.
func served(ts *testscript.TestScript, negated bool, args []string) {
	if negated || len(args) != 2 {
		ts.Fatalf("usage: served ADDRESS NAME")
	}
	c, err := tls.Dial("tcp", args[0], &tls.Config{InsecureSkipVerify: true})
	ts.Check(err)
	defer c.Close()
	if got := c.ConnectionState().PeerCertificates[0].DNSNames[0]; got != args[1] {
		ts.Fatalf("%s shows the certificate of %s, want %s", args[0], got, args[1])
	}
}

// mode FILE MODE expects a file's permissions.
func mode(ts *testscript.TestScript, negated bool, args []string) {
	if negated || len(args) != 2 {
		ts.Fatalf("usage: mode FILE MODE")
	}
	stat, err := os.Stat(ts.MkAbs(args[0]))
	ts.Check(err)
	if got := fmt.Sprintf("%04o", stat.Mode().Perm()); got != args[1] {
		ts.Fatalf("%s has mode %s, want %s", args[0], got, args[1])
	}
}

// typed FILE runs the last command in a text: chmod MODE FILE.
func typed(ts *testscript.TestScript, negated bool, args []string) {
	if negated || len(args) != 1 {
		ts.Fatalf("usage: typed FILE")
	}
	commands := regexp.MustCompile(`chmod \S+ \S+`).FindAllString(ts.ReadFile(args[0]), -1)
	if len(commands) == 0 {
		ts.Fatalf("no command in %s", ts.ReadFile(args[0]))
	}
	ts.Check(exec.Command("sh", "-c", commands[len(commands)-1]).Run())
}

// documented DOCUMENT TEXT FILE writes the only command of a document that contains TEXT to a file.
func documented(ts *testscript.TestScript, negated bool, args []string) {
	if negated || len(args) != 3 {
		ts.Fatalf("usage: documented DOCUMENT TEXT FILE")
	}
	text, err := os.ReadFile(filepath.Join("../../..", args[0]))
	ts.Check(err)
	commands := regexp.MustCompile(`(?m)^(?:[$#]| +cmd:) (.*`+regexp.QuoteMeta(args[1])+`.*)$`).FindAllSubmatch(text, -1)
	if len(commands) != 1 {
		ts.Fatalf("%s has %d commands with %q, want one", args[0], len(commands), args[1])
	}
	ts.Check(os.WriteFile(ts.MkAbs(args[2]), append(commands[0][1], '\n'), 0o600))
}

// truncate FROM TO N copies a file's first N bytes.
func truncate(ts *testscript.TestScript, negated bool, args []string) {
	if negated || len(args) != 3 {
		ts.Fatalf("usage: truncate FROM TO N")
	}
	n, err := strconv.Atoi(args[2])
	ts.Check(err)
	ts.Check(os.WriteFile(ts.MkAbs(args[1]), []byte(ts.ReadFile(args[0]))[:n], 0o600))
}

// firstline FROM TO copies a file's first line.
func firstLine(ts *testscript.TestScript, negated bool, args []string) {
	if negated || len(args) != 2 {
		ts.Fatalf("usage: firstline FROM TO")
	}
	line, _, _ := strings.Cut(ts.ReadFile(args[0]), "\n")
	ts.Check(os.WriteFile(ts.MkAbs(args[1]), []byte(line+"\n"), 0o600))
}

// verifierkey ADDRESS sets VKEY and SIGNER to the appliance's verifier key and its attestor key's address.
func verifierKey(ts *testscript.TestScript, negated bool, args []string) {
	if negated || len(args) != 1 {
		ts.Fatalf("usage: verifierkey ADDRESS")
	}
	c, err := client.New("http://"+args[0], "", client.Options{})
	ts.Check(err)
	attestor, err := c.Attestor(context.Background())
	ts.Check(err)
	ts.Setenv("VKEY", attestor.Log.VerifierKey)
	ts.Setenv("SIGNER", attestor.SignerAddress.String())
}

// shipped SOCKET SINK… waits until the sinks have all records.
func waitSink(ts *testscript.TestScript, negated bool, args []string) {
	if negated || len(args) < 2 {
		ts.Fatalf("usage: shipped SOCKET SINK...")
	}
	admin := client.NewAdmin(ts.MkAbs(args[0]))
	defer admin.Close()
	ts.Check(daemontest.AwaitSinks(admin, args[1:]...))
}

// failing SOCKET SINK waits until the sink reports a failure.
func failingSink(ts *testscript.TestScript, negated bool, args []string) {
	if negated || len(args) != 2 {
		ts.Fatalf("usage: failing SOCKET SINK")
	}
	admin := client.NewAdmin(ts.MkAbs(args[0]))
	defer admin.Close()
	for deadline := time.Now().Add(daemontest.Patience); ; time.Sleep(20 * time.Millisecond) { // between two polls
		all, err := admin.Sinks(context.Background())
		ts.Check(err)
		if slices.ContainsFunc(all, func(s sinks.Status) bool { return s.Name == args[1] && s.Failing != "" }) {
			return
		}
		if time.Now().After(deadline) {
			ts.Fatalf("%+v", all)
		}
	}
}

// tokens SOCKET STATE… waits until the daemon's tokens have these states, in their order.
func tokenStates(ts *testscript.TestScript, negated bool, args []string) {
	if negated || len(args) < 3 {
		ts.Fatalf("usage: tokens SOCKET STATE STATE...")
	}
	daemon := client.NewAdmin(ts.MkAbs(args[0]))
	defer daemon.Close()
	for deadline := time.Now().Add(daemontest.Patience); ; time.Sleep(50 * time.Millisecond) { // between two polls
		var status hsm.Status
		ts.Check(daemon.HSMStatus(context.Background(), &status))
		var states []string
		for _, token := range status.Tokens {
			states = append(states, token.State)
		}
		if slices.Equal(states, args[1:]) {
			return
		}
		if time.Now().After(deadline) {
			ts.Fatalf("the tokens are %q", states)
		}
	}
}
