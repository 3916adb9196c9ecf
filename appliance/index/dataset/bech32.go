package dataset

import "github.com/btcsuite/btcd/btcutil/bech32"

// bech32Text encodes bytes as an address with that prefix (BIP-173).
func bech32Text(prefix string, b []byte) string {
	text, err := bech32.EncodeFromBase256(prefix, b)
	if err != nil { // an invalid prefix in chainTable
		panic(err)
	}
	return text
}

// bech32Bytes returns the bytes of an address from bech32Text.
func bech32Bytes(text string) []byte {
	_, b, err := bech32.DecodeToBase256(text)
	if err != nil {
		panic(err)
	}
	return b
}
