package wire

import (
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/chain"
)

// RedeemedQuery is the body of POST /chain/redeemed.
type RedeemedQuery struct {
	Hashes []appliance.Digest `json:"hashes"` // at most MaxHashes
}

// MaxHashes is the number of hashes that fit into a body of the admin socket.
const MaxHashes = 500

// Redeemed is the answer of POST /chain/redeemed: the redemptions of the requested hashes.
type Redeemed struct {
	Redeemed []chain.Redeemed `json:"redeemed"`
}
