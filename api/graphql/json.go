package graphql

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"math"
	"strconv"
)

// readJSON decodes a JSON value, with numbers as json.Number. repeated are the names that occur more than once in an object;
// the last member wins here, but not with all readers.
func readJSON(raw []byte) (value any, repeated []string, err error) {
	r := jsonReader{Decoder: json.NewDecoder(bytes.NewReader(raw))}
	r.UseNumber()
	if value, err = r.value(); err != nil {
		return nil, nil, err
	}
	if _, err := r.Token(); !errors.Is(err, io.EOF) {
		return nil, nil, errors.New("more than one value")
	}
	return value, r.repeated, nil
}

// readObject decodes a JSON object. It returns nil for no bytes.
func readObject(raw []byte) (map[string]any, error) {
	if len(raw) == 0 {
		return nil, nil
	}
	value, _, err := readJSON(raw)
	object, ok := value.(map[string]any)
	if err == nil && !ok {
		err = errors.New("not an object")
	}
	return object, err
}

type jsonReader struct {
	*json.Decoder
	repeated []string
}

func (r *jsonReader) value() (any, error) {
	token, err := r.Token()
	switch token {
	case json.Delim('{'):
		return r.object()
	case json.Delim('['):
		return r.list()
	}
	if n, ok := token.(json.Number); ok {
		return normaliseNumber(n), nil
	}
	return token, err
}

func (r *jsonReader) object() (any, error) {
	object := make(map[string]any)
	for r.More() {
		token, err := r.Token()
		if err != nil {
			return nil, err
		}
		name, _ := token.(string) // nothing else is a name
		if _, again := object[name]; again {
			r.repeated = append(r.repeated, name)
		}
		if object[name], err = r.value(); err != nil {
			return nil, err
		}
	}
	_, err := r.Token() // the bracket
	return object, err
}

func (r *jsonReader) list() (any, error) {
	list := []any{}
	for r.More() {
		element, err := r.value()
		if err != nil {
			return nil, err
		}
		list = append(list, element)
	}
	_, err := r.Token() // the bracket
	return list, err
}

// normaliseNumber writes a whole number as an integer: 1e1 and 10.0 become 10. A float64 holds 15 digits exactly; longer numbers
// and fractions are returned unchanged.
func normaliseNumber(n json.Number) json.Number {
	f, err := n.Float64()
	if err != nil || len(n) > 15 || f == 0 || f != math.Trunc(f) || math.Abs(f) >= 1e15 {
		return n
	}
	return json.Number(strconv.FormatInt(int64(f), 10))
}

// canonical encodes an object that readJSON has read. Objects with equal members have equal bytes. For nil and for an
// empty object there are none.
func canonicalJSON(object map[string]any) []byte {
	if len(object) == 0 {
		return nil
	}
	encoded, err := json.Marshal(object) // sorts members
	if err != nil {                      // it was JSON before
		panic(err)
	}
	return encoded
}
