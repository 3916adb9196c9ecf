package console

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"html/template"
	"io/fs"
	"net/http"
	"path"
	"strings"
	"time"

	"github.com/attestd/attestd/api/landing"
	"github.com/attestd/attestd/appliance/health"
	"github.com/attestd/attestd/appliance/index/follower"
	"github.com/attestd/attestd/appliance/text"
)

//go:embed templates static all:dist
var embedded embed.FS

// view is the data of the layout and of its page.
type view struct {
	Title   string
	Page    string // name of the template
	path    string // of the page in the navigation; empty without one
	pages   []page
	Who     *Principal // nil if no user has signed in
	Expires time.Time  // of the session
	Now     time.Time
	Data    any
}

// looks holds the templates and the static files: our own in static/, those of the landing page, and the npm bundles
// that the build writes to dist/.
type looks struct {
	pages   map[string]*template.Template
	files   map[string][]byte
	version string // hash of all files; it is part of their URLs, so that browsers may cache them forever
}

func newLooks(pages []page) (looks, error) {
	l := looks{pages: make(map[string]*template.Template), files: make(map[string][]byte)}
	sum := sha256.New()
	for _, folder := range []string{"static", "dist"} {
		entries, err := embedded.ReadDir(folder)
		if err != nil {
			return l, err
		}
		for _, e := range entries {
			if contentTypes[path.Ext(e.Name())] == "" {
				continue
			}
			content, err := fs.ReadFile(embedded, path.Join(folder, e.Name()))
			if err != nil {
				return l, err
			}
			fmt.Fprintf(sum, "%s %d\n", e.Name(), len(content))
			sum.Write(content)
			l.files[e.Name()] = content
		}
	}
	for name, content := range map[string][]byte{"colors.css": landing.Colors, "icon.svg": landing.Favicon} {
		l.files[name] = content
	}
	sum.Write(landing.Colors)
	sum.Write(landing.Favicon)
	l.version = hex.EncodeToString(sum.Sum(nil)[:8])
	layout, err := template.New("layout.html").Funcs(l.funcs()).ParseFS(embedded, "templates/layout.html")
	if err != nil {
		return l, err
	}
	names := []string{"signin", "signedin", "problem"}
	for _, p := range pages {
		names = append(names, p.name)
	}
	for _, name := range names {
		if l.pages[name], err = template.Must(layout.Clone()).ParseFS(embedded, "templates/"+name+".html"); err != nil {
			return l, err
		}
	}
	return l, nil
}

func (l looks) funcs() template.FuncMap {
	return template.FuncMap{
		"file":          func(name string) string { return "/static/" + l.version + "/" + name },
		"hasFile":       func(name string) bool { return l.files[name] != nil },
		"time":          text.Time,
		"span":          span,
		"grouped":       text.Count[int64],
		"sized":         sized,
		"count":         count,
		"eventTitle":    eventTitle,
		"rule":          ruleOf,
		"counted":       func(n int) string { return counted(int64(n), "key") },
		"ago":           func(now, t time.Time) string { return span(now.Sub(t)) + " ago" },
		"lag":           text.Lag,
		"followerLooks": func(f follower.Status) string { return finding{health.Follower(f)}.Looks() },
		"backfill": func(f follower.Status) uint64 {
			all := text.Rows(f)
			return min(100, 100*all.Here/max(1, all.Upstream))
		},
		"deref":   func(b *bool) bool { return *b },
		"percent": func(part, whole int64) int64 { return 100 * part / max(1, whole) },
		"clock":   func(t time.Time) string { return t.UTC().Format("15:04Z") },
		"rfc":     func(t time.Time) string { return t.UTC().Format(time.RFC3339) },
	}
}

// write answers with a page.
func (l looks) write(w http.ResponseWriter, status int, name string, v view) error {
	var out bytes.Buffer
	if err := l.pages[name].ExecuteTemplate(&out, "layout.html", v); err != nil {
		return fmt.Errorf("page %s: %w", name, err)
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write(out.Bytes()) // fails only if the client has disconnected
	return nil
}

// part renders one block of a page's template.
func (l looks) part(page, block string, data any) (string, error) {
	var out strings.Builder
	err := l.pages[page].ExecuteTemplate(&out, block, data)
	return out.String(), err
}

// static serves the files. A URL of an older build returns the current file, without caching.
func (l looks) static(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("name")
	file, ok := l.files[name]
	if !ok {
		http.NotFound(w, r)
		return
	}
	if r.PathValue("version") == l.version {
		w.Header().Set("Cache-Control", "public, max-age=31536000, immutable")
	}
	w.Header().Set("Content-Type", contentTypes[path.Ext(name)])
	_, _ = w.Write(file)
}

// contentTypes maps the extensions of served files to their media types.
var contentTypes = map[string]string{".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8",
	".svg": "image/svg+xml"}

// navItem is an entry of the navigation.
type navItem struct {
	Path, Title string
	Current     bool
}

// Left returns the remaining seconds of the session.
func (v view) Left() int { return int(v.Expires.Sub(v.Now).Seconds()) }

// Nav returns the pages that the signed-in user may see.
func (v view) Nav() (items []navItem) {
	for _, p := range v.pages {
		if v.Who != nil && v.Who.Role >= p.least {
			items = append(items, navItem{p.path, p.title, p.path == v.path})
		}
	}
	return items
}
