package main

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/attestd/attestd/api/wire"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/daemontest"
)

// busy is a quarter of an hour of samples. Each second has more attestations than the previous one.
func busy() (all []wire.Sample) {
	for i := range topSeconds {
		one := wire.Sample{Time: time.Unix(int64(i), 0), Attestations: int64(i), P50Seconds: new(.002), P99Seconds: new(.125), Reads: 7, InUse: 3,
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

// topText is the view of a terminal.
func topText(samples []wire.Sample, names map[string]string, width, height int) string {
	var b strings.Builder
	writeTop(&page{w: &b}, samples, topState{"signing; 3 of 128 sessions", green}, names, width, height)
	return b.String()
}

// The view fits terminals of 40 columns and more, and fills them.
func TestTopFitsTheTerminal(t *testing.T) {
	t.Parallel()
	names := map[string]string{"k000000000000007": "a name that is as long as names of API keys may be"}
	for _, size := range []struct{ width, height, least int }{{80, 24, 19}, {40, 24, 19}, {200, 60, 33}, {133, 50, 33}} {
		text := topText(busy(), names, size.width, size.height)
		lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
		if len(lines) > size.height || len(lines) < size.least {
			t.Errorf("%d lines on %d", len(lines), size.height)
		}
		widest := 0
		for _, line := range lines {
			widest = max(widest, utf8.RuneCountInString(line))
		}
		if widest > size.width || widest < size.width-2 {
			t.Errorf("%d of %d columns are used:\n%s", widest, size.width, text)
		}
		for _, want := range []string{`attest/s +899\.0 +869\.5 +449\.5`, `errors/s +4\.0`, `p99 ms +125\.0`,
			`sessions +3\.0`, `a name that is as long .* 7\.0`, `timeout|overloaded`} {
			if !regexp.MustCompile(want).MatchString(text) {
				t.Errorf("no %s in\n%s", want, text)
			}
		}
		if size.width >= 80 && !regexp.MustCompile(`attest/s .* [▇█]{30,}\n`).MatchString(text) {
			t.Errorf("no sparkline in\n%s", text)
		}
		if size.height > topSmall != strings.Contains(text, "attestations per second in 15 min, at most 899.0") {
			t.Errorf("the chart at %d lines:\n%s", size.height, text)
		}
	}
}

// A chart's columns are as high as their values. What was not measured is a gap.
func TestAChartShowsValuesAndGaps(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		values []float64
		lines  []string
	}{
		{[]float64{0, 1, 4, 8, math.NaN(), 8}, []string{"▁▁▄█ █"}},
		{[]float64{0, 8, 12, 16}, []string{"  ▄█", "▁███"}},
		{[]float64{0, 0, math.NaN()}, []string{"▁▁ "}},
		{nil, []string{""}},
	} {
		if got := chart(c.values, len(c.lines)); !slices.Equal(got, c.lines) {
			t.Errorf("%v is %q, want %q", c.values, got, c.lines)
		}
	}
}

func TestTopTellsNoLatencyWhereThereIsNone(t *testing.T) {
	t.Parallel()
	if text := topText([]wire.Sample{{}}, nil, 80, 24); !regexp.MustCompile(`median ms +- +- +- +\n`).MatchString(text) {
		t.Error(text)
	}
}

// Colours take no room on the screen.
func TestALineIsCutWithItsColours(t *testing.T) {
	t.Parallel()
	p := &page{colours: true}
	for width, want := range map[int]string{0: "\x1b[31m\x1b[0m", 3: "\x1b[31mabc\x1b[0m", 7: "\x1b[31mabcdé\x1b[0mxy"} {
		if got := clip(paint(p, red, "abcdé")+"xyz", width); got != want {
			t.Errorf("of %d columns: %q, want %q", width, got, want)
		}
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
	d := daemontest.New(t)
	d.Start(t)
	defer func() { d.Kill(t) }()
	for _, c := range []struct {
		args []string
		sees string
		key  string
		exit int
	}{
		{[]string{"top"}, "attest/s", "q", exitOK},
		{[]string{"top"}, "attest/s", "\x03", exitInterrupted},
		{[]string{"status", "--watch"}, "Signing: operational", "q", exitOK},
		{[]string{"status", "--watch"}, "Signing: operational", "\x03", exitInterrupted},
	} {
		person, program := terminalOf(t, 80, 24)
		before, err := unix.IoctlGetTermios(int(program.Fd()), unix.TCGETS)
		if err != nil {
			t.Fatal(err)
		}
		cmd := d.Command(c.args...)
		var said bytes.Buffer
		cmd.Stdin, cmd.Stdout, cmd.Stderr = program, program, &said
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		killer := time.AfterFunc(daemontest.Patience, func() { _ = cmd.Process.Kill() })
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
	d := daemontest.New(t)
	d.Start(t)
	defer func() { d.Kill(t) }()
	text := follows(t, d, func(line string) bool {
		return regexp.MustCompile(`Z  \d+ attestations  median .*  \d+ sessions$`).MatchString(line)
	}, "top")
	wanted := `"attestations":`
	objects := follows(t, d, func(line string) bool {
		return strings.Contains(line, wanted)
	}, "top", "--output", "json")
	text.next(t)
	objects.next(t) // later samples are new
	wanted = `"attestations":1`
	d.Run(t, "attest", "--url", d.URL, "--api-key-file", filepath.Join(d.Dir, "api-key"), "--unspendable",
		devUnspendable, "--beneficiary", devBeneficiary)
	objects.next(t)
	text.interrupt(t, "interrupted")
	objects.interrupt(t, "interrupted")
}
