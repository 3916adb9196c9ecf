package bench

import (
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/crypto"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/daemontest"
)

// `make bench` works: a very short run measures all of its systems.
func TestDrillTheBenchmarkMeasures(t *testing.T) {
	s := benchSettings{
		window: 200 * time.Millisecond, warm: 50 * time.Millisecond, rounds: 1, connections: []int{4},
		cores:   runtime.NumCPU(),
		systems: []string{inC, inGo, now, alone},
	}
	const latency, most = time.Millisecond, 4 * 1000 // of 4 concurrent signers
	rows := append(s.measure(t, latency.String()), s.measureJournal(t)...)
	var names []string
	for _, r := range rows {
		names = append(names, r.System)
		if r.PerSecond <= 0 || (r.System != alone && r.PerSecond > most) {
			t.Errorf("%+v: a C_Sign of %s on 4 connections gives %d at most", r, latency, most)
		}
		if r.System == now &&
			(r.Daemon <= 0 || r.Worker <= r.Sign || r.Sign <= 0 || r.Clients <= 0 || r.P50 < 1000 || r.P99 < r.P50) {
			t.Errorf("%+v: a part is missing", r)
		}
	}
	if got := strings.Join(names, ", "); got != strings.Join(s.systems, ", ") {
		t.Errorf("measured %s", got)
	}
}

func TestTheClientsOfTheBenchmarkTakeNothingButA200(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		answer string
		whole  bool
		fails  bool
	}{
		"nothing yet":     {"", false, false},
		"half a head":     {"HTTP/1.1 200 OK\r\nContent-Le", false, false},
		"half a body":     {"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n{}", false, false},
		"whole":           {"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", true, false},
		"length not last": {"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nDate: now\r\n\r\n{}", true, false},
		"too busy":        {"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 2\r\n\r\n{}", false, true},
		"no length":       {"HTTP/1.1 200 OK\r\n\r\n{}", false, true},
	} {
		t.Run(name, func(t *testing.T) {
			whole, err := isWhole([]byte(test.answer))
			if whole != test.whole || (err != nil) != test.fails {
				t.Errorf("whole %t, %v", whole, err)
			}
		})
	}
}

func TestTheClientsOfTheBenchmarkCheckSignatures(t *testing.T) {
	t.Parallel()
	key, err := crypto.GenerateKey()
	if err != nil {
		t.Fatal(err)
	}
	scheme, err := appliance.NewScheme(appliance.SchemeKeccak256BN254, nil)
	if err != nil {
		t.Fatal(err)
	}
	asked, other := daemontest.RandomRequest(), daemontest.RandomRequest()
	for name, test := range map[string]struct {
		hashed, signed appliance.Request
		right          bool
	}{
		"right":                {asked, asked, true},
		"of other addresses":   {other, other, false},
		"signature of another": {asked, other, false},
	} {
		hash, digest := scheme.Digest(test.hashed), scheme.Digest(test.signed)
		rsv, err := crypto.Sign(digest[:], key)
		if err != nil {
			t.Fatal(err)
		}
		a := appliance.Attestation{Hash: hash, SignerAddress: appliance.Address(crypto.PubkeyToAddress(key.PublicKey))}
		a.Signature = appliance.Signature{R: [32]byte(rsv[:32]), S: [32]byte(rsv[32:64]), V: 27 + rsv[64]}
		answer, err := json.Marshal(a)
		if err != nil {
			t.Fatal(err)
		}
		c := loadClient{}
		c.makeRequest(asked, "host", "key")
		s := sample{c.request, append([]byte("HTTP/1.1 200 OK\r\n\r\n"), answer...)}
		if err := s.check(); (err == nil) != test.right {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The tables of docs/performance.md are generated from the results.
func TestThePerformancePageHasTheResultsOfTheBenchmarks(t *testing.T) {
	t.Parallel()
	docs := filepath.Join("..", "..", "docs")
	text, err := os.ReadFile(filepath.Join(docs, "performance.md"))
	if err != nil {
		t.Fatal(err)
	}
	attestations, err := kept[results](filepath.Join(docs, "performance.json"))
	if err != nil {
		t.Fatal(err)
	}
	scales, err := kept[scaleRuns](filepath.Join(docs, "scale.json"))
	if err != nil {
		t.Fatal(err)
	}
	reads, err := kept[readsRun](filepath.Join(docs, "reads.json"))
	if err != nil {
		t.Fatal(err)
	}
	for results, tables := range map[string]string{"performance.json": attestations.tables(),
		"reads.json": reads.table(), "scale.json": scales.tables()} {
		page, err := fillPage(string(text), results, tables)
		if err != nil || page != string(text) {
			t.Errorf("%v: docs/performance.md has other tables than docs/%s makes: `make bench-page`", err, results)
		}
	}
}
