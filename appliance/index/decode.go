package index

import (
	"bytes"
	"fmt"
	"reflect"
)

// Decode sets value, a pointer to the Go struct of the row's type, to the row's contents.
func (r Row) Decode(value any) error {
	v := reflect.ValueOf(value)
	if r.IsZero() || v.Kind() != reflect.Pointer || v.Type().Elem() != r.t.goType {
		return fmt.Errorf("a row of %s does not decode into %T", r.t.Name, value)
	}
	r.decode(v.Elem())
	return nil
}

func (r Row) decode(v reflect.Value) {
	r = r.whole()
	for i := range r.t.Fields {
		f := &r.t.Fields[i]
		member := v.Field(f.member)
		member.SetZero()
		if r.isEmpty(i) {
			continue
		}
		if member.Kind() == reflect.Pointer {
			member.Set(reflect.New(member.Type().Elem()))
			member = member.Elem()
		}
		switch f.Kind {
		case FieldText:
			s, _ := r.Text(i)
			member.SetString(s)
		case FieldInt:
			n, _ := r.Int(i)
			member.SetInt(int64(n))
		case FieldBool:
			b, _ := r.Bool(i)
			member.SetBool(b)
		case FieldTime:
			t, _ := r.Time(i)
			member.Set(reflect.ValueOf(t))
		case FieldJSON:
			member.SetBytes(bytes.Clone(r.value(i)))
		case FieldTexts:
			member.Set(reflect.ValueOf(r.Texts(i)))
		case FieldObject:
			r.Object(i).decode(member)
		case FieldList:
			member.Set(reflect.MakeSlice(member.Type(), r.Len(i), r.Len(i)))
			at := 0
			for element := range r.List(i) {
				element.decode(member.Index(at))
				at++
			}
		}
	}
}
