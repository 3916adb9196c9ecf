package report

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/template"
	"unicode"
)

//go:embed page.txt
var plainText string

var plain = template.Must(template.New("report").Funcs(template.FuncMap{"time": shownTime}).Parse(plainText))

// WritePDF writes a signed report as a PDF (ISO 32000-1) for people. The PDF is not signed: the signed JSON is attached
// as report.json, which verifiers check. Characters outside of Latin-1 become question marks; the JSON has them.
func (s Signed) WritePDF(w io.Writer) error {
	data, err := s.data()
	if err != nil {
		return err
	}
	var text strings.Builder
	if err := plain.Execute(&text, data); err != nil {
		return err
	}
	attached, err := json.Marshal(s)
	if err != nil {
		return err
	}
	p := &pdf{}
	p.add("<< /Type /Catalog /Pages 2 0 R /Lang (en) /AF [5 0 R] /ViewerPreferences << /DisplayDocTitle true >> " +
		"/Names << /EmbeddedFiles << /Names [(report.json) 5 0 R] >> >> >>")
	pages := pagesOf(text.String())
	const first = 8 // object of the first page; each page's content follows it
	var kids strings.Builder
	for i := range pages {
		fmt.Fprintf(&kids, "%d 0 R ", first+2*i)
	}
	p.add(fmt.Sprintf("<< /Type /Pages /Count %d /Kids [%s] >>", len(pages), kids.String()))
	p.add("<< /Type /Font /Subtype /Type1 /BaseFont /Courier /Encoding /WinAnsiEncoding >>")
	p.add("<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica-Bold /Encoding /WinAnsiEncoding >>")
	p.add("<< /Type /Filespec /F (report.json) /UF (report.json) /AFRelationship /Source /EF << /F 6 0 R >> >>")
	p.stream(fmt.Sprintf("/Type /EmbeddedFile /Subtype /application#2Fjson /Params << /Size %d >>", len(attached)), attached)
	p.add(fmt.Sprintf("<< /Title (%s) /Producer (attestd) /CreationDate (D:%s) >>",
		literal("Audit report of "+data.Log+", "+data.Period()), data.Made.UTC().Format("20060102150405Z")))
	for i, content := range pages {
		p.add(fmt.Sprintf("<< /Type /Page /Parent 2 0 R /MediaBox [0 0 %d %d] /Contents %d 0 R "+
			"/Resources << /Font << /F1 3 0 R /F2 4 0 R >> >> >>", pageWidth, pageHeight, first+2*i+1))
		p.stream("", content)
	}
	return p.write(w)
}

// pdf collects the objects of a file. Object 1 is the catalogue, and object 7 the information about the document.
type pdf struct{ objects [][]byte }

func (p *pdf) add(object string) { p.objects = append(p.objects, []byte(object)) }

func (p *pdf) stream(entries string, content []byte) {
	p.objects = append(p.objects, fmt.Appendf(nil, "<< %s /Length %d >>\nstream\n%s\nendstream", entries, len(content), content))
}

func (p *pdf) write(w io.Writer) error {
	out := bytes.NewBufferString("%PDF-1.7\n%\xe2\xe3\xcf\xd3\n")
	index := fmt.Appendf(nil, "xref\n0 %d\n0000000000 65535 f \n", len(p.objects)+1)
	for i, object := range p.objects {
		index = fmt.Appendf(index, "%010d 00000 n \n", out.Len())
		fmt.Fprintf(out, "%d 0 obj\n%s\nendobj\n", i+1, object)
	}
	fmt.Fprintf(out, "%strailer\n<< /Size %d /Root 1 0 R /Info 7 0 R >>\nstartxref\n%d\n%%%%EOF\n", index,
		len(p.objects)+1, out.Len())
	_, err := w.Write(out.Bytes())
	return err
}

// Measures of a page (A4), in points. A character of Courier is 0.6 times as wide as the font is large.
const (
	pageWidth, pageHeight = 595, 842
	margin                = 50
	fontSize, lineStep    = 8, 11
	headSize, headStep    = 13, 26
	lineChars             = (pageWidth - 2*margin) * 10 / (6 * fontSize)
)

// pagesOf returns the content of each page. A line that begins with "# " is a heading. Longer lines are wrapped.
func pagesOf(text string) (pages [][]byte) {
	var content []byte
	y := 0
	show := func(line, font string, size, step int) {
		if y -= step; y < margin {
			if content != nil {
				pages = append(pages, content)
			}
			y = pageHeight - margin - step
			content = fmt.Appendf(nil, "BT /F1 %d Tf %d %d Td (%d) Tj ET\n", fontSize, pageWidth-margin, margin/2, len(pages)+1)
		}
		content = fmt.Appendf(content, "BT /%s %d Tf %d %d Td (%s) Tj ET\n", font, size, margin, y, literal(line))
	}
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		if heading, is := strings.CutPrefix(line, "# "); is {
			show(heading, "F2", headSize, headStep)
			continue
		}
		for _, part := range wrapped([]rune(line)) {
			show(part, "F1", fontSize, lineStep)
		}
	}
	return append(pages, content)
}

// wrapped cuts a line into parts of at most lineChars characters, after a space if there is one in the second half.
func wrapped(line []rune) (parts []string) {
	for len(line) > lineChars {
		end := lineChars
		for i := lineChars; i > lineChars/2; i-- {
			if line[i-1] == ' ' {
				end = i
				break
			}
		}
		parts, line = append(parts, string(line[:end])), append([]rune("    "), line[end:]...)
	}
	return append(parts, string(line))
}

// literal encodes a text for a literal string in WinAnsiEncoding, which is Latin-1 for the characters it is used for.
func literal(text string) string {
	var out []byte
	for _, r := range text {
		switch {
		case strings.ContainsRune(`()\`, r):
			out = append(out, '\\', byte(r))
		case r == '–' || r == '—':
			out = append(out, 0x97) // an em dash: each line of a signature begins with one
		case r > unicode.MaxLatin1 || r < ' ' || r >= 0x7f && r < 0xa0:
			out = append(out, '?')
		default:
			out = append(out, byte(r))
		}
	}
	return string(out)
}
