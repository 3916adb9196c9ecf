package config_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/attestd/attestd/appliance/config"
)

func TestOneTokenOrSeveral(t *testing.T) {
	none := config.Source{File: os.DevNull}
	byDefault, err := none.Load(nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		file    string
		environ []string
		want    []string
		err     []string // the error contains all of these
	}{
		"neither":            {"", nil, []string{byDefault.HSM.URI}, nil},
		"one":                {"hsm: { uri: a }", nil, []string{"a"}, nil},
		"several":            {"hsm: { uris: [a, b] }", nil, []string{"a", "b"}, nil},
		"several, of none":   {"hsm: { uri: a, uris: [] }", nil, []string{"a"}, nil},
		"by the environment": {"", []string{"ATTESTD_HSM_URIS=a,b"}, []string{"a", "b"}, nil},
		"both": {"data_dir: d\nhsm:\n  uri: a\n  uris:\n    - b\n", nil, nil,
			[]string{"hsm.uri (", "attestd.yaml, line 3)", "hsm.uris (", "attestd.yaml, line 4)", "are both set"}},
		"both, one of them by the environment": {"hsm: { uris: [a] }", []string{"ATTESTD_HSM_URI=b"}, nil,
			[]string{"attestd.yaml, line 1", "ATTESTD_HSM_URI)"}},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "attestd.yaml")
			if err := os.WriteFile(path, []byte(test.file), 0o600); err != nil {
				t.Fatal(err)
			}
			from := config.Source{File: path, Environ: test.environ}
			c, err := from.Load(nil)
			if test.err == nil {
				if err != nil || !slices.Equal(c.TokenURIs(), test.want) {
					t.Fatalf("%v, want %v: %v", c.TokenURIs(), test.want, err)
				}
				return
			}
			for _, part := range test.err {
				if err == nil || !strings.Contains(err.Error(), part) {
					t.Errorf("%v, want %q in it", err, part)
				}
			}
		})
	}
}
