package upstream

import (
	"strings"
	"testing"
)

// An upstream may send headers of any length.
func TestWhatIsRememberedIsWeighedWithItsHeaders(t *testing.T) {
	t.Parallel()
	const long = 60 << 10
	for _, r := range []Response{{Body: make([]byte, 0, long)}, {ETag: strings.Repeat("a", long)},
		{ContentType: strings.Repeat("a", long)}} {
		if r.size() < long {
			t.Errorf("%d bytes are weighed as %d", long, r.size())
		}
	}
}
