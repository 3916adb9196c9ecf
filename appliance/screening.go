package appliance

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"strings"
)

// Screening is a list of addresses for which nothing is attested, such as those under sanctions. Nil screens nobody.
type Screening struct {
	addresses map[Address]struct{}
	version   string
}

// ParseScreening reads one address a line, as ParseAddress has it. Empty lines are passed over, and so is what follows a #.
// An error names the line: a list that is read in part would let through whom it should stop.
func ParseScreening(in io.Reader) (*Screening, error) {
	s := &Screening{addresses: make(map[Address]struct{})}
	sum := sha256.New()
	lines := bufio.NewScanner(io.TeeReader(in, sum))
	for n := 1; lines.Scan(); n++ {
		text, _, _ := strings.Cut(lines.Text(), "#")
		text = strings.TrimSpace(text)
		if text == "" {
			continue
		}
		address, err := ParseAddress(text)
		if err != nil {
			return nil, fmt.Errorf("line %d: %.64q %w", n, text, err)
		}
		s.addresses[address] = struct{}{}
	}
	s.version = hex.EncodeToString(sum.Sum(nil))
	return s, lines.Err()
}

// Version returns the SHA-256 of the file, in hex; empty where there is no list.
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

// check returns CodeScreened when one of the request's addresses is on the list. It does not say which: the list may be
// confidential.
func (s *Screening) check(r Request) error {
	if s == nil {
		return nil
	}
	_, unspendable := s.addresses[r.UnspendableAddress]
	_, beneficiary := s.addresses[r.Beneficiary]
	if unspendable || beneficiary {
		return Errorf(CodeScreened, "this request is refused by screening")
	}
	return nil
}
