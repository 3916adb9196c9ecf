package follower

import (
	"encoding/json"
	"fmt"
	"maps"
	"strings"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/index"
	"github.com/attestd/attestd/appliance/index/zkgm"
)

// maxRows bounds a table without pages.
const maxRows = maxPages * index.MaxLimit

// answer reads the rows of the answer to a part.
//
// Errors: appliance.CodeUpstreamUnavailable if the answer is not a list, or has more rows than were requested.
func (q *query) answer(p part, list []byte) (answer, error) {
	most := maxRows
	if q.takes(argLimit) {
		most = p.size()
	}
	objects, ok := elements(list, most)
	if !ok {
		return answer{}, answeredElse(fmt.Sprintf("a list of at most %d %s", most, q.name), nil)
	}
	a := answer{count: len(objects)}
	for _, object := range objects {
		row, err := q.row(p, object)
		if err != nil {
			key, order := q.identity(object)
			a.bad = append(a.bad, fmt.Errorf("%s %s: %s", q.t.Name, key, show(err.Error())))
			if order != "" {
				a.orders = append(a.orders, order)
			}
			continue
		}
		order, _ := row.Text(q.orderedBy())
		a.rows, a.orders = append(a.rows, row), append(a.orders, order)
	}
	return a, nil
}

// orderedBy returns the field that cursors refer to.
func (q *query) orderedBy() int {
	if f, ok := q.t.Field("sort_order"); ok {
		return f.Number
	}
	return q.t.Key[0]
}

func (q *query) row(p part, object []byte) (row index.Row, err error) {
	if q.related {
		if object, err = flatten(q.fields, object); err != nil {
			return row, err
		}
	}
	if !p.here.IsZero() {
		if object, err = overlay(p.here, object); err != nil {
			return row, err
		}
	}
	if row, err = index.ParseRow(q.t, object); err != nil {
		return row, err
	}
	if p.hash != "" {
		if hash := packetHashOf(row); !strings.EqualFold(hash, p.hash) {
			return row, fmt.Errorf("the upstream returned another packet than the requested %s", show(p.hash))
		}
	}
	if q.t == index.PacketType {
		return withoutDecoded(row)
	}
	return row, nil
}

// overlay returns the index's row with the fields replaced that the upstream has answered.
func overlay(here index.Row, object []byte) ([]byte, error) {
	var values, answered map[string]json.RawMessage
	if err := json.Unmarshal(here.AppendObject(nil), &values); err != nil {
		return nil, err
	}
	if err := json.Unmarshal(object, &answered); err != nil {
		return nil, appliance.Errorf(appliance.CodeInvalidField, "must be an object").Because(err)
	}
	const key = "packet_hash"
	// without this check the row would keep the index's own hash, whatever the upstream answered
	if _, told := answered[key]; !told {
		return nil, appliance.Errorf(appliance.CodeMissingField, "is missing").In(key)
	}
	maps.Copy(values, answered)
	return json.Marshal(values)
}

// identity returns the key and sort_order of an unreadable row, as far as they can be read.
func (q *query) identity(object []byte) (key, order string) {
	var values map[string]json.RawMessage
	if json.Unmarshal(object, &values) != nil {
		return "that is not an object", ""
	}
	var texts []string
	for _, f := range q.t.Key {
		text, ok := scalarText(values[q.t.Fields[f].Name])
		if !ok {
			text = "without " + q.t.Fields[f].Name
		}
		texts = append(texts, text)
	}
	order, _ = scalarText(values[q.t.Fields[q.orderedBy()].Name])
	return show(strings.Join(texts, "/")), order
}

// scalarText returns the text of a string, or a number as it is written.
func scalarText(value json.RawMessage) (text string, ok bool) {
	if json.Unmarshal(value, &text) == nil {
		return text, text != ""
	}
	var n json.Number
	err := json.Unmarshal(value, &n)
	return n.String(), err == nil
}

// flatten replaces related objects with the keys that the relations lead to; see selected.
func flatten(set []selected, object json.RawMessage) (json.RawMessage, error) {
	var values map[string]json.RawMessage
	if err := json.Unmarshal(object, &values); err != nil {
		return nil, appliance.Errorf(appliance.CodeInvalidField, "must be an object").Because(err)
	}
	if values == nil {
		return object, nil // object is null
	}
	for _, s := range set {
		value, given := values[s.f.Name]
		if !given {
			continue
		}
		flat, err := s.flatten(value)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s.f.Name, err)
		}
		values[s.f.Name] = flat
	}
	return json.Marshal(values)
}

func (s selected) flatten(value json.RawMessage) (json.RawMessage, error) {
	switch {
	case s.relation != "":
		var to map[string]json.RawMessage
		err := json.Unmarshal(value, &to)
		return to[s.key], err
	case !related(s.inner):
		return value, nil
	case s.f.Kind == index.FieldObject:
		return flatten(s.inner, value)
	}
	var list []json.RawMessage
	if err := json.Unmarshal(value, &list); err != nil {
		return nil, err
	}
	for i := range list {
		var err error
		if list[i], err = flatten(s.inner, list[i]); err != nil {
			return nil, err
		}
	}
	return json.Marshal(list)
}

// withoutDecoded removes the decoded fields that can be computed from the packet's data.
func withoutDecoded(packet index.Row) (index.Row, error) {
	if packet.IsNull(index.PacketDecodedColumn) && packet.IsNull(index.PacketDecodedFlattenedColumn) {
		return packet, nil
	}
	if version, _ := packet.Text(index.PacketChannelVersionColumn); version != zkgm.ChannelVersion {
		return packet, nil
	}
	var value index.Packet
	if err := packet.Decode(&value); err != nil {
		return packet, err
	}
	value.Decoded, value.DecodedFlattened = nil, nil
	return index.NewRow(value)
}
