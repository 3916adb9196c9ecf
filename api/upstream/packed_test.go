package upstream_test

import (
	"bytes"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/attestd/attestd/api/coding"
	"github.com/attestd/attestd/api/upstream"
)

// What is between an appliance and its upstream may not let a coding through that it does not know.
func TestAnswersAreAskedForOtherwiseAfterOneThatCannotBeRead(t *testing.T) {
	t.Parallel()
	const text = `{"data": {"a": 1}}`
	var packed bytes.Buffer
	if err := new(coding.Encoders).Encode(&packed, coding.Packed, [][]byte{[]byte(text)}); err != nil {
		t.Fatal(err)
	}
	changed := bytes.Clone(packed.Bytes())
	changed[len(changed)/2] ^= 1
	for _, tt := range []struct {
		what     string
		encoding string
		body     string
		otherway bool // is asked for after it
	}{
		{"as it was packed", "attestd", packed.String(), false},
		{"changed on its way", "attestd", string(changed), true},
		{"packed by another version", "attestd", "\x01 is something else there", true},
		{"coded once more", "attestd, gzip", packed.String(), true},
		{"without its Content-Encoding", "", packed.String(), true},
		{"cut, and the connection is not", "attestd", packed.String()[:packed.Len()-3], true},
		{"a page of a proxy", "", "<html>", true},
	} {
		t.Run(tt.what, func(t *testing.T) {
			t.Parallel()
			s := serve(t, func(w http.ResponseWriter, r *http.Request) {
				if strings.Contains(r.Header.Get("Accept-Encoding"), "attestd") {
					says(200, mediaJSON, tt.body, "Content-Encoding", tt.encoding)(w, r)
					return
				}
				says(200, mediaJSON, text)(w, r)
			})
			c := newClient(t, upstream.Options{URL: s.URL})
			var failed []bool
			for range 3 {
				data, err := c.Query(t.Context(), "{ a }", nil)
				if err == nil && string(data) != `{"a": 1}` {
					t.Errorf("%s", data)
				}
				failed = append(failed, err != nil)
			}
			if !slices.Equal(failed, []bool{tt.otherway, false, false}) {
				t.Errorf("failed: %v", failed)
			}
		})
	}
}

// A connection that ends says nothing of the coding.
func TestAnswersArePackedFurtherOnAfterALostConnection(t *testing.T) {
	t.Parallel()
	asked := make(chan string, 3)
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		asked <- r.Header.Get("Accept-Encoding")
		w.Header().Set("Content-Length", "1000")
		says(200, mediaJSON, "\x01", "Content-Encoding", "attestd")(w, r)
	})
	c := newClient(t, upstream.Options{URL: s.URL, Timeout: time.Minute})
	for range 3 {
		if data, err := c.Query(t.Context(), "{ a }", nil); err == nil {
			t.Errorf("%s", data)
		}
		if accepted := <-asked; !strings.Contains(accepted, "attestd") {
			t.Errorf("%q is asked for", accepted)
		}
	}
}
