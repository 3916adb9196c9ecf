// Package systemd has no code. It contains the units that the packages install, and tests them with systemd.
//
//nolint:misspell // systemd-analyze is spelled so
package systemd

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// maxExposure is the maximum score of `systemd-analyze security`, times ten, from 0 (sealed off) to 100 (open).
const maxExposure = "15"

func TestUnitsAreValid(t *testing.T) {
	t.Parallel()
	dir := installed(t)
	out, err := analyze(t, append([]string{"verify", "--man=no"}, glob(t, dir, "attestd*.*")...)...)
	if err != nil || out != "" {
		t.Errorf("systemd-analyze verify: %v\n%s", err, out)
	}
}

func TestServicesAreSealedOff(t *testing.T) {
	t.Parallel()
	for _, unit := range glob(t, installed(t), "*.service") {
		out, err := analyze(t, "security", "--offline=true", "--no-pager", "--threshold="+maxExposure, unit)
		t.Log(lastLine(out))
		if err != nil {
			t.Errorf("%s: %v\n%s", filepath.Base(unit), err, out)
		}
	}
}

// The kernel reclaims pages before it kills the process (MemoryHigh below MemoryMax), and signing has priority over the
// backup.
func TestLimitsOfMemoryAndProcessors(t *testing.T) {
	t.Parallel()
	value := func(unit, name string) (n int) {
		t.Helper()
		text, err := os.ReadFile(unit)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			if of, found := strings.CutPrefix(line, name+"="); found {
				if n, err = strconv.Atoi(strings.TrimRight(of, "%\n")); err != nil {
					t.Fatal(err)
				}
			}
		}
		return n
	}
	const service, backup = "attestd.service", "attestd-backup.service"
	if high, most := value(service, "MemoryHigh"), value(service, "MemoryMax"); high < 50 || high >= most ||
		most >= 100 {
		t.Errorf("MemoryHigh=%d%%, MemoryMax=%d%%", high, most)
	}
	if ours, other := value(service, "CPUWeight"), value(backup, "CPUWeight"); ours <= 100 || other >= 100 ||
		other == 0 {
		t.Errorf("CPUWeight=%d, and %d of the backup", ours, other)
	}
}

// A unit with an example as its drop-in is still valid and sealed off.
func TestExamplesAreValidAndSealedOff(t *testing.T) {
	t.Parallel()
	examples := glob(t, "../packaging/examples", "*.conf")
	for _, example := range examples {
		t.Run(filepath.Base(example), func(t *testing.T) {
			t.Parallel()
			dir := installed(t)
			unit, _, _ := strings.Cut(filepath.Base(example), "-with-")
			dropIns := filepath.Join(dir, unit+".d")
			if err := os.Mkdir(dropIns, 0o755); err != nil {
				t.Fatal(err)
			}
			copyUnit(t, example, filepath.Join(dropIns, "10-example.conf"), program(dir))
			out, err := analyze(t, "verify", "--man=no", filepath.Join(dir, unit))
			if err != nil || out != "" {
				t.Errorf("systemd-analyze verify: %v\n%s", err, out)
			}
			if !strings.HasSuffix(unit, ".service") {
				return
			}
			out, err = analyze(t, "security", "--offline=true", "--no-pager", "--threshold="+maxExposure,
				filepath.Join(dir, unit))
			t.Log(lastLine(out))
			if err != nil {
				t.Errorf("systemd-analyze security: %v\n%s", err, out)
			}
		})
	}
}

// installed copies the units to a temporary folder, with another program in place of /usr/bin/attestd, which may be
// missing on this machine.
func installed(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(program(dir), []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, unit := range glob(t, ".", "attestd*") {
		copyUnit(t, unit, filepath.Join(dir, unit), program(dir))
	}
	return dir
}

func program(dir string) string { return filepath.Join(dir, "program") }

// analyze runs systemd-analyze and returns its output.
func analyze(t *testing.T, args ...string) (string, error) {
	t.Helper()
	path, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("systemd-analyze is not on this machine: the units are not checked")
	}
	cmd := exec.CommandContext(t.Context(), path, args...)
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func glob(t *testing.T, dir, pattern string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, pattern))
	if err != nil || len(files) == 0 {
		t.Fatalf("no %s in %s: %v", pattern, dir, err)
	}
	return files
}

// copyUnit copies a unit or a drop-in, with another program in place of attestd.
func copyUnit(t *testing.T, from, to, program string) {
	t.Helper()
	b, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to, []byte(strings.ReplaceAll(string(b), "/usr/bin/attestd", program)), 0o644); err != nil {
		t.Fatal(err)
	}
}

func lastLine(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return lines[len(lines)-1]
}
