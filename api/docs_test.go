package api_test

import (
	"maps"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/attestd/attestd/api"
	"github.com/attestd/attestd/appliance"
)

// What docs/api.md tells integrators is what they get: every route of the server, and every code with its status.
func TestTheAPIPageNamesEveryRouteAndCode(t *testing.T) {
	t.Parallel()
	statuses := api.Statuses()
	delete(statuses, api.CodeReloadRefused) // of the admin socket
	if told := documentedCodes(t); !maps.Equal(told, statuses) {
		t.Errorf("the page tells %v,\nbut there are %v", told, statuses)
	}
	page, parameter := apiPage(t), regexp.MustCompile(`:(\w+)`)
	for _, route := range newRig(t).server.Routes() {
		path := strings.Replace(parameter.ReplaceAllString(route.Path, "{$1}"), "*", "{level}/{index}", 1)
		if !regexp.MustCompile("[` ]" + regexp.QuoteMeta(path) + "`").MatchString(page) {
			t.Errorf("the page does not name %s", path)
		}
	}
}

// documentedCodes are the codes of the table of errors in docs/api.md, with their status.
func documentedCodes(t *testing.T) map[appliance.Code]int {
	t.Helper()
	_, table, _ := strings.Cut(apiPage(t), "\n## Errors\n")
	codes := make(map[appliance.Code]int)
	for _, row := range regexp.MustCompile(`(?m)^\| (\d{3}) \| ([^|]+) \|`).FindAllStringSubmatch(table, -1) {
		status, err := strconv.Atoi(row[1])
		if err != nil {
			t.Fatal(err)
		}
		for _, code := range regexp.MustCompile("`(\\w+)`").FindAllStringSubmatch(row[2], -1) {
			codes[appliance.Code(code[1])] = status
		}
	}
	if len(codes) < 30 {
		t.Fatalf("docs/api.md lists %d codes: %v", len(codes), codes)
	}
	return codes
}

func apiPage(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../docs/api.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
