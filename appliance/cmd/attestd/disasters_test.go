package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/archive"
	"github.com/attestd/attestd/appliance/daemontest"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/store/bolt"
)

// disaster is a row of the table in docs/operations.md: how to cause it, and the findings of doctor.
type disaster struct {
	row    string // a part of the first column
	broken func(t *testing.T, d *daemontest.Daemon)
	says   []string // findings of the failing checks: each a pattern over a finding and its remedy
}

// disasters has each row of the table. Rows that doctor cannot find say why.
var disasters = []disaster{
	{"attestd does not start", func(t *testing.T, d *daemontest.Daemon) {
		l, err := net.Listen("tcp", strings.TrimPrefix(d.URL, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
	}, []string{`fail +ports +server.listen .*in use by another program\n +→ find the program`}},
	{"status 3", func(t *testing.T, d *daemontest.Daemon) {
		d.Write(t, "pin", "wrong\n")
		err := d.Command("serve").Run()
		if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != 3 {
			t.Fatalf("serve with a wrong PIN: %v", err)
		}
	},
		[]string{`fail +PIN .*CKR_PIN_INCORRECT.*\n +→ .*do not guess.*attestd setup --yes --pin-file FILE; then: systemctl start attestd`}},
	{"HSM is away", func(t *testing.T, d *daemontest.Daemon) {
		d.Configure("ATTESTD_SERVER_REQUEST_TIMEOUT=1s")
		d.Start(t)
		t.Cleanup(func() { d.Kill(t) })
		rename(t, filepath.Join(d.Dir, "tokens"))
		if _, status, code := attestation(t, d); status != http.StatusServiceUnavailable {
			t.Errorf("status %d, code %q", status, code)
		}
	}, []string{`fail +daemon +hsm: .*\n +→ read the log: journalctl -u attestd`}},
	{"HSM is lost", func(t *testing.T, d *daemontest.Daemon) {
		rename(t, filepath.Join(d.Dir, "tokens"))
	}, []string{`fail +SoftHSM .*tokens is missing.*\n +→ restore it from its backup.*: tar -C `}},
	{"HSM is lost", func(t *testing.T, d *daemontest.Daemon) {
		rename(t, filepath.Join(d.Dir, "tokens"))
		if err := os.Mkdir(filepath.Join(d.Dir, "tokens"), 0o700); err != nil {
			t.Fatal(err)
		}
	}, []string{`fail +token .*not found.*\n +→ .*if the token is lost, tar -C `}},
	{"attestor key is lost", func(t *testing.T, d *daemontest.Daemon) {
		loseKeys(t, d)
	},
		[]string{`fail +key .*not found.*\n +→ restore the key from the HSM's backup.*attestd hsm init.*attestor on chain`}},
	{"others' hands", nil, nil}, // undamaged: doctor cannot know
	{"disk is full", func(t *testing.T, d *daemontest.Daemon) {
		d.Configure("ATTESTD_JOURNAL_MIN_FREE=8000000GiB") // filling this machine's disk would be the alternative
	}, []string{`fail +disk space .*attestd does not sign below .*\n +→ free some space`}},
	{"clock jumped", func(t *testing.T, d *daemontest.Daemon) {
		d.Start(t)
		attests(t, d)
		d.Kill(t)
		recordInAnHour(t, filepath.Join(d.Dir, "data"))
		d.Start(t)
		t.Cleanup(func() { d.Kill(t) })
		if _, status, code := attestation(t, d); status != http.StatusServiceUnavailable ||
			code != string(appliance.CodeJournalUnavailable) {
			t.Errorf("status %d, code %q", status, code)
		}
	},
		[]string{`fail +clock +.*before the journal's last record of .*attestd does not sign until.*\n +→ set the clock.*journal.max_ahead`}},
	{"read-only for now", nil, nil}, // TestADiskThatTakesNoWrites; doctor reports it like the next
	{"disk failed", func(t *testing.T, d *daemontest.Daemon) {
		d.Start(t)
		d.Kill(t)
		readOnly(t, filepath.Join(d.Dir, "data")) // as the kernel does after a disk fault
	},
		[]string{`fail +disk sync .*read-only file system\n +→ .*mount a working disk there, then: attestd restore FILE`}},
	{"machine is lost", func(t *testing.T, d *daemontest.Daemon) {
		for _, name := range []string{"tokens", "data", "pin"} {
			rename(t, filepath.Join(d.Dir, name))
		}
	}, []string{
		`fail +SoftHSM .*\n +→ restore it from its backup`,
		`ok +journal +none yet.*On a machine that replaces another, run this first: attestd restore FILE`,
	}},
	{"finds damage", func(t *testing.T, d *daemontest.Daemon) {
		d.Start(t)
		attests(t, d)
		d.Kill(t)
		settle(t, d)
		damageRecord(t, filepath.Join(d.Dir, "data", archive.StoreFile))
		if out := d.Fails(t, "log", "verify"); !strings.Contains(out, "record") {
			t.Fatalf("log verify does not find it: %s", out)
		}
	},
		[]string{`fail +journal .*record .*\n +→ list all damage: attestd log verify.*as evidence, then restore the newest backup: attestd restore --force FILE`}},
	{"finds damage", func(t *testing.T, d *daemontest.Daemon) { // while the daemon serves
		d.Start(t)
		t.Cleanup(func() { d.Kill(t) })
		attests(t, d)
		damageRecord(t, filepath.Join(d.Dir, "data", archive.StoreFile))
	}, []string{`fail +journal .*record .*\n +→ list all damage: attestd log verify`}},
	{"journal_lost", func(t *testing.T, d *daemontest.Daemon) {
		d.Start(t)
		attests(t, d)
		d.Kill(t)
		settle(t, d)
		journal := filepath.Join(d.Dir, "data", archive.StoreFile)
		older, err := os.ReadFile(journal)
		if err != nil {
			t.Fatal(err)
		}
		d.Start(t)
		attests(t, d)
		d.Run(t, "log", "checkpoint")
		d.Kill(t)
		settle(t, d)
		write(t, journal, older)
	},
		[]string{`fail +mark .*fewer records than the published checkpoint\n +→ put the newer journal back.*attestd log accept-loss`}},
}

func TestDoctorHasARemedyForEachDisaster(t *testing.T) {
	t.Parallel()
	rows := documentedDisasters(t)
	for i, disaster := range disasters {
		matched := 0
		for row := range rows {
			if strings.Contains(row, disaster.row) {
				matched++
				rows[row] = true
			}
		}
		if matched != 1 {
			t.Errorf("%q is in %d rows of the document", disaster.row, matched)
		}
		if disaster.broken == nil {
			continue
		}
		t.Run(fmt.Sprintf("%d %s", i+1, disaster.row), func(t *testing.T) {
			t.Parallel()
			d := daemontest.New(t)
			disaster.broken(t, d)
			out, _ := d.Command("doctor").CombinedOutput() // fails, and says why
			for _, want := range disaster.says {
				if !regexp.MustCompile(want).Match(out) {
					t.Errorf("doctor does not say %s:\n%s", want, out)
				}
			}
			if bytes.Contains(out, []byte("install the HSM's PKCS#11 library")) {
				t.Errorf("the library is there:\n%s", out)
			}
		})
	}
	for row, covered := range rows {
		if !covered {
			t.Errorf("doctor was not asked after %q", row)
		}
	}
}

// documentedDisasters are the rows of the table, all false.
func documentedDisasters(t *testing.T) map[string]bool {
	t.Helper()
	text, err := os.ReadFile("../../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, found := strings.Cut(string(text), "\n## Disasters\n\n| what happened | what to do |\n| --- | --- |\n")
	if !found {
		t.Fatal("docs/operations.md has no table of disasters")
	}
	rows := make(map[string]bool)
	for line := range strings.Lines(table) {
		if !strings.HasPrefix(line, "| ") {
			break
		}
		row, _, _ := strings.Cut(strings.TrimPrefix(line, "| "), " |")
		rows[row] = false
	}
	return rows
}

// change replaces a text in the configuration.
func change(t *testing.T, d *daemontest.Daemon, old, to string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(d.Dir, "attestd.yaml"))
	if err != nil || !bytes.Contains(text, []byte(old)) {
		t.Fatalf("%v, or no %s in %s", err, old, text)
	}
	d.Write(t, "attestd.yaml", strings.ReplaceAll(string(text), old, to))
}

// loseKeys removes the keys of SoftHSM's tokens, which remain.
func loseKeys(t *testing.T, d *daemontest.Daemon) {
	t.Helper()
	objects, err := filepath.Glob(filepath.Join(d.Dir, "tokens", "*", "*.object"))
	if err != nil || len(objects) < 2 {
		t.Fatal(objects, err)
	}
	for _, object := range objects {
		if filepath.Base(object) != "token.object" {
			rename(t, object)
		}
	}
}

// recordInAnHour appends a copy of the newest record, dated an hour from now.
func recordInAnHour(t *testing.T, dir string) {
	t.Helper()
	key, err := archive.ReadLogKey(dir)
	if err != nil {
		t.Fatal(err)
	}
	store, err := bolt.Open(filepath.Join(dir, archive.StoreFile), bolt.Options{
		Signer: key.Signer, Verifier: key.Verifier, Now: func() time.Time { return time.Now().Add(time.Hour) },
	})
	if err != nil {
		t.Fatal(err)
	}
	newest, err := store.Journal().List(t.Context(), journal.Query{Limit: 1})
	if err != nil || len(newest) == 0 {
		t.Fatal(len(newest), err)
	}
	again := newest[0].Record
	again.ID, again.IdempotencyKey = uuid.New(), ""
	_, _, err = store.Journal().Append(t.Context(), again)
	if err := errors.Join(err, store.Close()); err != nil {
		t.Fatal(err)
	}
}

// rename moves a file or a folder away.
func rename(t *testing.T, path string) {
	t.Helper()
	if err := os.Rename(path, path+".away"); err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
}

// readOnly mounts a folder read-only, for root, too.
func readOnly(t *testing.T, folder string) {
	t.Helper()
	for _, args := range [][]string{{"--bind", folder, folder}, {"-o", "remount,bind,ro", folder}} {
		if out, err := exec.Command("mount", args...).CombinedOutput(); err != nil {
			t.Skipf("nothing may be mounted here: %v: %s", err, out)
		}
	}
	t.Cleanup(func() {
		if out, err := exec.Command("umount", folder).CombinedOutput(); err != nil {
			t.Errorf("umount: %v: %s", err, out)
		}
	})
}

// settle moves all of the write-ahead log into the journal's file, as a clean stop does.
func settle(t *testing.T, d *daemontest.Daemon) {
	t.Helper()
	if err := archive.FlushLog(filepath.Join(d.Dir, "data")); err != nil {
		t.Fatal(err)
	}
}

// damageRecord changes a digit of a record in the journal's file, as soon as it has one.
func damageRecord(t *testing.T, path string) {
	t.Helper()
	const member = `"beneficiary":"0x`
	var text []byte
	var at int
	daemontest.Await(t, "a record is in the file", func() (bool, string) {
		var err error
		if text, err = os.ReadFile(path); err != nil {
			return false, err.Error()
		}
		at = bytes.LastIndex(text, []byte(member))
		return at >= 0, "there is none"
	})
	digit := at + len(member) + 7
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt([]byte{cmp.Or(map[byte]byte{'1': '2'}[text[digit]], '1')}, int64(digit)); err != nil {
		t.Fatal(err)
	}
}

func TestDoctorSaysHowMuchOfTheJournalItHasChecked(t *testing.T) {
	t.Parallel()
	d := daemontest.New(t)
	if out := d.Run(t, "doctor"); !strings.Contains(out, "1 records and their checkpoint are valid") {
		// the API key's event
		t.Error(out)
	}
	d.Start(t)
	attests(t, d)
	for _, while := range []string{"serving", "stopped"} {
		if out := d.Run(t, "doctor"); !regexp.MustCompile(
			`ok +journal +3 records and their checkpoint are valid; all were checked`).MatchString(out) {
			t.Errorf("%s:\n%s", while, out)
		}
		if while == "serving" {
			d.Kill(t)
		}
	}
}

// A fake systemctl in the PATH gives the answers of a real one, since systemd does not run in tests.
func TestDoctorLooksAtTheSocketUnit(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ answer, says string }{
		"none": {"UnitFileState=\nActiveState=inactive\n", `ok +certificate +none: .*on this machine only`},
		"not enabled": {"UnitFileState=disabled\nActiveState=inactive\nListen=[::]:443 (Stream)\n",
			`ok +certificate +none: .*on this machine only`},
		"enabled and dead": {"UnitFileState=enabled\nActiveState=inactive\nListen=[::]:443 (Stream)\n",
			`fail +socket +attestd.socket is enabled, but inactive: clients cannot connect to \[::\]:443\n +→ systemctl stop attestd && systemctl start attestd.socket attestd`},
		"failed": {"UnitFileState=enabled\nActiveState=failed\nListen=[::]:443 (Stream)\n",
			`fail +socket +attestd.socket is enabled, but failed`},
		"plain HTTP": {"UnitFileState=enabled\nActiveState=active\nListen=[::]:443 (Stream)\n",
			`fail +certificate +none: the API would be plain HTTP on \[::\]:443, and API keys would cross the network unencrypted.*\n +→ set server.tls.cert`},
		"this machine": {"UnitFileState=enabled\nActiveState=active\nListen=127.0.0.1:443 (Stream)\nListen=/run/attestd/api.sock (Stream)\n", `ok +certificate +none: .*on this machine only`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := daemontest.New(t)
			bin := t.TempDir()
			if err := os.WriteFile(filepath.Join(bin, "systemctl"), []byte("#!/bin/sh\ncat <<'E'\n"+c.answer+"E\n"),
				0o700); err != nil {
				t.Fatal(err)
			}
			d.Configure(fmt.Sprintf("PATH=%s:%s", bin, os.Getenv("PATH")))
			out, _ := d.Command("doctor").CombinedOutput() // may fail
			if !regexp.MustCompile(c.says).Match(out) {
				t.Errorf("doctor does not say %s:\n%s", c.says, out)
			}
		})
	}
}

func TestAMissingCredentialIsNotALibraryThatIsMissing(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root can decrypt a credential")
	}
	d := daemontest.New(t)
	change(t, d, "pin-source=file:"+filepath.Join(d.Dir, "pin"), "pin-source=credential:attestd-test-that-is-not-there")
	out := d.Fails(t, "doctor")
	for _, want := range []string{
		`fail +PIN .*attestd.attestd-test-that-is-not-there.*\n +→ write the PIN to a file, then run: attestd setup --yes --pin-file FILE`,
		`warn +module .*was not loaded`,
	} {
		if !regexp.MustCompile(want).MatchString(out) {
			t.Errorf("doctor does not say %s:\n%s", want, out)
		}
	}
	if strings.Contains(out, "install the HSM") {
		t.Errorf("the library is there:\n%s", out)
	}
}
