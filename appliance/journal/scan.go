package journal

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"strconv"

	"github.com/google/uuid"

	"github.com/attestd/attestd/appliance"
)

// scanLeaf reads a leaf as EncodeLeaf writes it. Audits and copies decode each leaf, and with encoding/json that takes
// 2.5 times as long (BenchmarkDecodeLeaf). The caller encodes the record again and compares, so scanLeaf may accept other
// bytes, too. It does not read strings with escapes.
func scanLeaf(leaf []byte) (r appliance.Record, ok bool) {
	s := &leafScanner{rest: leaf}
	s.uuid(`{"id":"`, &r.ID)
	s.hex(`","hash":"0x`, r.Hash[:])
	s.hex(`","signature":{"r":"0x`, r.Signature.R[:])
	s.hex(`","s":"0x`, r.Signature.S[:])
	s.literal(`","v":`)
	v, err := strconv.ParseUint(s.until('}'), 10, 8)
	r.Signature.V = byte(v)
	for _, a := range []struct {
		before string
		to     *appliance.Address
	}{
		{`,"signerAddress":"0x`, &r.SignerAddress}, {`","unspendableAddress":"0x`, &r.UnspendableAddress},
		{`","beneficiary":"0x`, &r.Beneficiary},
	} {
		s.hex(a.before, a.to[:])
		s.failed = s.failed || *a.to == appliance.Address{} // which UnmarshalText refuses
	}
	s.text(`","scheme":"`, &r.Scheme)
	if s.has(`,"domain":`) {
		r.Domain = new(appliance.EIP712Domain)
		s.json(`,"domain":`, `,"keyId":"`, r.Domain)
	}
	s.text(`,"keyId":"`, &r.KeyID)
	if s.has(`,"idempotencyKey":"`) {
		s.text(`,"idempotencyKey":"`, &r.IdempotencyKey)
	}
	if s.has(`,"coordinator":"`) {
		s.text(`,"coordinator":"`, &r.Coordinator)
	}
	if s.has(`,"quorum":`) {
		r.Quorum = new(appliance.Quorum)
		after := `,"time":"`
		if bytes.Contains(s.rest, []byte(`,"approval":"`)) {
			after = `,"approval":"`
		}
		s.json(`,"quorum":`, after, r.Quorum)
	}
	if s.has(`,"approval":"`) {
		r.Approval = new(uuid.UUID)
		s.uuid(`,"approval":"`, r.Approval)
		s.literal(`"`)
	}
	s.literal(`,"time":"`)
	if !s.failed && err == nil {
		err = r.Time.UnmarshalText([]byte(s.until('"')))
	}
	s.hex(`,"salt":"`, r.Salt[:])
	s.literal(`"}`)
	return r, err == nil && !s.failed && len(s.rest) == 0
}

// leafScanner reads from the front of rest. After a failure, what it returns is meaningless.
type leafScanner struct {
	rest   []byte
	failed bool
}

func (s *leafScanner) has(literal string) bool { return bytes.HasPrefix(s.rest, []byte(literal)) }

func (s *leafScanner) literal(want string) {
	if !s.has(want) {
		s.failed, s.rest = true, nil
		return
	}
	s.rest = s.rest[len(want):]
}

// until returns the text before the next end, and skips end.
func (s *leafScanner) until(end byte) string {
	i := bytes.IndexByte(s.rest, end)
	if i < 0 {
		s.failed, s.rest = true, nil
		return ""
	}
	text := string(s.rest[:i])
	s.rest = s.rest[i+1:]
	return text
}

// text reads a JSON string of printable ASCII without escapes.
func (s *leafScanner) text(before string, to *string) {
	s.literal(before)
	*to = s.until('"')
	for i := range len(*to) {
		if c := (*to)[i]; c < ' ' || c > '~' || c == '\\' {
			s.failed = true
		}
	}
}

// json reads a JSON value that ends where after begins. Quotes in its strings are escaped, so after is not in them.
func (s *leafScanner) json(before, after string, to any) {
	s.literal(before)
	end := bytes.Index(s.rest, []byte(after))
	if end < 0 || json.Unmarshal(s.rest[:end], to) != nil {
		s.failed, s.rest = true, nil
		return
	}
	s.rest = s.rest[end:]
}

func (s *leafScanner) hex(before string, to []byte) {
	s.literal(before)
	if len(s.rest) < 2*len(to) {
		s.failed, s.rest = true, nil
		return
	}
	if _, err := hex.Decode(to, s.rest[:2*len(to)]); err != nil {
		s.failed = true
	}
	s.rest = s.rest[2*len(to):]
}

func (s *leafScanner) uuid(before string, to *uuid.UUID) {
	const length = len("00000000-0000-0000-0000-000000000000")
	s.literal(before)
	if len(s.rest) < length {
		s.failed, s.rest = true, nil
		return
	}
	id, err := uuid.ParseBytes(s.rest[:length])
	if err != nil {
		s.failed = true
	}
	*to, s.rest = id, s.rest[length:]
}
