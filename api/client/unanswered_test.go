package client_test

import (
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/attestd/attestd/api/client"
)

// An error about a server that does not answer says what to do.
func TestAServerThatDoesNotAnswerHasARemedy(t *testing.T) {
	t.Parallel()
	plain, secure, gone := httptest.NewServer(nil), httptest.NewTLSServer(nil), httptest.NewServer(nil)
	defer plain.Close()
	defer secure.Close()
	gone.Close()
	for url, want := range map[string]string{
		strings.Replace(plain.URL, "http:", "https:", 1): "it serves plain HTTP: use http:// in the URL",
		secure.URL: "add its issuer to the trusted certificates",
		gone.URL:   "connection refused; check the URL, and that attestd runs there: attestd status",
	} {
		c, err := client.New(url, "", client.Options{Timeout: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		_, err = c.Attestor(t.Context())
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", url, err, want)
		}
	}
}
