package text_test

import (
	"math"
	"testing"

	"github.com/attestd/attestd/appliance/text"
)

func TestNumbersHaveGroupsOfThreeDigits(t *testing.T) {
	t.Parallel()
	for n, want := range map[int64]string{0: "0", 999: "999", 1000: "1,000", -100: "-100", -1000: "-1,000",
		1234567: "1,234,567", math.MinInt64: "-9,223,372,036,854,775,808"} {
		if got := text.Count(n); got != want {
			t.Errorf("%d: %s", n, got)
		}
	}
}
