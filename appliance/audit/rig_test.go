package audit_test

import (
	"testing"

	"github.com/attestd/attestd/appliance/journal"
	"github.com/ethereum/go-ethereum/crypto"
	"golang.org/x/mod/sumdb/tlog"
)

func testLogKey(t testing.TB, origin string) journal.LogKey {
	t.Helper()
	key, _, err := journal.NewLogKey(origin)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

type hashTree []tlog.Hash

func (h hashTree) ReadHashes(indexes []int64) ([]tlog.Hash, error) {
	out := make([]tlog.Hash, len(indexes))
	for i, index := range indexes {
		out[i] = h[index]
	}
	return out, nil
}

func (h *hashTree) add(t testing.TB, n int64, leaf []byte) {
	t.Helper()
	stored, err := tlog.StoredHashes(n, leaf, *h)
	if err != nil {
		t.Fatal(err)
	}
	*h = append(*h, stored...)
}

var order = crypto.S256().Params().N
