package wire

import "github.com/attestd/attestd/appliance/index/indexer"

// IndexerStatus is the answer of GET /indexer: the state of each chain.
type IndexerStatus struct {
	Chains []indexer.Status `json:"chains"`
}

// IndexerRescan is the body of POST /indexer/rescan.
type IndexerRescan struct {
	Chain string `json:"chain"`
	indexer.Range
}
