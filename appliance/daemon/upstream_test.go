package daemon

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/config"
	"github.com/attestd/attestd/appliance/index"
	"github.com/attestd/attestd/appliance/index/follower"
	"github.com/attestd/attestd/hsm"
)

func TestValuesOfHeadersAreReadFromFilesAndCredentials(t *testing.T) {
	dir := t.TempDir()
	t.Setenv(hsm.CredentialsVariable, dir)
	for name, text := range map[string]string{"key": " secret\n", "empty": "\n", "two": "a\nb"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for text, want := range map[string]string{
		"X-Key: plain": "plain", "X-Key:plain:er": "plain:er", "X-Key: file:" + dir + "/key": "secret",
		"X-Key: credential:key": "secret",
	} {
		var h config.Header
		if err := h.UnmarshalText([]byte(text)); err != nil {
			t.Fatal(err)
		}
		if got, err := readHeader(h); err != nil || got != want || h.Name != "X-Key" {
			t.Errorf("%s: %q, %v", text, got, err)
		}
	}
	for _, value := range []string{"file:" + dir + "/empty", "credential:missing", "credential:two"} {
		if got, err := readHeader(config.Header{Name: "X-Key", Value: value}); err == nil {
			t.Errorf("%s: %q is taken", value, got)
		}
	}
}

// brokenIndex is an index with a defect.
type brokenIndex struct{ index.Index }

func (brokenIndex) View(context.Context, func(index.Snapshot) error) error {
	panic("the roof is on fire")
}

// lines receives each line of a log.
type lines chan string

func (l lines) Write(line []byte) (int, error) {
	l <- string(line)
	return len(line), nil
}

func TestAFollowerWithADefectTakesNothingDown(t *testing.T) {
	logged := make(lines, 10)
	r := &reads{config: new(config.Config), logger: slog.New(slog.NewTextHandler(logged, nil))}
	r.follower = follower.New(follower.Options{Index: brokenIndex{}, PollInterval: time.Second,
		RefreshInterval: time.Minute, Overlap: time.Minute})
	stop := r.run(t.Context())
	defer stop()
	for _, want := range []string{"following the upstream", "the roof is on fire"} {
		select {
		case line := <-logged:
			if !strings.Contains(line, want) {
				t.Errorf("%q is logged, want %q", line, want)
			}
		case <-time.After(3 * time.Minute):
			t.Fatalf("%q is not logged", want)
		}
	}
}

func TestAKeyInTheUpstreamsAddressIsNotShown(t *testing.T) {
	c := new(config.Config)
	c.GraphQL.Upstream = "https://upstream.example/v1/graphql?key=swordfish"
	if got := follower.New(
		FollowerOptions(c, nil, nil, nil)).Status().Upstream; got != "https://upstream.example/v1/graphql" {
		t.Error(got)
	}
}

func TestTheReplicaIsNotReadyBeforeItWasInStep(t *testing.T) {
	r := &reads{config: new(config.Config), follower: follower.New(follower.Options{})}
	if r.ready() != nil {
		t.Error("without graphql.max_lag any lag is borne")
	}
	r.config.GraphQL.MaxLag = time.Second
	if err := r.ready()(); appliance.CodeOf(err) != appliance.CodeReplicaBehind {
		t.Errorf("%v", err)
	}
}
