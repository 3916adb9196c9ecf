package console

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/attestd/attestd/api/landing"
	"github.com/attestd/attestd/api/wire"
)

// The console, the landing page and the API reference have one set of colours: no other style sheet defines a colour or
// uses a property that colors.css lacks.
func TestThereIsOneSetOfColours(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("static/*.css")
	if err != nil || len(files) < 3 {
		t.Fatal(files, err)
	}
	local := map[string]bool{"mono": true, "gap": true}
	for _, name := range append(files, "../landing/style.css") {
		css, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if found := regexp.MustCompile(`#[0-9a-fA-F]{3,8}\b|\b(?:rgb|hsl|oklch)a?\(`).Find(css); found != nil {
			t.Errorf("%s has the colour %s of its own", name, found)
		}
		for _, used := range regexp.MustCompile(`var\(--([a-z-]+)\)`).FindAllStringSubmatch(string(css), -1) {
			if defined := strings.Count(string(landing.Colors), " --"+used[1]+":"); !local[used[1]] && defined != 2 {
				t.Errorf("%s: colors.css defines %s %d times, not in light and dark", name, used[1], defined)
			}
		}
	}
	l, err := newLooks(nil)
	if err != nil {
		t.Fatal(err)
	}
	page, err := landing.Page(wire.Landing{})
	if err != nil || !strings.Contains(string(page), string(landing.Colors)) || l.files["colors.css"] == nil {
		t.Errorf("a page lacks the colours: %v", err)
	}
}
