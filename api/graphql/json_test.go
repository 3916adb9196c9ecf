package graphql

import (
	"encoding/json"
	"testing"
)

func TestNumbersHaveOneFormWhereNoDigitIsLost(t *testing.T) {
	for number, want := range map[json.Number]json.Number{
		"10": "10", "10.0": "10", "1e1": "10", "100e-1": "10", "-1.0": "-1", "123456789012345": "123456789012345",
		"0": "0", "0.0": "0.0", "-0": "-0", "1.5": "1.5", "1e-400": "1e-400", "1e300": "1e300", "1e400": "1e400",
		"9007199254740993": "9007199254740993", "9007199254740992.0": "9007199254740992.0",
		"1.00000000000000001": "1.00000000000000001",
	} {
		if got := normaliseNumber(number); got != want {
			t.Errorf("%s is %s, want %s", number, got, want)
		}
	}
}
