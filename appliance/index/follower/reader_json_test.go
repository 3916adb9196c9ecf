package follower

import (
	"bytes"
	"encoding/json"
	"testing"
)

func TestListsAndObjectsAreBounded(t *testing.T) {
	for most, want := range []bool{false, false, true, true} {
		if _, ok := elements([]byte(`[1,2]`), most); ok != want {
			t.Errorf("a list of at most %d: %v", most, ok)
		}
		if _, ok := members([]byte(`{"a":1,"b":2}`), most); ok != want {
			t.Errorf("an object of at most %d: %v", most, ok)
		}
	}
}

func TestCountsAreKnownWhereBothAreTold(t *testing.T) {
	for list, want := range map[string]counts{
		`[{"name":"total_packets","value":"3"},{"name":"total_transfers","value":"4"},{"name":"more","value":"5"}]`: {packets: 3, transfers: 4},
		`[{"name":"total_packets","value":"3"},{"name":"total_transfers","value":null}]`:                            {},
		`[{"name":"total_packets","value":"3"},{"name":"total_transfers","value":"-1"}]`:                            {},
		`[]`: {},
	} {
		if got, err := readCounts([]byte(list)); got != want || err != nil {
			t.Errorf("%s: %+v, %v", list, got, err)
		}
	}
}

// FuzzScanner compares elements and members with encoding/json. For valid JSON they return the same values. For any
// other input they stay within the input.
func FuzzScanner(f *testing.F) {
	for _, seed := range []string{
		`[]`, ` [ 1 , "a\\\"]" , {"b":[{}]},null ] `, `{"a":"}","b" : {"c":[1,2]},"d":-1e5}`, `{"\u0061":1,"a":2}`,
		`["\\"]`, `["\\\\\"x"]`,
		`[}`, `[,]`, `[1,]`, `{"a"}`, `{"a":}`, `{1:2}`, `["`, `[1 2]`, `[[]`, `[]]`, `null`, ``,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		list, isList := elements(in, len(in))
		object, isObject := members(in, len(in))
		if !json.Valid(in) {
			return
		}
		var wantList []json.RawMessage
		begins := bytes.TrimLeft(in, " \t\r\n")[0]
		if err := json.Unmarshal(in, &wantList); (err == nil && begins == '[') != isList {
			t.Fatalf("a list: %v, %v", isList, err)
		}
		for i := range wantList {
			if !bytes.Equal(list[i], wantList[i]) {
				t.Fatalf("%d: %s, want %s", i, list[i], wantList[i])
			}
		}
		var wantObject map[string]json.RawMessage
		if err := json.Unmarshal(in, &wantObject); (err == nil && begins == '{') != isObject {
			t.Fatalf("an object: %v, %v", isObject, err)
		}
		for name := range wantObject {
			if !bytes.Equal(object[name], wantObject[name]) {
				t.Fatalf("%s: %s, want %s", name, object[name], wantObject[name])
			}
		}
	})
}
