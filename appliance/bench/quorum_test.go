package bench

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/attestd/attestd/api/wire"
	"github.com/attestd/attestd/appliance/daemontest"
)

// BenchmarkQuorum attests at an appliance that signs alone and at a coordinator of 2 of 3, in turns. It reports the
// coordinator's rate and latency, and the CPU of all three members for an attestation, as ratios to the single
// appliance. All run on this machine, so the members share its processors.
func BenchmarkQuorum(b *testing.B) {
	for _, clients := range []int{1, 32} {
		b.Run(fmt.Sprintf("%d clients", clients), func(b *testing.B) {
			alone := daemontest.New(b)
			alone.Start(b)
			defer alone.Kill(b)
			members := newBenchQuorum(b)
			const rounds = 3
			var single, quorum quorumFigures
			for range rounds {
				single.add(b, clients, alone)
				quorum.add(b, clients, members...)
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(single.rate(), "single/s")
			b.ReportMetric(quorum.rate(), "quorum/s")
			b.ReportMetric(quorum.rate()/single.rate(), "rate-ratio")
			b.ReportMetric(float64(quorum.median())/float64(single.median()), "p50-ratio")
			b.ReportMetric(quorum.cpuEach()/single.cpuEach(), "cpu-ratio")
		})
	}
}

// quorumFigures are the attestations of an appliance, and the CPU of all that took part.
type quorumFigures struct {
	took   []time.Duration
	cpu    time.Duration
	period time.Duration
}

// add attests at the first appliance for a while.
func (f *quorumFigures) add(b *testing.B, clients int, all ...*daemontest.Daemon) {
	used := func() (sum time.Duration) {
		for _, d := range all {
			sum += cpuTime(b, d.Cmd.Process.Pid)
		}
		return sum
	}
	const period = 3 * time.Second
	before := used()
	f.took = append(f.took, attestFor(b, all[0], clients, period)...)
	f.cpu += used() - before
	f.period += period
}

func (f *quorumFigures) rate() float64    { return float64(len(f.took)) / f.period.Seconds() }
func (f *quorumFigures) cpuEach() float64 { return f.cpu.Seconds() / float64(len(f.took)) }
func (f *quorumFigures) median() time.Duration {
	slices.Sort(f.took)
	return f.took[len(f.took)/2]
}

// newBenchQuorum starts three members, of which two must sign.
func newBenchQuorum(b *testing.B) (members []*daemontest.Daemon) {
	b.Helper()
	const n = 3
	signers := make([]string, n)
	for i := range n {
		d := daemontest.New(b)
		d.NewAttestorKey(b)
		d.BeginLog(b, fmt.Sprintf("m%d.example/attestd", i))
		d.Start(b)
		b.Cleanup(func() { d.Kill(b) })
		resp, err := http.Get(d.URL + "/functions/v1/attestor")
		if err != nil {
			b.Fatal(err)
		}
		var about wire.Attestor
		err = json.NewDecoder(resp.Body).Decode(&about)
		_ = resp.Body.Close()
		if err != nil {
			b.Fatal(err)
		}
		members, signers[i] = append(members, d), fmt.Sprint(about.SignerAddress)
	}
	for i, m := range members {
		var others []map[string]string
		for k, other := range members {
			if k == i {
				continue
			}
			key := other.Run(b, "key", "create", "--name", fmt.Sprintf("m%d", i), "--scope", "cosign", "--rate", "unlimited")
			path := filepath.Join(m.Dir, fmt.Sprintf("m%d.key", k))
			if err := os.WriteFile(path, []byte(strings.TrimSpace(key)), 0o600); err != nil {
				b.Fatal(err)
			}
			others = append(others, map[string]string{"name": fmt.Sprintf("m%d", k), "signer": signers[k],
				"url": other.URL, "api_key": "file:" + path})
		}
		list, _ := json.Marshal(others)
		m.Configure("ATTESTD_QUORUM_CONTRACT="+daemontest.QuorumContract, "ATTESTD_QUORUM_MEMBERS="+string(list),
			"ATTESTD_QUORUM_THRESHOLD=2")
	}
	for _, m := range members {
		m.Kill(b)
		m.Start(b)
	}
	return members
}
