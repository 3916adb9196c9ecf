package packaging

import (
	"regexp"
	"testing"

	"github.com/attestd/attestd/appliance"
)

// Addresses in documents can be copied: one in mixed case has a valid EIP-55 checksum.
func TestAddressesInDocumentsHaveTheirChecksum(t *testing.T) {
	t.Parallel()
	address := regexp.MustCompile(`\b0x[0-9a-fA-F]{40}\b`)
	found := 0
	for _, document := range documents(t) {
		for _, text := range address.FindAllString(readText(t, document), -1) {
			found++
			if _, err := appliance.ParseAddress(text); err != nil {
				t.Errorf("%s: %s: %v", document, text, err)
			}
		}
	}
	if found < 5 {
		t.Errorf("only %d addresses were found", found)
	}
}
