package counts_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/attestd/attestd/store/counts"
)

var month = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// journal is a tree with a file of counts.
type journal struct {
	path, log string
	secret    []byte
	tree      tlog.Tree
}

func newJournal(t *testing.T) journal {
	return journal{filepath.Join(t.TempDir(), "counts"), "example.com/log+1", []byte("secret"),
		tlog.Tree{N: 50, Hash: tlog.Hash{7}}}
}

// open returns the counts after a restart.
func (j journal) open(t *testing.T) *counts.Counts {
	t.Helper()
	c := new(counts.Counts)
	err := c.Load(func() (counts.File, error) {
		return counts.File{Path: j.path, Log: j.log, Secret: j.secret,
			Head: func(context.Context) (tlog.Tree, int64, error) {
				return j.tree, j.tree.N, nil
			}}, nil
	}, func(older tlog.Tree) (bool, error) { return older == j.tree, nil })
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestCountsSurviveARestart(t *testing.T) {
	j := newJournal(t)
	c := j.open(t)
	name, want := counts.Of("a", month), counts.Count{N: 30, Below: 50}
	c.Keep(name, want)
	c.Keep(counts.Of("b", month), counts.Count{N: 1, Below: 51}) // of an entry that the tree does not have
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	c = j.open(t)
	if got, found := c.Known(name); !found || got != want {
		t.Errorf("%+v, %v, want %+v", got, found, want)
	}
	if got, found := c.Known(counts.Of("b", month)); found {
		t.Errorf("%+v counts an entry beyond the tree", got)
	}
}

// Whoever can write the file, but has no log key, cannot change a count.
func TestAFileThatIsNotTheJournalsIsIgnored(t *testing.T) {
	for name, change := range map[string]func(*testing.T, *journal){
		"another count": func(t *testing.T, j *journal) {
			text, err := os.ReadFile(j.path)
			changed := bytes.Replace(text, []byte(`"n":30`), []byte(`"n":10`), 1)
			if err != nil || bytes.Equal(text, changed) || os.WriteFile(j.path, changed, 0o600) != nil {
				t.Fatalf("%s: %v", text, err)
			}
		},
		"rubbish": func(t *testing.T, j *journal) {
			if err := os.WriteFile(j.path, []byte("rubbish"), 0o600); err != nil {
				t.Fatal(err)
			}
		},
		"another secret":  func(_ *testing.T, j *journal) { j.secret = []byte("other") },
		"another log":     func(_ *testing.T, j *journal) { j.log = "example.com/log+2" },
		"another journal": func(_ *testing.T, j *journal) { j.tree.Hash[0]++ },
	} {
		t.Run(name, func(t *testing.T) {
			j := newJournal(t)
			c := j.open(t)
			c.Keep(counts.Of("a", month), counts.Count{N: 30, Below: 50})
			if err := c.Close(); err != nil {
				t.Fatal(err)
			}
			change(t, &j)
			if got, found := j.open(t).Known(counts.Of("a", month)); found {
				t.Errorf("%+v is known", got)
			}
		})
	}
}

// A crash loses the counts of the last 10,000 entries only.
func TestCountsAreStoredWhileTheStoreIsOpen(t *testing.T) {
	j := newJournal(t)
	j.tree.N = 1 << 20
	c := j.open(t)
	c.Keep(counts.Of("a", month), counts.Count{N: 9000, Below: 9999})
	c.Keep(counts.Of("a", month), counts.Count{N: 9500, Below: 10_001})
	c.Wait()
	if got, _ := j.open(t).Known(counts.Of("a", month)); got.N != 9500 {
		t.Errorf("%+v is stored", got)
	}
}

// The file stays small, however many hours and days have passed.
func TestTheCountsOfPastPeriodsAreNotStored(t *testing.T) {
	j := newJournal(t)
	j.tree.N = 1 << 20
	c := j.open(t)
	for hour := range 40 {
		c.Keep(counts.Of("a", month), counts.Count{N: int64(hour), Below: int64(hour)})
		c.Keep(counts.Of("a", month.Add(time.Duration(hour)*time.Hour)), counts.Count{N: 1, Below: int64(hour)})
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	c = j.open(t)
	known := ""
	for hour := range 40 {
		if _, found := c.Known(counts.Of("a", month.Add(time.Duration(hour)*time.Hour))); found {
			known += fmt.Sprint(hour, " ")
		}
	}
	if want := "0 25 26 27 28 29 30 31 32 33 34 35 36 37 38 39 "; known != want {
		t.Errorf("the counts since the hours %s are stored, not %s", known, want)
	}
}
