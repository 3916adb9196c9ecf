package landing

import (
	"regexp"
	"strconv"
	"testing"

	"rsc.io/qr"
)

// The drawing matches the code module by module, including its margin.
func TestTheQRCodeIsDrawnWhole(t *testing.T) {
	t.Parallel()
	const text = "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed"
	svg, err := qrCode(text)
	if err != nil {
		t.Fatal(err)
	}
	code, err := qr.Encode(text, qr.M)
	if err != nil {
		t.Fatal(err)
	}
	drawn := make(map[[2]int]bool)
	for _, m := range regexp.MustCompile(`M(\d+) (\d+)\.5h(\d+)`).FindAllStringSubmatch(string(svg), -1) {
		number := func(i int) int { n, _ := strconv.Atoi(m[i]); return n } // digits only, by the pattern
		for x := range number(3) {
			drawn[[2]int{number(1) + x - quiet, number(2) - quiet}] = true
		}
	}
	for y := range code.Size {
		for x := range code.Size {
			if drawn[[2]int{x, y}] != code.Black(x, y) {
				t.Fatalf("module %d, %d: drawn %v", x, y, drawn[[2]int{x, y}])
			}
		}
	}
	if len(drawn) < 100 || len(svg) > 8<<10 {
		t.Errorf("%d modules in %d bytes", len(drawn), len(svg))
	}
}

func TestProseIsOfParagraphsCodeAndTables(t *testing.T) {
	t.Parallel()
	const markdown = "One <b>\n`two`.\n\n| a | b |\n| --- | --- |\n| 403 | |"
	const want = "<p>One &lt;b&gt;\n<code>two</code>.</p>" +
		`<div class="wide" tabindex="0" role="group" aria-label="Table"><table><tr><th scope="col">a</th><th scope="col">b</th></tr><tr><td>403</td><td></td></tr></table></div>`
	if got := string(prose(markdown)); got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
}
