package api_test

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/attestd/attestd/api"
	"github.com/attestd/attestd/appliance"
)

// docs/api.md lists every route of the server, and every code with its status.
func TestTheAPIPageNamesEveryRouteAndCode(t *testing.T) {
	t.Parallel()
	statuses := api.Statuses()
	delete(statuses, api.CodeReloadRefused) // on the admin socket only
	if told := documentedCodes(t); !maps.Equal(told, statuses) {
		t.Errorf("the page tells %v,\nbut there are %v", told, statuses)
	}
	page, parameter := apiPage(t), regexp.MustCompile(`:(\w+)`)
	for _, route := range newRig(t, offerEvents(t, 1)).server.Routes() {
		path := strings.Replace(parameter.ReplaceAllString(route.Path, "{$1}"), "*", "{level}/{index}", 1)
		if !regexp.MustCompile("[` ]" + regexp.QuoteMeta(path) + "`").MatchString(page) {
			t.Errorf("the page does not name %s", path)
		}
	}
}

// documentedCodes returns the codes in the error table of docs/api.md, with their statuses.
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

// docs/integrating.md says for each code whether to retry, except for codes that mean an invalid request.
func TestTheIntegratorsPageSaysWhatToRetry(t *testing.T) {
	t.Parallel()
	_, table, _ := strings.Cut(page(t, "integrating.md"), "\n## Errors and retries\n")
	told := make(map[appliance.Code]int)
	for _, row := range regexp.MustCompile(`(?m)^\| ([\d, ]+) \| ([^|]+) \|`).FindAllStringSubmatch(table, -1) {
		for status := range strings.SplitSeq(row[1], ", ") {
			for _, code := range regexp.MustCompile("`([a-z0-9_]+)`").FindAllStringSubmatch(row[2], -1) {
				if number, err := strconv.Atoi(status); err != nil || told[appliance.Code(code[1])] == 0 {
					told[appliance.Code(code[1])] = number
				}
			}
		}
	}
	wrong := []int{400, 404, 405, 413, 414, 415, 431}
	for code, status := range documentedCodes(t) {
		if told[code] != status && !slices.Contains(wrong, status) {
			t.Errorf("the page says of %s: %d, but it is %d", code, told[code], status)
		}
	}
}

func apiPage(t *testing.T) string {
	t.Helper()
	return page(t, "api.md")
}

func page(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile("../docs/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
