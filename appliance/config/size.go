package config

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Size is a number of bytes. Its text form has a unit: B, KiB, MiB or GiB.
type Size int64

// UnmarshalText reads a size.
func (s *Size) UnmarshalText(text []byte) error {
	for _, unit := range sizeUnits {
		digits, found := strings.CutSuffix(string(text), unit.suffix)
		if !found {
			continue
		}
		n, err := strconv.ParseInt(strings.TrimSpace(digits), 10, 64)
		if err != nil || n < 0 || n > (1<<62)/unit.bytes {
			return errors.New("not a size")
		}
		*s = Size(n * unit.bytes)
		return nil
	}
	return errors.New("not a size")
}

// String returns the size in the largest unit that keeps it whole.
func (s Size) String() string {
	for _, unit := range sizeUnits {
		if s != 0 && int64(s)%unit.bytes == 0 {
			return strconv.FormatInt(int64(s)/unit.bytes, 10) + unit.suffix
		}
	}
	return "0B"
}

var sizeUnits = []struct {
	suffix string
	bytes  int64
}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"B", 1}}

// RoundedSize returns a rounded size for people.
func RoundedSize(n int64) string {
	for _, unit := range sizeUnits {
		if n >= 10*unit.bytes {
			return fmt.Sprintf("%d %s", n/unit.bytes, unit.suffix)
		}
	}
	return fmt.Sprintf("%d B", n)
}
