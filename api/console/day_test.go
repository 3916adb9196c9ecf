package console_test

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/chain/chaintest"
)

// startTroubled starts a daemon whose sink, RPC and witness fail until a POST to mend, followed by sink, rpc or
// witness. Its last backup is two days old.
func (r *rig) startTroubled(t testing.TB) (troubled *rig, mend string) {
	t.Helper()
	parts := &parts{well: make(map[string]bool)}
	node := chaintest.New(t)
	rpc := chaintest.NewProxy(t, node.URL)
	rpc.Answer(func(chaintest.Request) *chaintest.Reply {
		if parts.isWell("rpc") {
			return nil
		}
		return &chaintest.Reply{Status: http.StatusBadGateway}
	})
	signer := newCosigner()
	mux := http.NewServeMux()
	mux.HandleFunc("POST /mend/{part}", func(_ http.ResponseWriter, r *http.Request) { parts.mend(r.PathValue("part")) })
	mux.HandleFunc("POST /sink", parts.guarded("sink", func(http.ResponseWriter, *http.Request) {}))
	mux.HandleFunc("POST /witness/add-checkpoint", parts.guarded("witness", signer.cosign))
	others := httptest.NewServer(mux)
	t.Cleanup(others.Close)
	dir := t.TempDir()
	witnesses, policy := filepath.Join(dir, "witnesses"), filepath.Join(dir, "policy.yaml")
	for name, text := range map[string]string{
		witnesses: fmt.Sprintf("witness ada %s %s/witness\nquorum ada\n", signer.verifierKey(), others.URL),
		policy:    fmt.Sprintf("deny: { beneficiary: [%q] }\n", appliance.Address{0xde, 0xad}),
	} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	data := filepath.Join(dir, "data")
	if err := os.Mkdir(data, 0o700); err != nil {
		t.Fatal(err)
	}
	old := time.Now().Add(-48 * time.Hour).UTC().Format(time.RFC3339)
	if err := os.WriteFile(filepath.Join(data, "last-backup"), []byte(old), 0o600); err != nil {
		t.Fatal(err)
	}
	return r.startIn(t, dir, fmt.Sprintf(`backup: { max_age: 24h }
journal: { origin: example.com/console, witnesses: %q, witness_interval: 1s }
attestation: { policy: %q }
audit: { sinks: [{ name: siem, type: https, url: %q }] }
chain: { contracts: [{ name: usdc, address: %q, rpc: [%q], confirmations: 0 }] }
`, witnesses, policy, others.URL+"/sink", chaintest.Contract, rpc.URL)), others.URL + "/mend/"
}

// parts are what a test mends.
type parts struct {
	mu   sync.Mutex
	well map[string]bool
}

func (p *parts) isWell(part string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.well[part]
}

func (p *parts) mend(part string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.well[part] = true
}

// guarded fails until the part is well.
func (p *parts) guarded(part string, serve http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if !p.isWell(part) {
			http.Error(w, "out of order", http.StatusBadGateway)
			return
		}
		serve(w, r)
	}
}

// cosigner is a witness (C2SP tlog-witness) that signs each checkpoint.
type cosigner struct{ key ed25519.PrivateKey }

func newCosigner() cosigner {
	_, key, err := ed25519.GenerateKey(rand.Reader) // never fails
	if err != nil {
		panic(err)
	}
	return cosigner{key}
}

const cosignatureV1 = 4 // type of a signed-note's key

func (c cosigner) typed() []byte {
	return append([]byte{cosignatureV1}, c.key.Public().(ed25519.PublicKey)...)
}

func (c cosigner) id() []byte {
	sum := sha256.Sum256(append([]byte("ada\n"), c.typed()...))
	return sum[:4]
}

func (c cosigner) verifierKey() string {
	return fmt.Sprintf("ada+%x+%s", c.id(), base64.StdEncoding.EncodeToString(c.typed()))
}

func (c cosigner) cosign(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body) // a part of a request has no checkpoint
	_, signed, _ := strings.Cut(string(body), "\n\n")
	text, _, _ := strings.Cut(signed, "\n\n")
	now := uint64(time.Now().Unix())
	signature := ed25519.Sign(c.key, fmt.Appendf(nil, "cosignature/v1\ntime %d\n%s\n", now, text))
	raw := append(binary.BigEndian.AppendUint64(c.id(), now), signature...)
	fmt.Fprintf(w, "— ada %s\n", base64.StdEncoding.EncodeToString(raw))
}
