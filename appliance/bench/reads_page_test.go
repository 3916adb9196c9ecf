package bench

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
)

// readsRun is the result of BenchmarkReads.
type readsRun struct {
	Transfers   int        `json:"transfers"`
	Cores       int        `json:"cores"`
	Connections int        `json:"connections"`
	Rows        []readsRow `json:"rows"`
}

// readsRow is one query. Times are in microseconds. The members of the peer are zero if it was not measured.
type readsRow struct {
	Query     string  `json:"query"`
	PerSecond float64 `json:"perSecond"`
	Peer      float64 `json:"peerPerSecond"`
	Ratio     float64 `json:"ratio"` // of PerSecond to Peer, the median of the rounds
	CPU       float64 `json:"cpu"`
	PeerCPU   float64 `json:"peerCPU"`
	P99       float64 `json:"p99"`
	Small     float64 `json:"small"` // rate from 10,000 transfers, of PerSecond
}

func (r readsRun) write(file string) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(text, '\n'), 0o644)
}

func (r readsRun) table() string {
	var t strings.Builder
	fmt.Fprintf(&t, "\n%s transfers, %d connections, %d cores:\n\n"+
		"| | attestd | PostGraphile | ratio | CPU each | PostGraphile's | p99 | against 10,000 transfers |\n"+
		"| --- | --- | --- | --- | --- | --- | --- | --- |\n", thousands(float64(r.Transfers)), r.Connections, r.Cores)
	for _, row := range r.Rows {
		fmt.Fprintf(&t, "| %s | %s | %s | %.1f | %.0f µs | %s µs | %.1f ms | %.2f |\n", row.Query,
			thousands(row.PerSecond), thousands(row.Peer), row.Ratio, row.CPU, thousands(row.PeerCPU), row.P99/1000,
			row.Small)
	}
	return t.String() + "\n"
}
