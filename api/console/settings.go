package console

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/attestd/attestd/api/wire"
)

// settingsPage shows the values in effect. They are changed in the configuration, not here.
func settingsPage() page {
	return page{name: "settings", path: "/settings", title: "Settings", least: Viewer,
		routes: []route{{"GET /settings", Viewer, showSettings}}}
}

// section holds the settings with the same first part of the name.
type section struct {
	Name     string
	Settings []shownSetting
}

type shownSetting struct {
	wire.Setting
	Lines   []string // of the value
	Changed bool     // differs from the default
}

func showSettings(w http.ResponseWriter, v *visit) error {
	settings, err := v.Admin.Settings(v.Context())
	if err != nil {
		return err
	}
	return v.show(w, sections(settings))
}

func sections(settings []wire.Setting) (all []section) {
	for _, s := range settings {
		name, _, nested := strings.Cut(s.Name, ".")
		if !nested {
			name = "general"
		}
		if len(all) == 0 || all[len(all)-1].Name != name {
			all = append(all, section{Name: name})
		}
		last := &all[len(all)-1]
		last.Settings = append(last.Settings, shownSetting{s, lines(s.Value), s.Source != "default"})
	}
	return all
}

// lines formats a value for people: a list has one line per element. An empty value has no lines.
func lines(value any) (texts []string) {
	switch value := value.(type) {
	case nil:
		return nil
	case []any:
		for _, item := range value {
			texts = append(texts, lines(item)...)
		}
		return texts
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(value)) {
			texts = append(texts, name+": "+strings.Join(lines(value[name]), ", "))
		}
		return []string{strings.Join(texts, "; ")}
	}
	if text := fmt.Sprint(value); text != "" {
		texts = append(texts, text)
	}
	return texts
}
