package upstream_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/attestd/attestd/api/upstream"
)

// An answer that has not changed since the last request is not transferred again.
func TestAQueryIsAnsweredByWhatIsKnown(t *testing.T) {
	var version, sent atomic.Int64
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		tag := fmt.Sprintf(`W/"%d"`, version.Load())
		if r.Header.Get("If-None-Match") == tag {
			w.Header().Set("ETag", tag)
			w.WriteHeader(http.StatusNotModified)
			return
		}
		sent.Add(1)
		says(200, mediaJSON, fmt.Sprintf(`{"data": {"a": %d}}`, version.Load()), "ETag", tag)(w, r)
	})
	c := newClient(t, upstream.Options{URL: s.URL})
	for _, step := range []struct{ version, sent int64 }{{1, 1}, {1, 1}, {1, 1}, {2, 2}, {2, 2}} {
		version.Store(step.version)
		data, err := c.Query(t.Context(), "{ a }", nil)
		if err != nil || string(data) != fmt.Sprintf(`{"a": %d}`, step.version) || sent.Load() != step.sent {
			t.Errorf("version %d: %s, %v, sent %d times, want %d", step.version, data, err, sent.Load(), step.sent)
		}
	}
	if _, err := c.Query(t.Context(), "{ b }", nil); err != nil || sent.Load() != 3 {
		t.Errorf("another query: %v, sent %d times", err, sent.Load())
	}
}

// The ETag of a cached answer is sent with each request. A long ETag would cause refusals.
func TestAnAnswerWithALongTagIsNotRemembered(t *testing.T) {
	t.Parallel()
	var asked atomic.Pointer[string]
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		asked.Store(new(r.Header.Get("If-None-Match")))
		says(200, mediaJSON, `{"data": {}}`, "ETag", `"`+strings.Repeat("a", 1000)+`"`)(w, r)
	})
	c := newClient(t, upstream.Options{URL: s.URL})
	for range 2 {
		if _, err := c.Query(t.Context(), "{ a }", nil); err != nil || len(*asked.Load()) > 256 {
			t.Errorf("%v, with a tag of %d bytes", err, len(*asked.Load()))
		}
	}
}

// A 304 to a request without a cached answer is a failure.
func TestA304ThatNobodyAskedForIsAFailure(t *testing.T) {
	s := serve(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotModified) })
	c := newClient(t, upstream.Options{URL: s.URL})
	if data, err := c.Query(t.Context(), "{ a }", nil); err == nil {
		t.Errorf("Query: %s", data)
	}
	if r, err := c.Forward(t.Context(),
		upstream.Request{Method: "POST", Body: []byte("{}"), ContentType: mediaJSON}); err == nil {
		t.Errorf("Forward: %+v", r)
	}
}

func TestAWindowBeyondTheStandardIsRefused(t *testing.T) {
	// This zstd frame requires a window of 1 GiB (RFC 8878, section 3.1.1.1.2).
	frame := "\x28\xb5\x2f\xfd\x00\xa0" + strings.Repeat("\x00", 16)
	s := serve(t, says(200, mediaJSON, frame, "Content-Encoding", "zstd"))
	c := newClient(t, upstream.Options{URL: s.URL})
	if r, err := c.Forward(t.Context(), upstream.Request{Method: "POST", Body: []byte("{}"),
		ContentType: mediaJSON}); err == nil || !strings.Contains(fmt.Sprint(err), "upstream") {
		t.Errorf("%+v, %v", r, err)
	}
}
