package main

import (
	"bufio"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/attestd/attestd/appliance/daemontest"
)

// A client that has read a part of a log continues without a gap and without a repeat after the log key was rotated.
func TestAStreamResumesAfterTheLogKeyWasRotated(t *testing.T) {
	t.Parallel()
	d := daemontest.New(t)
	t.Cleanup(d.End)
	d.Start(t)
	begun := string(d.StreamPosition(t))
	first := attestNow(t, d)
	got, last := streamed(t, d, begun, 1)
	second := attestNow(t, d)
	d.Kill(t)
	d.Run(t, "log", "rotate-key", "--reason", "a test")
	d.Start(t)
	third := attestNow(t, d)
	if rest, _ := streamed(t, d, last, 2); !slices.Equal(append(got, rest...), []string{first, second, third}) {
		t.Errorf("%q, then %q, want %q", got, rest, []string{first, second, third})
	}
	if all, _ := streamed(t, d, begun, 3); !slices.Equal(all, []string{first, second, third}) {
		t.Errorf("from the beginning: %q", all)
	}
}

// streamed returns the subjects of the next n events after an id, and the id of the last one. An event that is no
// attestation has its type instead.
func streamed(t *testing.T, d *daemontest.Daemon, after string, n int) (subjects []string, last string) {
	t.Helper()
	answer := d.OpenEvents(t, after)
	defer answer.Body.Close()
	var data string
	for lines := bufio.NewScanner(answer.Body); len(subjects) < n && lines.Scan(); {
		switch name, value, _ := strings.Cut(lines.Text(), ": "); {
		case name == "data":
			data = value
		case name == "id" && data != "":
			var e struct{ Type, Subject string }
			if err := json.Unmarshal([]byte(data), &e); err != nil {
				t.Fatal(err)
			}
			if e.Type != "attestation.issued" {
				e.Subject = e.Type
			}
			subjects, last, data = append(subjects, e.Subject), value, ""
		}
	}
	return subjects, last
}
