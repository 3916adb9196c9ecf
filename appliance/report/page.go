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
	"time": shownTime,
}).Parse(pageText))

func shownTime(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05") }

// WritePage writes a signed report as an HTML page that prints well. The page itself is not signed: it shows the
// signature of the JSON file, which verifiers check.
func (s Signed) WritePage(w io.Writer) error {
	data, err := s.data()
	if err != nil {
		return err
	}
	return page.Execute(w, data)
}

// shown is a report with its signature, for people.
type shown struct {
	Report
	Signature string
}

func (s Signed) data() (d shown, err error) {
	d.Signature = s.Signature
	if err := json.Unmarshal(s.Report, &d.Report); err != nil {
		return d, fmt.Errorf("report: %w", err)
	}
	return d, nil
}
