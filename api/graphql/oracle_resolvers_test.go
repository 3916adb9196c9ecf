package graphql

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"strings"
	"time"

	gophers "github.com/graph-gophers/graphql-go"
	"github.com/vektah/gqlparser/v2/ast"
	"github.com/vektah/gqlparser/v2/formatter"

	"github.com/attestd/attestd/api/graphql/answer"
	"github.com/attestd/attestd/api/graphql/document"
	"github.com/attestd/attestd/appliance/index"
)

// resolvers makes Go types for graph-gophers, which reads Go values by reflection. The values that it needs are the
// fields of the schema, filled from rows of the index. So their Go types are generated once from the two, instead of
// written out a third time:
//
//   - an object type is a struct with a tagged field for each name: a pointer to a scalar, a struct, a pointer to a
//     struct (nullable) or a slice; a field with arguments is a func that takes them;
//   - an input type is a struct of the kind that graph-gophers fills with arguments.
//
// Only the fields that the query selects are filled.
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
	access document.Access
	index  int         // of the struct's field
	object *objectType // of fields that hold objects
	column index.FieldKind
}

// newGophers makes a schema of the root fields that return rows, with resolvers for all their types.
func newGophers(whole *ast.Schema) (*gophers.Schema, error) {
	schema, query := *whole, *whole.Query
	query.Fields = nil
	for _, f := range whole.Query.Fields {
		if document.RowsOf(f.Name) != nil {
			query.Fields = append(query.Fields, f)
		}
	}
	schema.Query, schema.Types = &query, maps.Clone(whole.Types)
	schema.Types[query.Name] = &query
	r := &resolvers{schema: &schema, objects: make(map[string]*objectType), inputs: make(map[string]reflect.Type)}
	root, err := r.root()
	if err != nil {
		return nil, err
	}
	var text strings.Builder
	formatter.NewFormatter(&text).FormatSchema(&schema)
	return gophers.ParseSchema(text.String(), root, gophers.UseStringDescriptions(), gophers.UseFieldResolvers(),
		gophers.DisableFieldSelections(), gophers.MaxParallelism(1))
}

// root makes the resolver of Query: a struct with a func for each field.
func (r *resolvers) root() (any, error) {
	var fields []reflect.StructField
	var values []reflect.Value
	for _, def := range r.schema.Query.Fields {
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
	object, err := r.object(r.schema.Types[def.Type.Name()], document.RowsOf(def.Name))
	if err != nil {
		return reflect.Value{}, err
	}
	list := reflect.SliceOf(object.goType)
	signature := reflect.FuncOf([]reflect.Type{contextType, r.argumentsType(def.Arguments)},
		[]reflect.Type{list, errorType}, false)
	return reflect.MakeFunc(signature, func(in []reflect.Value) []reflect.Value {
		x := in[0].Interface().(context.Context).Value(rootExecutionKey{}).(*rootExecution)
		result, failed := reflect.New(list).Elem(), reflect.New(errorType).Elem()
		rows, err := answer.ReadRows(context.Background(), x.snap, def.Name, argumentMap(in[1]))
		if err != nil {
			failed.Set(reflect.ValueOf(err))
		} else {
			x.fillList(object, rows, x.selection.Children, result)
		}
		return []reflect.Value{result, failed}
	}), nil
}

// object makes the Go type of an object type over rows of a type. No object type of the schema contains itself.
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
	of := objectField{access: document.AccessOf(rows, f.Name)}
	switch of.access.Kind {
	case document.AccessNone:
		return of, nil, fmt.Errorf("the index has no such field of %s", rows.Name)
	case document.AccessProof:
		return of, reflect.TypeFor[*anyScalar](), nil
	case document.AccessLeaf:
		of.column = rows.Fields[of.access.Number].Kind
		return of, leafTypes[of.column], nil
	}
	var err error
	if of.object, err = r.object(r.schema.Types[f.Type.Name()], of.access.To); err != nil {
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

// leafTypes are the Go types of columns. All columns are nullable in the schema.
var leafTypes = map[index.FieldKind]reflect.Type{
	index.FieldText:  reflect.TypeFor[*string](),
	index.FieldInt:   reflect.TypeFor[*int32](),
	index.FieldBool:  reflect.TypeFor[*bool](),
	index.FieldTime:  reflect.TypeFor[*anyScalar](),
	index.FieldJSON:  reflect.TypeFor[*anyScalar](),
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
		goType = reflect.TypeFor[anyScalar]()
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

// structField names a Go field so that graph-gophers finds it: by tag, or by name ignoring case and underscores.
func structField(name string, t reflect.Type) reflect.StructField {
	exported := strings.TrimLeft(name, "_")
	exported = strings.ToUpper(exported[:1]) + exported[1:]
	return reflect.StructField{Name: exported, Type: t, Tag: reflect.StructTag(`graphql:"` + name + `"`)}
}

// argumentMap converts filled arguments back into a map, without null arguments.
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
		case anyScalar:
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

// anyScalar is a value of a custom scalar: a time.Time, text or any JSON.
type anyScalar struct{ value any }

func (anyScalar) ImplementsGraphQLType(name string) bool {
	return name == "DateTime" || name == "NaiveDate" || name == "JSON" || name == "jsonb"
}

func (s *anyScalar) UnmarshalGraphQL(input any) error {
	s.value = input
	return nil
}

func (s anyScalar) MarshalJSON() ([]byte, error) {
	if t, ok := s.value.(time.Time); ok {
		return json.Marshal(t.UTC().Format(time.RFC3339Nano))
	}
	return json.Marshal(s.value)
}

// rootExecutionKey is the context key of a rootExecution.
type rootExecutionKey struct{}

// rootExecution is the resolvers' view of the root field that graph-gophers executes.
type rootExecution struct {
	snap      index.Snapshot
	selection *document.Selection
}

func (x *rootExecution) fillList(object *objectType, rows []index.Row, set []*document.Selection, list reflect.Value) {
	list.Set(reflect.MakeSlice(list.Type(), len(rows), len(rows)))
	for i, row := range rows {
		x.fill(object, row, set, list.Index(i))
	}
}

// fill sets the selected fields of a value, once each, however many aliases they have.
func (x *rootExecution) fill(object *objectType, row index.Row, set []*document.Selection, value reflect.Value) {
	inner := make(map[string][]*document.Selection)
	for _, s := range set {
		inner[s.Def.Name] = append(inner[s.Def.Name], s.Children...)
	}
	for _, s := range set {
		f, ok := object.fields[s.Def.Name]
		if !ok { // __typename
			continue
		}
		target := value.Field(f.index)
		switch {
		case f.access.Kind == document.AccessLeaf:
			setLeaf(target, row, f)
		case f.access.Kind == document.AccessProof:
			x.setProof(target, row)
		case target.IsZero():
			x.fillObjects(f, row, inner[s.Def.Name], target)
		}
	}
}

// fillObjects sets a field that holds objects.
func (x *rootExecution) fillObjects(f objectField, row index.Row, set []*document.Selection, target reflect.Value) {
	var rows []index.Row
	switch f.access.Kind {
	case document.AccessObject:
		rows = []index.Row{row.Object(f.access.Number)}
	case document.AccessRelation:
		rows = []index.Row{x.snap.Related(row, f.access.Relation)}
	case document.AccessPacketTraces:
		row = x.snap.Related(row, f.access.Relation)
		fallthrough
	case document.AccessList:
		for element := range row.List(f.access.Number) {
			rows = append(rows, element)
		}
	}
	switch target.Kind() {
	case reflect.Slice:
		x.fillList(f.object, rows, set, target)
	case reflect.Func:
		x.fillFiltered(f, rows, set, target)
	case reflect.Pointer:
		if !rows[0].IsZero() {
			target.Set(reflect.New(target.Type().Elem()))
			x.fill(f.object, rows[0], set, target.Elem())
		}
	default:
		x.fill(f.object, rows[0], set, target)
	}
}

// fillFiltered sets a field with a condition: a func that returns the objects that meet it.
func (x *rootExecution) fillFiltered(f objectField, rows []index.Row, set []*document.Selection, target reflect.Value) {
	all := reflect.New(target.Type().Out(0)).Elem()
	x.fillList(f.object, rows, set, all)
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
}

func (x *rootExecution) setProof(target reflect.Value, packet index.Row) {
	proof, found, err := x.snap.Position(context.Background(), "proof "+packet.Key())
	if err != nil {
		panic(err)
	}
	if found {
		target.Set(reflect.ValueOf(&anyScalar{json.RawMessage(proof)}))
	}
}

// setLeaf sets a column's value.
func setLeaf(target reflect.Value, row index.Row, f objectField) {
	switch f.column {
	case index.FieldText:
		if text, ok := row.Text(f.access.Number); ok {
			target.Set(reflect.ValueOf(&text))
		}
	case index.FieldInt:
		if n, ok := row.Int(f.access.Number); ok {
			target.Set(reflect.ValueOf(&n))
		}
	case index.FieldBool:
		if b, ok := row.Bool(f.access.Number); ok {
			target.Set(reflect.ValueOf(&b))
		}
	case index.FieldTime:
		if t, ok := row.Time(f.access.Number); ok {
			target.Set(reflect.ValueOf(&anyScalar{t}))
		}
	case index.FieldTexts:
		if texts := row.Texts(f.access.Number); texts != nil {
			target.Set(reflect.ValueOf(&texts))
		}
	case index.FieldJSON:
		if encoded := row.AppendJSON(nil, f.access.Number); string(encoded) != "null" {
			target.Set(reflect.ValueOf(&anyScalar{json.RawMessage(encoded)}))
		}
	}
}

// meets reports whether a row meets a condition of the form {column: {_eq: value}}. The values are never null, because
// arguments omit nulls.
func meets(row index.Row, where any) bool {
	columns, _ := where.(map[string]any)
	for name, comparison := range columns {
		want, restricts := comparison.(map[string]any)["_eq"]
		encoded, err := json.Marshal(want)
		if err != nil {
			panic(err)
		}
		if restricts && string(row.AppendJSON(nil, row.Type().MustField(name).Number)) != string(encoded) {
			return false
		}
	}
	return true
}
