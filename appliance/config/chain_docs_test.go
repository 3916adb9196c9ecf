package config_test

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/attestd/attestd/appliance/config"
)

// The example in docs/chain.md is a valid configuration.
func TestTheExampleOfTheWatchtowerIsAConfiguration(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/chain.md")
	if err != nil {
		t.Fatal(err)
	}
	example := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindSubmatch(text)
	if example == nil {
		t.Fatal("docs/chain.md has no example")
	}
	path := filepath.Join(t.TempDir(), "attestd.yaml")
	if err := os.WriteFile(path, example[1], 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := (&config.Source{File: path}).Load(nil)
	if err != nil || len(c.Chain.Contracts) != 1 || !c.Chain.Halt {
		t.Errorf("%v", err)
	}
}
