package text_test

import (
	"math"
	"testing"

	"github.com/attestd/attestd/appliance/text"
)

func TestNumbersHaveGroupsOfThreeDigits(t *testing.T) {
	t.Parallel()
	for n, want := range map[int]string{0: "0", 7: "7", 999: "999", 1000: "1,000", 34056: "34,056", 1234567: "1,234,567",
		-999: "-999", -1000: "-1,000", -123456: "-123,456"} {
		if got := text.Count(n); got != want {
			t.Errorf("%d is %q, want %q", n, got, want)
		}
	}
	if got := text.Count(int64(math.MinInt64)); got != "-9,223,372,036,854,775,808" {
		t.Error(got)
	}
	for v, want := range map[float64]string{0: "0.0", 899: "899.0", 1234.56: "1,234.6", -1234.56: "-1,234.6"} {
		if got := text.Decimal(v, 1); got != want {
			t.Errorf("%f is %q, want %q", v, got, want)
		}
	}
	if got := text.Decimal(1234.56, 0); got != "1,235" {
		t.Error(got)
	}
}
