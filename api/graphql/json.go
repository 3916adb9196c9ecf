package graphql

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"strconv"
)

// readObject decodes a JSON object that was checked before, with numbers as json.Number. It returns nil for no bytes.
func readObject(raw []byte) (map[string]any, error) {
	if len(raw) == 0 {
		return nil, nil
	}
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.UseNumber()
	var value any
	if err := decoder.Decode(&value); err != nil {
		return nil, err
	}
	object, ok := normalise(value).(map[string]any)
	if !ok {
		return nil, errors.New("not an object")
	}
	return object, nil
}

// normalise writes equal numbers in a value in one form.
func normalise(value any) any {
	switch v := value.(type) {
	case json.Number:
		return normaliseNumber(v)
	case map[string]any:
		for name, member := range v {
			v[name] = normalise(member)
		}
	case []any:
		for i, element := range v {
			v[i] = normalise(element)
		}
	}
	return value
}

// normaliseNumber writes a whole number as an integer: 1e1 and 10.0 become 10. A float64 holds 15 digits exactly. Zero,
// fractions, and numbers of more than 15 characters are returned unchanged.
func normaliseNumber(n json.Number) json.Number {
	f, err := n.Float64()
	if err != nil || len(n) > 15 || f == 0 || f != math.Trunc(f) || math.Abs(f) >= 1e15 {
		return n
	}
	return json.Number(strconv.FormatInt(int64(f), 10))
}

// canonicalJSON encodes an object from readObject. Objects with equal members have equal bytes. For nil or an empty
// object it returns nil.
func canonicalJSON(object map[string]any) []byte {
	if len(object) == 0 {
		return nil
	}
	encoded, err := json.Marshal(object) // sorts members
	if err != nil {                      // cannot happen: it was JSON before
		panic(err)
	}
	return encoded
}
