package main

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
	"github.com/santhosh-tekuri/jsonschema/v6"
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

func TestRPMChangelog(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "CHANGELOG.md")
	if err := os.WriteFile(file, []byte(strings.Replace(keptChangelog, "- One.", "- 100% of it.", 1)),
		0o600); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := writeChangelog(&out, file, "rpm", "1.0.0+2.gab", day); err != nil {
		t.Fatal(err)
	}
	// In a spec file, % begins a macro.
	if want := `* Sun Nov 01 2026 attestd maintainers <attestd@users.noreply.github.com> - 1.0.0+2.gab-1
- Fixed: A thing that broke.

* Thu Oct 01 2026 attestd maintainers <attestd@users.noreply.github.com> - 1.0.0-1
- Added: 100%% of it.
- Added: Two.
`; out.String() != want {
		t.Errorf("got\n%swant\n%s", out.String(), want)
	}
}

func TestOwnChangelogIsReadWhole(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../CHANGELOG.md")
	if err != nil {
		t.Fatal(err)
	}
	// The changelog may have no unreleased change right after a release. A package of another version would then get an
	// entry that is in no changelog.
	all := strings.Replace(string(text), "## [Unreleased]\n", "## [Unreleased]\n\n### Added\n\n- One more.\n", 1)
	releases, err := parseChangelog(all, "9.9.9", day)
	if err != nil {
		t.Fatal(err)
	}
	got := 0
	for _, r := range releases {
		got += len(r.changes)
	}
	if want := strings.Count(all, "\n- "); got != want {
		t.Errorf("%d changes of %d", got, want)
	}
}

const bundled = `[{"name":"@a/b","version":"1.2.3","license":"MIT","integrity":"sha512-z4PhNX7vuL3xVChQ1m2AB9Yg5AULVxXcg/SpIdNs6c5H0NE8XYXysP+DGNKHfuwvY7kxvUdBeoGlODJ6+SfaPg=="}]`

// playground returns a list with one bundle, as built by build.mjs.
func playground(t *testing.T, packages string) []string {
	t.Helper()
	dist := t.TempDir()
	var licenses bytes.Buffer
	w := gzip.NewWriter(&licenses)
	if _, err := io.WriteString(w, "@a/b 1.2.3 (MIT)\n\nPermission is hereby granted"); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(w.Close(), os.Mkdir(filepath.Join(dist, "assets"), 0o700)); err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{"index.html": "", "packages.json": packages,
		"assets/licenses-1.txt.gz": licenses.String()} {
		if err := os.WriteFile(filepath.Join(dist, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return []string{dist, t.TempDir()}
}

// The test binary is a Go program with linked modules.
func TestSBOMListsWhatIsShipped(t *testing.T) {
	t.Parallel()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dist := playground(t, bundled)
	var first, second bytes.Buffer
	for _, w := range []*bytes.Buffer{&first, &second} {
		if err := writeSBOM(t.Context(), w, program, dist, "1.2.3+4", day); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(first.Bytes(), second.Bytes()) {
		t.Error("not the same bytes twice")
	}
	schema := schema(t)
	if err := schema.Validate(unmarshal(t, first.Bytes())); err != nil {
		t.Errorf("%v", err)
	}
	var got cdx.BOM
	if err := json.Unmarshal(first.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	licenses := make(map[string]string)
	for _, c := range *got.Components {
		// The schema validates SPDX identifiers, but not expressions.
		for id := range strings.SplitSeq(licenseOf(c), " AND ") {
			if err := schema.Validate(unmarshal(t, []byte(`{"bomFormat": "CycloneDX", "specVersion": "1.6", "components": [
				{"type": "library", "name": "a", "licenses": [{"license": {"id": "`+id+`"}}]}]}`))); err != nil && c.PackageURL != "" {
				t.Errorf("%s: license %q", c.Name, id)
			}
		}
		licenses[c.PackageURL[:max(0, strings.LastIndex(c.PackageURL, "@"))]] = licenseOf(c)
	}
	for purl, want := range map[string]string{
		"pkg:golang/std": "BSD-3-Clause", "pkg:golang/github.com/google/uuid": "BSD-3-Clause",
		"pkg:golang/github.com/CycloneDX/cyclonedx-go": "Apache-2.0",
		"pkg:npm/%40a/b": "MIT",
	} {
		if licenses[purl] != want {
			t.Errorf("%s: license %q, want %q", purl, licenses[purl], want)
		}
	}
	if c := got.Metadata.Component; c.Version != "1.2.3+4" || !strings.HasSuffix(c.PackageURL, "@1.2.3%2B4") ||
		got.Metadata.Timestamp != "2026-11-01T12:00:00Z" {
		t.Errorf("metadata: %+v", got.Metadata)
	}
}

func licenseOf(c cdx.Component) string {
	if c.Licenses == nil {
		return ""
	}
	if l := (*c.Licenses)[0]; l.License != nil {
		return l.License.ID
	}
	return (*c.Licenses)[0].Expression
}

func TestSBOMNeedsTheListOfABundle(t *testing.T) {
	t.Parallel()
	for name, packages := range map[string]string{"no JSON": "",
		"a package without a license": `[{"name":"a","version":"1"}]`} {
		if got, err := bundledPackages(playground(t, packages)); err == nil {
			t.Errorf("%s: %v", name, got)
		}
	}
	if got, err := bundledPackages([]string{t.TempDir()}); err != nil || got != nil {
		t.Errorf("built without the playground: %v, %v", got, err)
	}
}

// The schema refuses invalid documents, so its approval is meaningful.
func TestSchemaRefusesWhatIsNoSBOM(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		`{}`,
		`{"bomFormat": "CycloneDX", "specVersion": "1.6", "components": [{"type": "library"}]}`,
		`{"bomFormat": "CycloneDX", "specVersion": "1.6", "components": [{"type": "library", "name": "a", "licenses": [{"license": {"id": "mine"}}]}]}`,
	} {
		if err := schema(t).Validate(unmarshal(t, []byte(text))); err == nil {
			t.Errorf("valid: %s", text)
		}
	}
}

// schema returns CycloneDX's schema from the module of its library.
func schema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	dir, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}",
		"github.com/CycloneDX/cyclonedx-go").Output()
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	for name, file := range map[string]string{
		"bom-1.6.schema.json": "bom-1.6.schema.json", "spdx.schema.json": "spdx.schema.json",
		"jsf-0.82.schema.json": "jsf-0.82.schemax.json",
	} {
		text, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)), "schema", file))
		if err != nil {
			t.Fatal(err)
		}
		if err := c.AddResource("http://cyclonedx.org/schema/"+name, unmarshal(t, text)); err != nil {
			t.Fatal(err)
		}
	}
	s, err := c.Compile("http://cyclonedx.org/schema/bom-1.6.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func unmarshal(t *testing.T, text []byte) any {
	t.Helper()
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// The bills of materials that make packages has written are valid.
func TestReleasedSBOMsAreValid(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../../dist/*.cdx.json")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := schema(t).Validate(unmarshal(t, text)); err != nil {
			t.Errorf("%s: %v", file, err)
		}
	}
}

func TestNoticesHaveThePlaygrounds(t *testing.T) {
	t.Parallel()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := writeNotices(t.Context(), &out, program, playground(t, bundled)); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"\nGo 1.", "\ngithub.com/google/uuid v",
		"\n@a/b 1.2.3 (MIT)\n\nPermission is hereby granted"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q", want)
		}
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

// Each module of the programs and tests, and each bundled npm package, has an allowed license.
func TestLicensesAreAllowed(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	if err := checkLicenses(t.Context(), &out, "github.com/attestd/attestd/...",
		[]string{"../../api/graphiql/dist", "../../api/console/dist"}); err != nil {
		t.Error(err)
	}
	for _, want := range []string{"go.etcd.io/bbolt ", "github.com/hanwen/go-fuse/v2 "} {
		// used by the program; used by tests
		if !strings.Contains(out.String(), want) {
			t.Errorf("%s was not looked at", want)
		}
	}
}

func TestALicenseThatNobodyAllowedIsRefused(t *testing.T) {
	t.Parallel()
	for expression, allowed := range map[string]bool{
		"MIT": true, "Apache-2.0 AND BSD-3-Clause": true, "(MIT AND Zlib)": true,
		"GPL-3.0-only": false, "MIT AND AGPL-3.0-only": false, "MIT OR GPL-2.0-only": false, "UNLICENSED": false,
		"": false,
	} {
		err := judgeLicense("example.com/a v1", expression)
		if (err == nil) != allowed || err != nil &&
			!strings.Contains(err.Error(), "example.com/a v1: its license is "+expression) {
			t.Errorf("%q: %v", expression, err)
		}
	}
	bundle := playground(t, `[{"name":"a","version":"1","license":"GPL-3.0-only"}]`)
	if err := checkLicenses(t.Context(), io.Discard, ".", bundle); err == nil ||
		!strings.Contains(err.Error(), "a 1: its license is GPL-3.0-only") {
		t.Errorf("a package of a bundle: %v", err)
	}
	if license, err := moduleLicense("example.com/a", t.TempDir()); err == nil {
		t.Errorf("a module without a license file has the license %s", license)
	}
}
