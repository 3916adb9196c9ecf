package report

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"html/template"
	"io"
	"time"
)

//go:embed page.html
var pageText string

var page = template.Must(template.New("report").Funcs(template.FuncMap{
	"time": func(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05") },
}).Parse(pageText))

// WritePage writes a signed report as an HTML page that prints well. The page itself is not signed: it shows the
// signature of the JSON file, which verifiers check.
func (s Signed) WritePage(w io.Writer) error {
	var r Report
	if err := json.Unmarshal(s.Report, &r); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	return page.Execute(w, struct {
		Report
		Signature string
	}{r, s.Signature})
}
