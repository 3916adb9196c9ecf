package main

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/attestd/attestd/appliance/archive"
)

func TestAnInterruptedCopySaysWhatItHasKept(t *testing.T) {
	t.Parallel()
	var stderr bytes.Buffer
	interrupted := interruptedError{fmt.Errorf("store copy: %w", &archive.Interrupted{Kept: 1000, Of: 2500, Cause: errors.New("signal")})}
	if status := exitStatus(&stderr, interrupted, false); status != 130 {
		t.Errorf("exit status %d, want 130", status)
	}
	if want := "store copy: interrupted: 1000 of 2500 records are kept; the same command goes on from there"; !strings.Contains(stderr.String(), want) {
		t.Errorf("%q, want %q", stderr.String(), want)
	}
}
