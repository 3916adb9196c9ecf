package main

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// jsonForm expects JSON on the last command's standard output in the form of all commands: members in camelCase, times
// as in RFC 3339, hashes in hex digits.
func jsonForm(ts *testscript.TestScript, negated bool, args []string) {
	if negated || len(args) != 0 {
		ts.Fatalf("usage: jsonform")
	}
	var v any
	ts.Check(json.Unmarshal([]byte(ts.ReadFile("stdout")), &v))
	if faults := faultsOf("", v); len(faults) > 0 {
		ts.Fatalf("%s", strings.Join(faults, "\n"))
	}
}

var (
	camelCase = regexp.MustCompile(`^[a-z][a-zA-Z0-9]*$`)
	hexHash   = regexp.MustCompile(`^(0x)?[0-9a-f]{64}$`)
	moments   = []string{"time", "created", "expires", "lastUsed",
		"revoked", "started", "since", "updated", "newest", "oldest", "inStep", "backfilled"}
)

// faultsOf lists deviations from the form, with their paths.
func faultsOf(path string, v any) (faults []string) {
	switch v := v.(type) {
	case map[string]any:
		for name, member := range v {
			if !camelCase.MatchString(name) {
				faults = append(faults, fmt.Sprintf("%s: member %q", path, name))
			}
			faults = append(faults, faultsOf(path+"."+name, member)...)
		}
	case []any:
		for _, element := range v {
			faults = append(faults, faultsOf(path, element)...)
		}
	case string:
		name := path[strings.LastIndex(path, ".")+1:]
		if isHash := strings.HasSuffix(strings.ToLower(name), "hash") || name == "hashes"; isHash &&
			!hexHash.MatchString(v) {
			faults = append(faults, fmt.Sprintf("%s: hash %q", path, v))
		}
		if _, err := time.Parse(time.RFC3339, v); slices.Contains(moments, name) && err != nil {
			faults = append(faults, fmt.Sprintf("%s: time %q", path, v))
		}
	}
	return faults
}
