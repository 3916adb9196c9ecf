package text

import (
	"fmt"
	"strings"
)

// Count formats a whole number in groups of three digits, as the console does: 34,056.
func Count[T ~int | ~int64 | ~uint32 | ~uint64](n T) string { return grouped(fmt.Sprint(n)) }

// Decimal formats a number with that many decimals, and its whole part as Count does.
func Decimal(v float64, decimals int) string { return grouped(fmt.Sprintf("%.*f", decimals, v)) }

func grouped(number string) string {
	whole, rest, isDecimal := strings.Cut(number, ".")
	for i := len(whole) - 3; i > 0 && whole[i-1] != '-'; i -= 3 {
		whole = whole[:i] + "," + whole[i:]
	}
	if isDecimal {
		whole += "." + rest
	}
	return whole
}
