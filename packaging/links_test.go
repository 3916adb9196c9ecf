//go:build packages

package packaging

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Each file that an installed file names is installed, too.
func TestLinksLeadSomewhere(t *testing.T) {
	need(t, "dpkg-deb", "rpm2cpio", "cpio")
	file, err := filepath.Abs(rpmFile(dist, version(t)))
	if err != nil {
		t.Fatal(err)
	}
	fromDeb, fromRPM := t.TempDir(), t.TempDir()
	host(t, "dpkg-deb", "--extract", deb(dist, version(t)), fromDeb)
	host(t, "sh", "-c", `rpm2cpio "$0" | (cd "$1" && cpio --quiet -idm --no-absolute-filenames)`, file, fromRPM)
	for name, root := range map[string]string{"the .deb": fromDeb, "the .rpm": fromRPM} {
		t.Run(name, func(t *testing.T) {
			links := 0
			err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
				if err != nil || !d.Type().IsRegular() || strings.HasPrefix(path, filepath.Join(root, "usr/bin")) {
					return err
				}
				for _, to := range linksOf(t, root, path) {
					links++
					if _, err := os.Stat(to); err != nil {
						t.Errorf("%s names %s, which is not in the package", strings.TrimPrefix(path, root),
							strings.TrimPrefix(to, root))
					}
				}
				return nil
			})
			if err != nil || links < 10 {
				t.Errorf("only %d links were found (%v)", links, err)
			}
		})
	}
}

var (
	relative = regexp.MustCompile(`\]\(([^):#]+)(?:#[^)]*)?\)`)
	absolute = regexp.MustCompile(`/usr/share/(?:doc/)?attestd/[A-Za-z0-9._/-]*[A-Za-z0-9]`)
)

// linksOf returns the files that a file of a package names: by a Markdown link, or by a path among the documents.
func linksOf(t *testing.T, root, path string) (files []string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if strings.HasSuffix(path, ".md") {
		for _, link := range relative.FindAllStringSubmatch(string(text), -1) {
			files = append(files, filepath.Join(filepath.Dir(path), link[1]))
		}
	}
	for _, name := range absolute.FindAllString(string(text), -1) {
		files = append(files, filepath.Join(root, name))
	}
	return files
}
