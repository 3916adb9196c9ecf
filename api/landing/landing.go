// Package landing renders the public pages: the landing page at an appliance's address, and the API reference. They
// work without scripts, and load only the icon.
package landing

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"fmt"
	"html/template"
	"strings"

	"rsc.io/qr"

	"github.com/attestd/attestd/api/wire"
	"github.com/attestd/attestd/appliance/text"
)

//go:embed landing.html
var landingHTML string

// Colors are the custom properties for colours, as CSS. The console uses the same.
//
//go:embed colors.css
var Colors []byte

//go:embed style.css
var ownStyle string

var style = string(Colors) + ownStyle

//go:embed copy.js
var script string

// Favicon is the icon of the pages, an SVG.
//
//go:embed favicon.svg
var Favicon []byte

var page = template.Must(template.New("landing").Funcs(template.FuncMap{"count": text.Count[int64]}).Parse(landingHTML))

// Policy returns the Content-Security-Policy of the pages. It allows only their inline style and script, and images
// from the same origin.
func Policy() string {
	return fmt.Sprintf(
		"default-src 'none'; style-src '%s'; script-src '%s'; img-src 'self'; form-action 'none'; frame-ancestors 'none'; base-uri 'none'",
		sourceHash(style), sourceHash(script))
}

// sourceHash returns the hash of an inline style or script, for a Content-Security-Policy.
func sourceHash(inline string) string {
	sum := sha256.Sum256([]byte(inline))
	return "sha256-" + base64.StdEncoding.EncodeToString(sum[:])
}

// Page renders the landing page.
func Page(l wire.Landing) ([]byte, error) {
	code, err := qrCode(l.SignerAddress.String())
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	err = page.Execute(&b, struct {
		wire.Landing
		Style    template.CSS
		Script   template.JS
		Icon, QR template.HTML
	}{l, template.CSS(style), template.JS(script), icon(), code})
	return b.Bytes(), err
}

// icon returns the favicon as inline SVG.
func icon() template.HTML {
	return template.HTML(strings.Replace(string(Favicon), "<svg ", `<svg aria-hidden="true" `, 1))
}

// quiet is the margin around a QR code, in modules (ISO/IEC 18004).
const quiet = 4

// qrCode renders a text as an SVG with one path: a stroke for each run of dark modules.
func qrCode(text string) (template.HTML, error) {
	code, err := qr.Encode(text, qr.M)
	if err != nil {
		return "", fmt.Errorf("QR code: %w", err)
	}
	var path strings.Builder
	for y := range code.Size {
		for x := 0; x < code.Size; x++ {
			run := 0
			for code.Black(x+run, y) { // modules outside the code are not black
				run++
			}
			if run > 0 {
				fmt.Fprintf(&path, "M%d %d.5h%d", x+quiet, y+quiet, run)
				x += run
			}
		}
	}
	size := code.Size + 2*quiet
	return template.HTML(
		fmt.Sprintf(
			`<svg role="img" aria-label="The signer address as a QR code" viewBox="0 0 %d %d" shape-rendering="crispEdges"><path stroke="#000" d="%s"/></svg>`,
			size, size, path.String())), nil
}
