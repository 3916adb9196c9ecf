package dataset

import "github.com/btcsuite/btcd/btcutil/bech32"

// bech32Text writes bytes as an address of that prefix (BIP-173).
func bech32Text(prefix string, b []byte) string {
	text, err := bech32.EncodeFromBase256(prefix, b)
	if err != nil { // of prefixes above
		panic(err)
	}
	return text
}

// bech32Bytes returns the bytes of an address that bech32Text has written.
func bech32Bytes(text string) []byte {
	_, b, err := bech32.DecodeToBase256(text)
	if err != nil {
		panic(err)
	}
	return b
}
