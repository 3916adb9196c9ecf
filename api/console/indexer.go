package console

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/attestd/attestd/appliance/health"
	"github.com/attestd/attestd/appliance/index/indexer"
)

// indexerInterval is the time between two updates of the live page.
const indexerInterval = 5 * time.Second

// indexerPage shows how far each chain has been read into the replica. It is there with Options.Indexer only.
func indexerPage() page {
	return page{name: "indexer", path: "/indexer", title: "Indexer", least: Viewer, routes: []route{
		{"GET /indexer", Viewer, showIndexer},
		{"GET /indexer/live", Viewer, followIndexer},
	}}
}

// indexedChain is the state of a chain.
type indexedChain struct{ indexer.Status }

// liveLag is the lag, in blocks, above which a chain's history is being read.
const liveLag = 100

// Findings returns the findings of status and doctor about the chain.
func (c indexedChain) Findings() (all []finding) {
	for _, f := range health.IndexedChain(c.Status) {
		all = append(all, finding{f})
	}
	return all
}

// Looks returns the CSS class of the chain's state.
func (c indexedChain) Looks() string { return c.Findings()[0].Looks() }

// State describes whether the chain is read.
func (c indexedChain) State() string {
	switch {
	case c.Error != "":
		return "cannot be read"
	case c.Head == 0:
		return "waiting for a block that may be read"
	case c.HasHistory():
		return "reading the history"
	case c.Looks() != good:
		return "read to the head, with a faulty RPC"
	}
	return "read to the head"
}

// HasHistory reports whether the chain's history is still being read.
func (c indexedChain) HasHistory() bool { return c.Lag > liveLag }

// Percent returns the share of the chain's blocks that were read.
func (c indexedChain) Percent() uint64 {
	all := max(c.Head, c.First) - c.First + 1
	return 100 * (all - min(all, c.Lag)) / all
}

// Estimate describes the time until the head is read.
func (c indexedChain) Estimate() string {
	if c.Remaining == 0 {
		return "the time left is unknown"
	}
	return "about " + span(time.Duration(c.Remaining)*time.Second) + " left at the current rate"
}

// Rate describes the rates since the start.
func (c indexedChain) Rate() string {
	return fmt.Sprintf("%.1f blocks/s, %.1f events/s since the start", c.BlockRate, c.EventRate)
}

func showIndexer(w http.ResponseWriter, v *visit) error {
	data, err := v.indexer(v.Context())
	if err != nil {
		return err
	}
	return v.show(w, data)
}

func (v *visit) indexer(ctx context.Context) (any, error) {
	status, err := v.Admin.IndexerStatus(ctx)
	var all []indexedChain
	for _, c := range status.Chains {
		all = append(all, indexedChain{c})
	}
	return all, err
}

func followIndexer(w http.ResponseWriter, v *visit) error {
	return v.followLive(w, indexerInterval, v.indexer)
}
