package indexer

import (
	"encoding/hex"
	"fmt"
	"strings"
)

func hexOf(b []byte) string { return "0x" + hex.EncodeToString(b) }

func decodeHex(text string) ([]byte, error) {
	digits, ok := strings.CutPrefix(text, "0x")
	if !ok {
		return nil, fmt.Errorf("%.20q does not begin with 0x", text)
	}
	return hex.DecodeString(digits)
}
