package sinks_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/attestd/attestd/appliance/config"
)

// documented returns the only block of a language in docs/siem.md. instead holds pairs of old and new values; the block
// must contain each old value.
func documented(t testing.TB, language string, instead ...string) string {
	t.Helper()
	text, err := os.ReadFile("../../docs/siem.md")
	check(t, err)
	blocks := regexp.MustCompile("(?s)\n```"+language+"\n(.*?)```").FindAllSubmatch(text, -1)
	if len(blocks) != 1 {
		t.Fatalf("docs/siem.md has %d blocks of %s, want one", len(blocks), language)
	}
	block := string(blocks[0][1])
	for i := 0; i < len(instead); i += 2 {
		if !strings.Contains(block, instead[i]) {
			t.Fatalf("the block of %s has no %q", language, instead[i])
		}
		block = strings.ReplaceAll(block, instead[i], instead[i+1])
	}
	return block
}

func TestTheDocumentedConfigurationIsOne(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "attestd.yaml")
	check(t, os.WriteFile(path, []byte(documented(t, "yaml")), 0o600))
	c, err := (&config.Source{File: path}).Load(nil)
	check(t, err)
	if len(c.Audit.Sinks) != 3 {
		t.Errorf("it has %d sinks", len(c.Audit.Sinks))
	}
}
