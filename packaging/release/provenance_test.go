package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

func TestProvenanceNamesCommitToolchainAndFiles(t *testing.T) {
	t.Parallel()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	packaged := filepath.Join(t.TempDir(), "attestd.deb")
	if err := os.WriteFile(packaged, []byte("a package"), 0o600); err != nil {
		t.Fatal(err)
	}
	commit := strings.Repeat("ab", 20)
	write := func() []byte {
		var out bytes.Buffer
		if err := run(&out, []string{"provenance", "-version", "1.2.3", "-commit", commit, "-date", "1793534400", program,
			packaged}); err != nil {
			t.Fatal(err)
		}
		return out.Bytes()
	}
	text := write()
	var s statement
	if err := json.Unmarshal(text, &s); err != nil {
		t.Fatal(err)
	}
	d := s.Predicate.BuildDefinition
	sum := sha256.Sum256([]byte("a package"))
	if s.Type != "https://in-toto.io/Statement/v1" || s.PredicateType != "https://slsa.dev/provenance/v1" ||
		len(s.Subject) != 2 || s.Subject[1].Name != "attestd.deb" ||
		s.Subject[1].Digest["sha256"] != hex.EncodeToString(sum[:]) {
		t.Errorf("statement: %s", text)
	}
	if d.InternalParameters["go"] != runtime.Version() || d.InternalParameters["GOOS"] != runtime.GOOS ||
		d.ExternalParameters["version"] != "1.2.3" || d.ResolvedDependencies[0].Digest["gitCommit"] != commit ||
		d.BuildType == "" || s.Predicate.RunDetails.Builder.ID == "" {
		t.Errorf("predicate: %s", text)
	}
	if !bytes.Equal(text, write()) {
		t.Error("the same build gives other bytes")
	}
	for _, args := range [][]string{{"provenance", program}, {"provenance", "-commit", "main", program},
		{"provenance", "-commit", commit, program, packaged + ".missing"}} {
		if err := run(&bytes.Buffer{}, args); err == nil {
			t.Errorf("%v was accepted", args)
		}
	}
}
