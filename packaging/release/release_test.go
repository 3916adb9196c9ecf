package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

var day = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)

const keptChangelog = "# Changelog\n\nAll of it.\n\n## [Unreleased]\n\n### Fixed\n\n- A `thing`\n  that broke.\n\n" +
	"## [1.0.0] - 2026-10-01\n\n### Added\n\n- One.\n- Two.\n"

func TestChangelog(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ text, version, want string }{
		"unreleased": {keptChangelog, "1.0.0+2.gab", `attestd (1.0.0+2.gab) unstable; urgency=medium

  * Fixed: A thing that broke.

 -- attestd maintainers <attestd@users.noreply.github.com>  Sun, 01 Nov 2026 12:00:00 +0000

attestd (1.0.0) unstable; urgency=medium

  * Added: One.
  * Added: Two.

 -- attestd maintainers <attestd@users.noreply.github.com>  Thu, 01 Oct 2026 00:00:00 +0000
`},
		"released": {strings.Replace(keptChangelog, "### Fixed\n\n- A `thing`\n  that broke.\n\n", "", 1), "1.0.0", `attestd (1.0.0) unstable; urgency=medium

  * Added: One.
  * Added: Two.

 -- attestd maintainers <attestd@users.noreply.github.com>  Thu, 01 Oct 2026 00:00:00 +0000
`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "CHANGELOG.md")
			if err := os.WriteFile(file, []byte(test.text), 0o600); err != nil {
				t.Fatal(err)
			}
			var out bytes.Buffer
			if err := writeChangelog(&out, file, "debian", test.version, day); err != nil {
				t.Fatal(err)
			}
			if out.String() != test.want {
				t.Errorf("got\n%swant\n%s", out.String(), test.want)
			}
		})
	}
}

func TestOwnChangelogIsReadWhole(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../CHANGELOG.md")
	if err != nil {
		t.Fatal(err)
	}
	releases, err := parseChangelog(string(text), "9.9.9", day)
	if err != nil {
		t.Fatal(err)
	}
	got := 0
	for _, r := range releases {
		got += len(r.changes)
	}
	if want := strings.Count(string(text), "\n- "); got != want {
		t.Errorf("%d changes of %d", got, want)
	}
}

// The test itself is a Go program with modules linked in.
func TestSBOMListsWhatIsLinkedIn(t *testing.T) {
	t.Parallel()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var first, second bytes.Buffer
	for _, w := range []*bytes.Buffer{&first, &second} {
		if err := writeSBOM(w, program, "1.2.3", day); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(first.Bytes(), second.Bytes()) {
		t.Error("not the same bytes twice")
	}
	var got bom
	if err := json.Unmarshal(first.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	names := make(map[string]bool)
	for _, c := range got.Components {
		names[c.Name] = true
	}
	for _, want := range []string{"std", "github.com/google/uuid", "golang.org/x/mod"} {
		if !names[want] {
			t.Errorf("%s is not in %v", want, names)
		}
	}
	if got.Metadata.Component.Version != "1.2.3" || got.Metadata.Timestamp != "2026-11-01T12:00:00Z" {
		t.Errorf("metadata: %+v", got.Metadata)
	}
}

func TestNoticesNeedALicense(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var out bytes.Buffer
	if err := notice(&out, "m v1", dir); err == nil {
		t.Error("a module without a license was taken")
	}
	if err := os.WriteFile(filepath.Join(dir, "LICENSE.txt"), []byte("Do what you like."), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := notice(&out, "m v1", dir); err != nil || !strings.Contains(out.String(), "Do what you like.") {
		t.Errorf("%v\n%s", err, out.String())
	}
}
