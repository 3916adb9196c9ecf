package config_test

import (
	"bytes"
	"os"
	"slices"
	"testing"

	"github.com/attestd/attestd/appliance/config"
)

func TestTheReferenceIsWhatTheGeneratorGives(t *testing.T) {
	committed, err := os.ReadFile("../../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(committed, config.Markdown()) {
		t.Error("docs/configuration.md is not that of these settings: go generate ./appliance/config")
	}
}

func TestDefaultsAreAConfiguration(t *testing.T) {
	none := config.Source{File: os.DevNull}
	c, err := none.Load(nil)
	if err != nil {
		t.Fatal(err)
	}
	if listen := config.DefaultText("server.listen"); c.Server.Listen != listen {
		t.Errorf("server.listen is %q, and its default %q", c.Server.Listen, listen)
	}
}

func TestReloadableValuesAreSettings(t *testing.T) {
	for _, name := range config.Reloadable() {
		if !slices.ContainsFunc(config.Settings(), func(s config.Setting) bool { return s.Name == name }) {
			t.Errorf("no setting %s", name)
		}
	}
}

func TestDifferingNamesWhatAnotherConfigurationHasOtherwise(t *testing.T) {
	none := config.Source{File: os.DevNull}
	one, err := none.Load(nil)
	if err != nil {
		t.Fatal(err)
	}
	other, err := none.Load(map[string]any{"log.level": "debug", "graphql.max_depth": 13})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := one.Differing(other), []string{"graphql.max_depth", "log.level"}; !slices.Equal(got, want) {
		t.Errorf("%v differ, want %v", got, want)
	}
}
