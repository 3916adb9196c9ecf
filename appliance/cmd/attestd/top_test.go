package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/attestd/attestd/api/wire"
	"github.com/attestd/attestd/appliance"
)

// busy is a quarter of an hour of samples. Each second has more attestations than the previous one.
func busy() (all []wire.Sample) {
	for i := range topSeconds {
		one := wire.Sample{Attestations: int64(i), P50Seconds: new(.002), P99Seconds: new(.125), Reads: 7, InUse: 3,
			Keys: map[string]int64{}, Errors: map[appliance.Code]int64{}}
		for k := range 8 {
			one.Keys[fmt.Sprintf("k%015d", k)] = int64(k)
		}
		for _, code := range []appliance.Code{appliance.CodeIdempotencyMismatch, appliance.CodeAttestorKeyUnavailable,
			appliance.CodeTimeout, appliance.CodeOverloaded} {
			one.Errors[code] = 1
		}
		all = append(all, one)
	}
	return all
}

func TestTopFitsTheTerminal(t *testing.T) {
	t.Parallel()
	names := map[string]string{"k000000000000007": "a name that is as long as names of API keys may be"}
	for _, size := range []struct{ width, height int }{{80, 24}, {40, 24}, {200, 60}} {
		text := topText(busy(), "signs; 3 of 128 sessions", names, size.width, size.height)
		lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
		if len(lines) > size.height {
			t.Errorf("%d lines on %d", len(lines), size.height)
		}
		for _, line := range lines {
			if n := utf8.RuneCountInString(line); n > size.width {
				t.Errorf("%d columns on %d: %s", n, size.width, line)
			}
		}
		for _, want := range []string{`attest/s +899\.0 +869\.5 +449\.5`, `errors/s +4\.0`, `p99 ms +125\.0`,
			`sessions +3\.0`, `a name that is as long .* 7\.0`, `timeout|overloaded`} {
			if !regexp.MustCompile(want).MatchString(text) {
				t.Errorf("no %s in\n%s", want, text)
			}
		}
	}
}

func TestTopTellsNoLatencyWhereThereIsNone(t *testing.T) {
	t.Parallel()
	if text := topText([]wire.Sample{{}}, "signs", nil, 80,
		24); !regexp.MustCompile(`p50 ms +- +- +-\n`).MatchString(text) {
		t.Error(text)
	}
}

// terminalOf opens a pseudoterminal of a given size: the user's end and the program's end.
func terminalOf(t *testing.T, columns, rows uint16) (person, program *os.File) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	person, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	must(err)
	t.Cleanup(func() { person.Close() })
	must(unix.IoctlSetPointerInt(int(person.Fd()), unix.TIOCSPTLCK, 0))
	n, err := unix.IoctlGetInt(int(person.Fd()), unix.TIOCGPTN)
	must(err)
	program, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|syscall.O_NOCTTY, 0)
	must(err)
	must(unix.IoctlSetWinsize(int(program.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Col: columns, Row: rows}))
	return person, program
}

// A live view ends with q and with Ctrl-C, and restores the terminal.
func TestLiveViewsEndWithAKey(t *testing.T) {
	t.Parallel()
	d := newDaemonFolder(t)
	d.start(t)
	defer func() { d.kill(t) }()
	for _, c := range []struct {
		args []string
		sees string
		key  string
		exit int
	}{
		{[]string{"top"}, "attest/s", "q", exitOK},
		{[]string{"top"}, "attest/s", "\x03", exitInterrupted},
		{[]string{"status", "--watch"}, "Signing: operational, as 0x", "q", exitOK},
		{[]string{"status", "--watch"}, "Signing: operational, as 0x", "\x03", exitInterrupted},
	} {
		person, program := terminalOf(t, 40, 24)
		before, err := unix.IoctlGetTermios(int(program.Fd()), unix.TCGETS)
		if err != nil {
			t.Fatal(err)
		}
		cmd := d.command(c.args...)
		var said bytes.Buffer
		cmd.Stdin, cmd.Stdout, cmd.Stderr = program, program, &said
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		killer := time.AfterFunc(patience, func() { _ = cmd.Process.Kill() })
		drawn := readUntil(t, person, c.sees)
		if _, err := person.WriteString(c.key); err != nil {
			t.Fatal(err)
		}
		go func() { _, _ = person.WriteTo(new(bytes.Buffer)) }() // drains the last output
		_ = cmd.Wait()
		killer.Stop()
		if status := cmd.ProcessState.ExitCode(); status != c.exit {
			t.Errorf("%s, %q: exit status %d, want %d: %s%s", c.args, c.key, status, c.exit, drawn, said.String())
		}
		after, err := unix.IoctlGetTermios(int(program.Fd()), unix.TCGETS)
		if err != nil || *after != *before {
			t.Errorf("%s, %q: the terminal is left as %+v, %v; it was %+v", c.args, c.key, after, err, before)
		}
		program.Close()
	}
}

func readUntil(t *testing.T, f *os.File, want string) string {
	t.Helper()
	var all []byte
	for buffer := make([]byte, 4096); !bytes.Contains(all, []byte(want)); {
		n, err := f.Read(buffer)
		if all = append(all, buffer[:n]...); err != nil {
			t.Fatalf("%v: %q", err, all)
		}
	}
	return string(all)
}

// Without a terminal, each second is a line.
func TestTopWritesASampleALine(t *testing.T) {
	t.Parallel()
	d := newDaemonFolder(t)
	d.start(t)
	defer func() { d.kill(t) }()
	text := d.following(t, func(line string) bool {
		return regexp.MustCompile(`Z  \d+ attestations  p50 .*  \d+ sessions$`).MatchString(line)
	}, "top")
	wanted := `"attestations":`
	objects := d.following(t, func(line string) bool {
		return strings.Contains(line, wanted)
	}, "top", "--output", "json")
	text.next(t)
	objects.next(t) // later samples are new
	wanted = `"attestations":1`
	d.run(t, "attest", "--url", d.url, "--api-key-file", filepath.Join(d.dir, "api-key"), "--unspendable",
		devUnspendable, "--beneficiary", devBeneficiary)
	objects.next(t)
	text.interrupt(t, "interrupted")
	objects.interrupt(t, "interrupted")
}
