package console

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/attestd/attestd/api/wire"
)

// settingsPage shows the values in effect. They are changed in the configuration, not here.
func settingsPage() page {
	return page{name: "settings", path: "/settings", title: "Settings", least: Viewer, routes: []route{{"GET /settings", Viewer, showSettings}}}
}

// section is the settings whose names begin alike.
type section struct {
	Name     string
	Settings []shownSetting
}

type shownSetting struct {
	wire.Setting
	Text    string // the value, as the file would have it
	Changed bool   // it is not the default
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
		last.Settings = append(last.Settings, shownSetting{Setting: s, Text: fmt.Sprint(s.Value), Changed: s.Source != "default"})
	}
	return all
}
