package graphql

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	gophers "github.com/graph-gophers/graphql-go"
	gopherslog "github.com/graph-gophers/graphql-go/log"
	"github.com/vektah/gqlparser/v2/ast"

	"github.com/attestd/attestd/appliance/index"
)

// graph-gophers reads Go values by reflection. The values it needs are the fields of the schema filled from rows of
// the index, so their Go types are made from the two, once, instead of written out a third time:
//
//   - an object type is a struct with a field tagged with each name: a pointer to a scalar, a struct, a pointer to one
//     (nullable) or a slice, or, for a field with arguments, a func that takes them;
//   - an input type is a struct of the kind graph-gophers fills with arguments.
//
// A value is filled with no more than what the query selects, so nothing is read in vain, and its size is known before
// graph-gophers encodes it.
type resolvers struct {
	schema  *ast.Schema
	objects map[string]*objectType // by name in the schema
	inputs  map[string]reflect.Type
}

// objectType is the Go type of an object type over rows.
type objectType struct {
	def    *ast.Definition
	goType reflect.Type
	fields map[string]objectField
}

type objectField struct {
	access access
	index  int         // of the struct's field
	object *objectType // of fields that hold objects
	column index.FieldKind
}

// newGophers parses the schema for graph-gophers, over resolvers for all that it has.
func newGophers(schema *ast.Schema, text string, log *slog.Logger) (*gophers.Schema, error) {
	r := &resolvers{schema: schema, objects: make(map[string]*objectType), inputs: make(map[string]reflect.Type)}
	root, err := r.root()
	if err != nil {
		return nil, err
	}
	// The limits have been checked before; repeated fields are merged.
	return gophers.ParseSchema(text, root, gophers.UseStringDescriptions(), gophers.UseFieldResolvers(),
		gophers.DisableFieldSelections(), gophers.MaxParallelism(1), gophers.Logger(gopherslog.LoggerFunc(func(_ context.Context, cause any) {
			log.Error("graphql resolver panicked", "cause", cause, "stack", string(debug.Stack()))
		})))
}

// root makes the resolver of Query: a struct with a func for each field.
func (r *resolvers) root() (any, error) {
	var fields []reflect.StructField
	var values []reflect.Value
	for _, def := range r.schema.Query.Fields {
		if strings.HasPrefix(def.Name, "__") {
			continue
		}
		fn, err := r.rootFunc(def)
		if err != nil {
			return nil, err
		}
		fields = append(fields, structField(def.Name, fn.Type()))
		values = append(values, fn)
	}
	root := reflect.New(reflect.StructOf(fields))
	for i, fn := range values {
		root.Elem().Field(i).Set(fn)
	}
	return root.Interface(), nil
}

var (
	contextType = reflect.TypeFor[context.Context]()
	errorType   = reflect.TypeFor[error]()
)

// rootFunc makes func(ctx, args) (list, error) for a root field.
func (r *resolvers) rootFunc(def *ast.FieldDefinition) (reflect.Value, error) {
	list, fill, err := r.rootList(def)
	if err != nil {
		return reflect.Value{}, err
	}
	signature := reflect.FuncOf([]reflect.Type{contextType, r.argumentsType(def.Arguments)}, []reflect.Type{list, errorType}, false)
	return reflect.MakeFunc(signature, func(in []reflect.Value) []reflect.Value {
		x := in[0].Interface().(context.Context).Value(executionKey{}).(*rootExecution)
		result := reflect.New(list).Elem()
		err := fill(x, argumentsOf(argumentMap(in[1])), result)
		failed := reflect.New(errorType).Elem()
		if err != nil {
			failed.Set(reflect.ValueOf(err))
		}
		return []reflect.Value{result, failed}
	}), nil
}

// rootList returns the Go type of a root field's list, and what fills one.
func (r *resolvers) rootList(def *ast.FieldDefinition) (reflect.Type, func(*rootExecution, arguments, reflect.Value) error, error) {
	if query, ok := rowQueries[def.Name]; ok {
		object, err := r.object(r.schema.Types[def.Type.Name()], query.rows)
		if err != nil {
			return nil, nil, err
		}
		return reflect.SliceOf(object.goType), func(x *rootExecution, a arguments, list reflect.Value) error {
			rows, err := query.read(x.ctx, x.snap, a)
			if err != nil {
				return err
			}
			return x.fillList(object, rows, x.selection.children, list)
		}, nil
	}
	figure, ok := figures[def.Name]
	if !ok {
		return nil, nil, fmt.Errorf("nothing answers %s", def.Name)
	}
	return figure.list, func(x *rootExecution, a arguments, list reflect.Value) error {
		found, err := figure.read(x.ctx, x.snap, a)
		if err == nil {
			list.Set(reflect.ValueOf(found))
		}
		return err
	}, nil
}

// object makes the Go type of an object type over rows of a type. No object type of the schema holds itself.
func (r *resolvers) object(def *ast.Definition, rows *index.Type) (*objectType, error) {
	if known, ok := r.objects[def.Name]; ok {
		return known, nil
	}
	object := &objectType{def: def, fields: make(map[string]objectField)}
	var fields []reflect.StructField
	for _, f := range def.Fields {
		if strings.HasPrefix(f.Name, "__") {
			continue
		}
		of, goType, err := r.objectField(f, rows)
		if err != nil {
			return nil, fmt.Errorf("%s.%s: %w", def.Name, f.Name, err)
		}
		of.index = len(fields)
		object.fields[f.Name] = of
		fields = append(fields, structField(f.Name, goType))
	}
	object.goType = reflect.StructOf(fields)
	r.objects[def.Name] = object
	return object, nil
}

func (r *resolvers) objectField(f *ast.FieldDefinition, rows *index.Type) (objectField, reflect.Type, error) {
	of := objectField{access: accessOf(rows, f.Name)}
	switch of.access.kind {
	case accessNone:
		return of, nil, fmt.Errorf("the index has no such field of %s", rows.Name)
	case accessLeaf:
		of.column = rows.Fields[of.access.number].Kind
		return of, leafTypes[of.column], nil
	}
	var err error
	if of.object, err = r.object(r.schema.Types[f.Type.Name()], of.access.to); err != nil {
		return of, nil, err
	}
	goType := of.object.goType
	switch {
	case f.Type.Elem != nil:
		goType = reflect.SliceOf(goType)
	case !f.Type.NonNull:
		goType = reflect.PointerTo(goType)
	}
	if len(f.Arguments) > 0 {
		goType = reflect.FuncOf([]reflect.Type{r.argumentsType(f.Arguments)}, []reflect.Type{goType}, false)
	}
	return of, goType, nil
}

// leafTypes are the Go types of columns. All are nullable in the schema.
var leafTypes = map[index.FieldKind]reflect.Type{
	index.FieldText:  reflect.TypeFor[*string](),
	index.FieldInt:   reflect.TypeFor[*int32](),
	index.FieldBool:  reflect.TypeFor[*bool](),
	index.FieldTime:  reflect.TypeFor[*scalar](),
	index.FieldJSON:  reflect.TypeFor[*scalar](),
	index.FieldTexts: reflect.TypeFor[*[]string](),
}

// argumentsType makes the struct that graph-gophers fills with a field's arguments.
func (r *resolvers) argumentsType(args ast.ArgumentDefinitionList) reflect.Type {
	var fields []reflect.StructField
	for _, a := range args {
		fields = append(fields, structField(a.Name, r.inputType(a.Type)))
	}
	return reflect.StructOf(fields)
}

func (r *resolvers) inputType(t *ast.Type) reflect.Type {
	var goType reflect.Type
	switch def := r.schema.Types[t.NamedType]; {
	case def.Kind == ast.InputObject:
		goType = r.inputStruct(def)
	case def.Kind == ast.Enum || def.Name == "String":
		goType = reflect.TypeFor[string]()
	case def.Name == "Int":
		goType = reflect.TypeFor[int32]()
	case def.Name == "Boolean":
		goType = reflect.TypeFor[bool]()
	default:
		goType = reflect.TypeFor[scalar]()
	}
	if !t.NonNull {
		goType = reflect.PointerTo(goType)
	}
	return goType
}

func (r *resolvers) inputStruct(def *ast.Definition) reflect.Type {
	known, ok := r.inputs[def.Name]
	if !ok {
		var fields []reflect.StructField
		for _, f := range def.Fields {
			fields = append(fields, structField(f.Name, r.inputType(f.Type)))
		}
		known = reflect.StructOf(fields)
		r.inputs[def.Name] = known
	}
	return known
}

// structField names a Go field so that graph-gophers finds it: by tag, or by name but for case and underscores.
func structField(name string, t reflect.Type) reflect.StructField {
	exported := strings.TrimLeft(name, "_")
	exported = strings.ToUpper(exported[:1]) + exported[1:]
	return reflect.StructField{Name: exported, Type: t, Tag: reflect.StructTag(`graphql:"` + name + `"`)}
}

// argumentMap turns filled arguments back into a map, without those that are null.
func argumentMap(filled reflect.Value) map[string]any {
	m := make(map[string]any)
	for i := range filled.NumField() {
		value := filled.Field(i)
		if value.Kind() == reflect.Pointer {
			if value.IsNil() {
				continue
			}
			value = value.Elem()
		}
		name := filled.Type().Field(i).Tag.Get("graphql")
		switch v := value.Interface().(type) {
		case scalar:
			m[name] = v.value
		default:
			m[name] = v
			if value.Kind() == reflect.Struct {
				m[name] = argumentMap(value)
			}
		}
	}
	return m
}

// scalar is a value of a scalar that is not built in: a time.Time, text or any JSON.
type scalar struct{ value any }

// ImplementsGraphQLType tells graph-gophers which scalars this is.
func (scalar) ImplementsGraphQLType(name string) bool {
	return name == "DateTime" || name == "NaiveDate" || name == "JSON" || name == scalarJSONB
}

// UnmarshalGraphQL takes an argument as it is.
func (s *scalar) UnmarshalGraphQL(input any) error {
	s.value = input
	return nil
}

// MarshalJSON writes times as RFC 3339 in UTC.
func (s scalar) MarshalJSON() ([]byte, error) {
	if t, ok := s.value.(time.Time); ok {
		return json.Marshal(t.UTC().Format(time.RFC3339Nano))
	}
	return json.Marshal(s.value)
}

// executionKey is the context key of a rootExecution.
type executionKey struct{}

// rootExecution is what resolvers know of the root field that graph-gophers executes.
type rootExecution struct {
	ctx       context.Context
	snap      index.Snapshot
	selection *selection
	room      int // bytes that values may still have
}

func (x *rootExecution) fillList(object *objectType, rows []index.Row, set []*selection, list reflect.Value) error {
	list.Set(reflect.MakeSlice(list.Type(), len(rows), len(rows)))
	for i, row := range rows {
		if err := x.fill(object, row, set, list.Index(i)); err != nil {
			return err
		}
	}
	return x.ctx.Err()
}

// fill sets the fields of a value that are selected, once each, whatever aliases they have.
func (x *rootExecution) fill(object *objectType, row index.Row, set []*selection, value reflect.Value) error {
	inner := make(map[string][]*selection)
	for _, s := range set {
		inner[s.def.Name] = append(inner[s.def.Name], s.children...)
	}
	for _, s := range set {
		f, ok := object.fields[s.def.Name]
		if !ok { // __typename
			continue
		}
		target := value.Field(f.index)
		x.room -= len(s.prefix)
		if f.access.kind == accessLeaf {
			x.room -= setLeaf(target, row, f)
		} else if target.IsZero() {
			if err := x.fillObjects(f, row, inner[s.def.Name], target); err != nil {
				return err
			}
		}
		if x.room < 0 {
			return errResponseTooLarge
		}
	}
	return nil
}

// fillObjects sets a field that holds objects.
func (x *rootExecution) fillObjects(f objectField, row index.Row, set []*selection, target reflect.Value) error {
	var rows []index.Row
	switch f.access.kind {
	case accessObject:
		rows = []index.Row{row.Object(f.access.number)}
	case accessRelation:
		rows = []index.Row{x.snap.Related(row, f.access.relation)}
	case accessPacketTraces:
		row = x.snap.Related(row, f.access.relation)
		fallthrough
	case accessList:
		for element := range row.List(f.access.number) {
			rows = append(rows, element)
		}
	}
	switch target.Kind() {
	case reflect.Slice:
		return x.fillList(f.object, rows, set, target)
	case reflect.Func:
		return x.fillFiltered(f, rows, set, target)
	case reflect.Pointer:
		if rows[0].IsZero() {
			return nil
		}
		target.Set(reflect.New(target.Type().Elem()))
		return x.fill(f.object, rows[0], set, target.Elem())
	}
	return x.fill(f.object, rows[0], set, target)
}

// fillFiltered sets a field with a condition: a func that returns the objects that meet it.
func (x *rootExecution) fillFiltered(f objectField, rows []index.Row, set []*selection, target reflect.Value) error {
	all := reflect.New(target.Type().Out(0)).Elem()
	if err := x.fillList(f.object, rows, set, all); err != nil {
		return err
	}
	target.Set(reflect.MakeFunc(target.Type(), func(in []reflect.Value) []reflect.Value {
		where := argumentMap(in[0])["where"]
		some := reflect.MakeSlice(all.Type(), 0, len(rows))
		for i, row := range rows {
			if meets(row, where) {
				some = reflect.Append(some, all.Index(i))
			}
		}
		return []reflect.Value{some}
	}))
	return nil
}

// setLeaf sets a column's value and returns about how many bytes it has.
func setLeaf(target reflect.Value, row index.Row, f objectField) int {
	switch f.column {
	case index.FieldText:
		if text, ok := row.Text(f.access.number); ok {
			target.Set(reflect.ValueOf(&text))
			return len(text)
		}
	case index.FieldInt:
		if n, ok := row.Int(f.access.number); ok {
			target.Set(reflect.ValueOf(&n))
		}
	case index.FieldBool:
		if b, ok := row.Bool(f.access.number); ok {
			target.Set(reflect.ValueOf(&b))
		}
	case index.FieldTime:
		if t, ok := row.Time(f.access.number); ok {
			target.Set(reflect.ValueOf(&scalar{t}))
		}
	case index.FieldTexts:
		if texts := row.Texts(f.access.number); texts != nil {
			target.Set(reflect.ValueOf(&texts))
			return len(strings.Join(texts, ""))
		}
	case index.FieldJSON:
		if encoded := row.AppendJSON(nil, f.access.number); string(encoded) != "null" {
			target.Set(reflect.ValueOf(&scalar{json.RawMessage(encoded)}))
			return len(encoded)
		}
	}
	return 0
}

// byGophers answers a root field by graph-gophers, from a document of its own: without fragments, directives and
// variables, arguments as literals, each response key once. That leaves nothing of its validation to be surprised by.
func (x *execution) byGophers(s *selection) []*Error {
	root := &rootExecution{ctx: x.ctx, snap: x.snap, selection: s, room: x.max - len(x.buf)}
	ctx := context.WithValue(x.ctx, executionKey{}, root)
	document := appendSelection([]byte{'{'}, s)
	result := x.endpoint.gophers.Exec(ctx, string(append(document, '}')), "", nil)
	if len(result.Errors) > 0 {
		cause := result.Errors[0].ResolverError
		if cause == nil {
			cause = result.Errors[0]
		}
		return []*Error{x.failure(cause, s)}
	}
	value := result.Data[len(`{`)+len(s.prefix[1:]) : len(result.Data)-len(`}`)]
	if len(x.buf)+len(value) > x.max {
		return []*Error{x.failure(errResponseTooLarge, s)}
	}
	x.buf = append(x.buf, value...)
	return nil
}

// appendSelection prints a selection as a document. where on a root field is left out: it says nothing.
func appendSelection(dst []byte, s *selection) []byte {
	dst = append(append(append(dst, s.key...), ':'), s.def.Name...)
	dst = s.appendArguments(dst)
	if len(s.children) > 0 {
		dst = append(dst, '{')
		for _, child := range s.children {
			dst = append(appendSelection(dst, child), ' ')
		}
		dst = append(dst, '}')
	}
	return dst
}

func (s *selection) appendArguments(dst []byte) []byte {
	opened := false
	for _, name := range slices.Sorted(maps.Keys(s.args)) {
		if name == "where" && s.node.ObjectDefinition == s.schema.Query {
			continue
		}
		separator := byte(',')
		if !opened {
			separator, opened = '(', true
		}
		dst = append(append(append(dst, separator), name...), ':')
		dst = appendLiteral(dst, s.schema, s.def.Arguments.ForName(name).Type, s.args[name])
	}
	if opened {
		dst = append(dst, ')')
	}
	return dst
}
