// Package packaging has no code. It tests the files that make the packages, without building any. The tests of built
// packages have the build tag packages (make test-packages).
package packaging

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func TestScriptsAreShellcheckClean(t *testing.T) {
	t.Parallel()
	var scripts []string
	for _, pattern := range []string{"*.sh", "deb/*", "rpm/*"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatalf("no %s: %v", pattern, err)
		}
		scripts = append(scripts, files...)
	}
	need(t, "shellcheck")
	out, err := exec.CommandContext(t.Context(),
		"shellcheck", append([]string{"--shell=sh"}, scripts...)...).CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// vulncheck.sh never passes silently without a check.
func TestVulnerabilitiesAreNeverPassedInSilence(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		database, program string // VULNDB; the program in place of go
		passes            bool
		says              string
	}{
		"none is known":              {"", "true", true, ""},
		"the database is away":       {"", "false", false, "VULNDB=offline"},
		"nobody is to look":          {"offline", "false", true, "NOT CHECKED, because of VULNDB=offline"},
		"a mirror":                   {"https://mirror.example", "echo", true, "-db https://mirror.example ./..."},
		"the database, if none else": {"", "echo", true, "-db https://vuln.go.dev ./..."},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd := exec.CommandContext(t.Context(), "sh", "vulncheck.sh", "govulncheck")
			cmd.Env = append(os.Environ(), "GO="+test.program, "VULNDB="+test.database)
			out, err := cmd.CombinedOutput()
			if (err == nil) != test.passes || !strings.Contains(string(out), test.says) {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
}

// need skips a test if a program is missing.
func need(t *testing.T, programs ...string) {
	t.Helper()
	for _, p := range programs {
		if _, err := exec.LookPath(p); err != nil {
			t.Skipf("%s is not on this machine (make deps-packages installs it)", p)
		}
	}
}

// A link to a heading, in the same or another document, leads to a heading.
func TestDocumentsLinkToHeadings(t *testing.T) {
	t.Parallel()
	headings := func(text string) (anchors []string) {
		for _, line := range regexp.MustCompile("(?m)^#+ (.+)$").FindAllStringSubmatch(
			regexp.MustCompile("(?s)```.*?```").ReplaceAllString(text, ""), -1) {
			anchor := regexp.MustCompile(`[^a-z0-9 _-]`).ReplaceAllString(strings.ToLower(line[1]), "")
			anchors = append(anchors, strings.ReplaceAll(anchor, " ", "-"))
		}
		return anchors
	}
	documents, err := filepath.Glob("../docs/*.md")
	if err != nil || len(documents) == 0 {
		t.Fatalf("no documents: %v", err)
	}
	for _, document := range append(documents, "../README.md") {
		text, err := os.ReadFile(document)
		if err != nil {
			t.Fatal(err)
		}
		for _, link := range regexp.MustCompile(`\]\(([^):#]*)#([^)]+)\)`).FindAllStringSubmatch(string(text), -1) {
			target := text
			if link[1] != "" {
				if target, err = os.ReadFile(filepath.Join(filepath.Dir(document), link[1])); err != nil {
					t.Errorf("%s: %v", document, err)
					continue
				}
			}
			if !slices.Contains(headings(string(target)), link[2]) {
				t.Errorf("%s links to %s#%s: there is no such heading", document, link[1], link[2])
			}
		}
	}
}
