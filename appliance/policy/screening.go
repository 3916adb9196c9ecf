package policy

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"github.com/attestd/attestd/appliance"
	"io"
	"strings"
)

// Screening is a list of addresses that are never attested, such as sanctioned ones. A nil list is empty.
type Screening struct {
	addresses map[appliance.Address]struct{}
	version   string
}

// ParseScreening reads one address per line in the form of ParseAddress. It ignores empty lines and comments that begin
// with #. An error names the line. ParseScreening returns no partial list, because a partial list would let refused
// addresses through.
func ParseScreening(in io.Reader) (*Screening, error) {
	s := &Screening{addresses: make(map[appliance.Address]struct{})}
	sum := sha256.New()
	lines := bufio.NewScanner(io.TeeReader(in, sum))
	for n := 1; lines.Scan(); n++ {
		text, _, _ := strings.Cut(lines.Text(), "#")
		text = strings.TrimSpace(text)
		if text == "" {
			continue
		}
		address, err := appliance.ParseAddress(text)
		if err != nil {
			return nil, fmt.Errorf("line %d: %.64q %w", n, text, err)
		}
		s.addresses[address] = struct{}{}
	}
	s.version = hex.EncodeToString(sum.Sum(nil))
	return s, lines.Err()
}

// Version returns the SHA-256 of the file, in hex, or "" for nil.
func (s *Screening) Version() string {
	if s == nil {
		return ""
	}
	return s.version
}

// Len returns how many addresses are on the list.
func (s *Screening) Len() int {
	if s == nil {
		return 0
	}
	return len(s.addresses)
}

// check returns CodeScreened if one of the request's addresses is on the list. The error does not say which, because
// the list may be confidential.
func (s *Screening) check(r appliance.Request) error {
	if s == nil {
		return nil
	}
	_, unspendable := s.addresses[r.UnspendableAddress]
	_, beneficiary := s.addresses[r.Beneficiary]
	if unspendable || beneficiary {
		return appliance.Errorf(appliance.CodeScreened, "this request is refused by screening")
	}
	return nil
}
