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

// ProvePacket is the body of POST /replica/proof. The answer is an indexer.PacketProof.
type ProvePacket struct {
	Packet string `json:"packet"` // its hash
}

// VerifyChain is the body of POST /replica/verify-chain. The answer is lines of Progress[indexer.ReplicaReport].
type VerifyChain struct {
	Chain string `json:"chain"` // universal chain id
	indexer.Range
	Restart bool `json:"restart,omitempty"`
	Keep    bool `json:"keep,omitempty"` // the proofs, in the replica
}
