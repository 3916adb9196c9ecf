package upstream

import (
	"strings"
	"testing"
	"time"
)

func TestAnswersAreWantedPackedWhereTheLineIsSlow(t *testing.T) {
	t.Parallel()
	const megabyte = 1 << 20
	var l line
	for _, answer := range []struct {
		what   string
		size   int64
		waited time.Duration
		slow   bool
	}{
		{"nothing is known, and a small answer tells nothing", 1000, time.Microsecond, true},
		{"1 Mbit/s", 100_000, 800 * time.Millisecond, true},
		{"a network of one house", megabyte, 10 * time.Millisecond, false},
		{"a small answer that came late", 1000, time.Second, false},
		{"no time at all", megabyte, 0, false},
		{"16 Mbit/s", megabyte, 520 * time.Millisecond, true},
		{"faster again, packed", 80_000, time.Millisecond, false},
	} {
		l.note(&timedBody{size: answer.size, waited: answer.waited})
		if l.slow() != answer.slow {
			t.Errorf("%s: slow is %t", answer.what, l.slow())
		}
	}
}

// An upstream may send headers of any length.
func TestWhatIsRememberedIsWeighedWithItsHeaders(t *testing.T) {
	t.Parallel()
	const long = 60 << 10
	for _, r := range []Response{{Body: make([]byte, 0, long)}, {ETag: strings.Repeat("a", long)}, {ContentType: strings.Repeat("a", long)}} {
		if r.size() < long {
			t.Errorf("%d bytes are weighed as %d", long, r.size())
		}
	}
}
