package index

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/attestd/attestd/appliance"
)

// A field that is too large for a store is rejected by name, so that it does not fail its whole batch.
func TestFieldsAreBounded(t *testing.T) {
	long := func(n int) string { return strings.Repeat("x", n) }
	for _, test := range []struct {
		name, field string
		of          *Type
		members     map[string]any
		most        int
	}{
		{"a chain id", "universal_chain_id", ChainType, map[string]any{}, 256},
		{"a chain id of a packet", "source_universal_chain_id", PacketType,
			map[string]any{"packet_hash": "0x01", "destination_universal_chain_id": "b", "sort_order": "1"}, 256},
		{"a hash", "packet_hash", PacketType, map[string]any{"source_universal_chain_id": "a",
			"destination_universal_chain_id": "b", "sort_order": "1"}, 256 << 10},
		{"a denom", "denom", TokenType, map[string]any{"universal_chain_id": "a"}, 16 << 10},
		{"a sort_order", "sort_order", ClientType,
			map[string]any{"universal_chain_id": "a", "client_id": 1, "counterparty_universal_chain_id": "b"}, 1024},
		{"a name", "display_name", ChainType, map[string]any{"universal_chain_id": "a"}, 256 << 10},
		{"data", "data", PacketType, map[string]any{"packet_hash": "0x01", "source_universal_chain_id": "a",
			"destination_universal_chain_id": "b", "sort_order": "1"}, 8 << 20},
	} {
		t.Run(test.name, func(t *testing.T) {
			for _, n := range []int{test.most, test.most + 1} {
				test.members[test.field] = long(n)
				object, err := json.Marshal(test.members)
				if err != nil {
					t.Fatal(err)
				}
				row, err := ParseRow(test.of, object)
				switch refused, _ := errors.AsType[*appliance.Error](err); {
				case n <= test.most && err != nil:
					t.Errorf("%d bytes: %v", n, err)
				case n > test.most &&
					(refused == nil || refused.Field != test.field || refused.Code != appliance.CodeInvalidField):
					t.Errorf("%d bytes: %d bytes of a row, %v", n, len(row.Bytes()), err)
				}
			}
		})
	}
}

func TestTieBreakIsBounded(t *testing.T) {
	key := "0x" + strings.Repeat("ab", 32)
	for _, order := range []string{strings.Repeat("9", 900), strings.Repeat("9", 1000),
		strings.Repeat("9", MaxSortOrder), strings.Repeat("é", MaxSortOrder/2)} {
		tied := TieBreak(order, key)
		if len(tied) > MaxSortOrder || !strings.HasSuffix(tied, "~"+key) || tied <= order[:900] ||
			strings.ToValidUTF8(tied, "") != tied {
			t.Errorf("%d bytes become %d: %.20s…%s", len(order), len(tied), tied, tied[len(tied)-70:])
		}
	}
}
