package config_test

import (
	"bytes"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

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

func TestTheManualHasEachSetting(t *testing.T) {
	manual := string(config.Manual(""))
	for _, s := range config.Settings() {
		if entry := "**" + strings.ReplaceAll(s.Name, "_", `\_`) + "**"; strings.Count(manual, entry) != 1 {
			t.Errorf("%s is there %d times", entry, strings.Count(manual, entry))
		}
	}
	if n := strings.Count(manual, "** (reload)\n"); n != len(config.Reloadable()) {
		t.Errorf("%d values are marked, want %d", n, len(config.Reloadable()))
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

// A hung HSM call must end while its request can still be answered.
func TestTheCallTimeoutIsShorterThanTheRequestTimeout(t *testing.T) {
	none := config.Source{File: os.DevNull}
	for name, test := range map[string]struct {
		call, request string
		want          time.Duration // 0: refused
	}{
		"by default, a third": {"0s", "9s", 3 * time.Second},
		"as it is set":        {"5s", "9s", 5 * time.Second},
		"as long":             {"9s", "9s", 0},
		"less than nothing":   {"-1s", "9s", 0},
	} {
		c, err := none.Load(map[string]any{"hsm.call_timeout": test.call, "server.request_timeout": test.request})
		switch {
		case test.want == 0 && (err == nil || !strings.Contains(err.Error(), "hsm.call_timeout")):
			t.Errorf("%s: got %v, want an error", name, err)
		case test.want > 0 && (err != nil || c.HSMCallTimeout() != test.want):
			t.Errorf("%s: got %v, want %s", name, err, test.want)
		}
	}
}

func TestAnOriginIsWhatABrowserSends(t *testing.T) {
	for origin, ok := range map[string]bool{
		"https://app.example.com": true, "http://localhost:3000": true, "*": true,
		"https://app.example.com/": false, "https://App.example.com": false, "app.example.com": false,
		"https://": false, "null": false,
	} {
		for _, name := range []string{"ATTESTD_SERVER_ORIGINS", "ATTESTD_GRAPHQL_ORIGINS"} {
			_, err := (&config.Source{File: os.DevNull, Environ: []string{name + "=" + origin}}).Load(nil)
			if (err == nil) != ok {
				t.Errorf("%s=%s: %v", name, origin, err)
			}
		}
	}
}
