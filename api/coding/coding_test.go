package coding_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/andybalholm/brotli"

	"github.com/attestd/attestd/api/coding"
)

func TestTheClientChoosesTheCoding(t *testing.T) {
	for _, tt := range []struct {
		accept string
		want   coding.Coding
		plain  bool
	}{
		{"", "", true},
		{"gzip", "gzip", true},
		{"GZip ; Q=1", "gzip", true},
		{"x-gzip", "gzip", true},
		{"br", "br", true},
		{"zstd", "zstd", true},
		{"deflate", "", true},
		{"gzip, deflate, br, zstd", "zstd", true},
		{"gzip, deflate, br", "gzip", true},
		{"gzip;q=0.5, br;q=0.8", "br", true},
		{"gzip;q=0.5, br;q=0.8, zstd;q=0", "br", true},
		{"gzip;q=0", "", true},
		{"identity", "", true},
		{"identity, gzip;q=0.5", "", true},
		{"identity;q=0.5, gzip", "gzip", true},
		{"identity, gzip", "gzip", true},
		{"identity;q=0", "", false},
		{"identity;q=0, gzip", "gzip", false},
		{"*", "zstd", true},
		{"*;q=0", "", false},
		{"gzip, *;q=0", "gzip", false},
		{"*;q=0.1, gzip", "gzip", true},
		{"identity, *;q=0", "", true},
		{"zstd;q=0, *", "gzip", true},
		{"gzip;q=x, br", "br", true},
		{"gzip;q=2, br;q=0.1", "br", true},
		{"gzip;q=NaN, br;q=0.1", "br", true},
		{"identity;q=nan", "", true},
		{",,", "", true},
		{"attestd", "", true},
		{"attestd, gzip", "gzip", true},
	} {
		if got, plain := coding.Choose(tt.accept); got != tt.want || plain != tt.plain {
			t.Errorf("%q: %q, plain %v; want %q, %v", tt.accept, got, plain, tt.want, tt.plain)
		}
	}
}

// body returns a body in pieces that compresses like real answers.
func body() (pieces [][]byte, whole []byte) {
	for i := range 3 {
		piece := bytes.Repeat(fmt.Appendf(nil, `{"packet_hash":"%x","status":"PACKET_ACK"},`, i*7919), 2000)
		pieces, whole = append(pieces, piece), append(whole, piece...)
	}
	return pieces, whole
}

func TestWhatIsWrittenIsRead(t *testing.T) {
	var encoders coding.Encoders
	pieces, whole := body()
	for range 3 { // the second and third encoder come from the pool
		for _, c := range []coding.Coding{coding.Gzip, coding.Zstd, coding.Brotli} {
			var coded bytes.Buffer
			if err := encoders.Encode(&coded, c, pieces); err != nil {
				t.Fatal(err)
			}
			if coded.Len() > len(whole)/10 {
				t.Errorf("%s: %d bytes of %d", c, coded.Len(), len(whole))
			}
			var in io.Reader = brotli.NewReader(&coded)
			if c != coding.Brotli {
				r, err := coding.NewReader(string(c), &coded)
				if err != nil {
					t.Fatal(err)
				}
				defer r.Close()
				in = r
			}
			if got, err := io.ReadAll(in); err != nil || !bytes.Equal(got, whole) {
				t.Errorf("%s: %d bytes, %v", c, len(got), err)
			}
		}
	}
}

type full struct{}

var errFull = errors.New("full")

func (full) Write([]byte) (int, error) { return 0, errFull }

func TestAFullWriterIsAnError(t *testing.T) {
	var encoders coding.Encoders
	pieces, _ := body()
	for _, c := range []coding.Coding{coding.Gzip, coding.Zstd, coding.Brotli} {
		if err := encoders.Encode(full{}, c, pieces); !errors.Is(err, errFull) {
			t.Errorf("%s: %v", c, err)
		}
	}
}

func TestOtherCodingsAreRefused(t *testing.T) {
	for _, name := range []string{"br", "deflate", "gzip, gzip", "compress", "attestd"} {
		if _, err := coding.NewReader(name, strings.NewReader("")); err == nil {
			t.Errorf("%s is read", name)
		}
	}
}
