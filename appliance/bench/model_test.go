package bench

import (
	"fmt"
	"strings"
)

// model predicts the rate of a machine with more cores. All cores work on attestations, except for the journal: one
// goroutine writes and syncs a batch, and then the next one, which has all records that arrived in between. The time of
// a batch grows linearly with its records, as the journal alone shows at 64, 256 and 1,024 callers.
type model struct {
	each   float64 // CPU of an attestation, daemon and worker, in microseconds
	commit float64 // time of the journal for an empty batch, in microseconds
	record float64 // time of each record in a batch, in microseconds
}

// The model is fitted to the journal's rates at these two numbers of callers.
const (
	fewCallers  = 64
	manyCallers = 1024
)

func (all results) model() (m model, known bool) {
	r := all.get(now, fastHSM, 0, coresConnections)
	few, many := all.get(alone, "", 0, fewCallers), all.get(alone, "", 0, manyCallers)
	if r.PerSecond == 0 || few.PerSecond == 0 || many.PerSecond == 0 {
		return m, false
	}
	m.each = r.Daemon + r.Worker
	batch := func(r row) float64 { return 1e6 * float64(r.Connections) / r.PerSecond }
	m.record = max(0, (batch(many)-batch(few))/(manyCallers-fewCallers))
	m.commit = batch(few) - m.record*fewCallers
	return m, true
}

// journal is the journal's rate for so many connections, if all of them are in each batch.
func (m model) journal(connections int) float64 {
	return 1e6 * float64(connections) / (m.commit + m.record*float64(connections))
}

func (all results) scaling(t *strings.Builder) {
	m, known := all.model()
	if !known {
		return
	}
	fmt.Fprintf(t, "\n**Cores**, with the fast HSM at 0 ms and %d connections, in turns:\n\n", coresConnections)
	t.WriteString(
		"| cores of the server | CPU each | so the cores give at most | measured | of that |\n| --- | --- | --- | --- | --- |\n")
	for cores := 1; cores <= all.cores(); cores++ {
		r, note := all.on(cores, now, fastHSM, 0, coresConnections), ""
		if r.PerSecond == 0 {
			continue
		}
		cpu := r.Daemon + r.Worker
		if cores == all.cores() {
			cpu, note = cpu+r.Clients, ", shared with the clients"
		}
		most := float64(cores) * 1e6 / cpu
		fmt.Fprintf(t, "| %d%s | %.0f µs | %s | %s | %.2f |\n", cores, note, r.Daemon+r.Worker, thousands(most),
			thousands(r.PerSecond), r.PerSecond/most)
	}
	fmt.Fprintf(t,
		"\n**Larger machines, extrapolated**: %.0f µs of CPU each on any core, the clients elsewhere; the journal takes %.0f µs for a commit and %.1f µs for each record in it, one commit after the other, whatever the cores are.\n\n",
		m.each, m.commit, m.record)
	t.WriteString(
		"| cores | connections | the cores give | the journal gives | so at most |\n| --- | --- | --- | --- | --- |\n")
	for _, cores := range []int{4, 16, 64} {
		for _, connections := range []int{256, 1024, 4096} {
			cpu, journal := float64(cores)*1e6/m.each, m.journal(connections)
			fmt.Fprintf(t, "| %d | %s | %s | %s | %s |\n", cores, thousands(float64(connections)), thousands(cpu),
				thousands(journal), thousands(min(cpu, journal)))
		}
	}
}
