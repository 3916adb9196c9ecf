package hsmtest_test

import (
	"sync"
	"testing"

	"github.com/attestd/attestd/hsm"
	"github.com/attestd/attestd/hsm/hsmtest"
)

func TestTokensOfParallelTestsAreApart(t *testing.T) {
	t.Parallel()
	var seen sync.Map
	for range 8 {
		t.Run("", func(t *testing.T) {
			t.Parallel()
			token := hsmtest.New(t)
			if _, twice := seen.LoadOrStore(token.Key.Address, true); twice {
				t.Error("two tests have the same key")
			}
			for range 10 { // each opens and closes its own copy of the module concurrently with the others
				u := token.URI
				u.Token, u.Object = "", "" // it must not see another test's token or key
				status, err := hsm.Inspect(t.Context(), hsm.Options{URI: u})
				if err != nil || *status.Key.Address != token.Key.Address {
					t.Fatalf("%+v, %v", status, err)
				}
			}
		})
	}
}
