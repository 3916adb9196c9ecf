package graphql

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	gophers "github.com/graph-gophers/graphql-go"
	"github.com/vektah/gqlparser/v2/ast"

	"github.com/attestd/attestd/appliance/index"
)

// Oracle answers queries by graph-gophers over the whole schema, rows too: what the endpoint answers must be byte for byte the same.
type Oracle struct {
	e       *Endpoint
	gophers *gophers.Schema
}

// NewOracle makes the oracle of an endpoint's answers.
func NewOracle(e *Endpoint) (*Oracle, error) {
	schema, err := newGophers(e.schema, Schema)
	return &Oracle{e: e, gophers: schema}, err
}

// Execute answers a query. What stands in front of the execution is the endpoint's own.
func (o *Oracle) Execute(query, variables string) string {
	op, errs := o.e.operation(posted(query, variables))
	if len(errs) > 0 {
		return string(errorBody(errs...))
	}
	given, err := readObject([]byte(variables))
	if err != nil {
		return string(errorBody(newError(CodeInvalidVariable, "variables must be a JSON object")))
	}
	values, errs := coerceVariables(o.e.schema, op.def, given)
	if len(errs) > 0 {
		return string(errorBody(errs...))
	}
	root, errs := bind(op.fields, values)
	if len(errs) > 0 {
		return string(errorBody(errs...))
	}
	if err := o.e.limits.checkCost(root); err != nil {
		return string(errorBody(err))
	}
	return o.execute(root)
}

// execute answers each root field by a document of its own: without fragments, directives and variables, arguments as
// literals, each response key once. That leaves nothing of graph-gophers' validation to be surprised by.
func (o *Oracle) execute(root []*selection) string {
	data := []byte{'{'}
	var errs []*Error
	err := o.e.index.View(context.Background(), func(snap index.Snapshot) error {
		x := &execution{endpoint: o.e, ctx: context.Background(), snap: snap, max: 1 << 30}
		for i, s := range root {
			data = s.appendKey(data, i)
			if s.meta || s.def.Name == "__typename" {
				if err := x.rootField(s); err != nil {
					errs = append(errs, x.failure(err, s))
				}
				data, x.buf = append(data, x.buf...), nil
				continue
			}
			value, err := o.rootField(snap, s)
			if err != nil {
				errs = append(errs, x.failure(err, s))
			}
			data = append(data, value...)
		}
		return nil
	})
	if err != nil {
		panic(err)
	}
	if len(errs) > 0 {
		return string(append(appendErrors([]byte(`{"data":null,`), errs), '}'))
	}
	response := append(append([]byte(`{"data":`), data...), '}')
	if extensions := warnings(root); extensions != nil {
		encoded, _ := json.Marshal(extensions)
		response = append(append(append(response, `,"extensions":`...), encoded...), '}')
	} else {
		response = append(response, '}')
	}
	return string(response)
}

func (o *Oracle) rootField(snap index.Snapshot, s *selection) (json.RawMessage, error) {
	document := appendSelection([]byte{'{'}, s)
	result := o.gophers.Exec(oracleContext(snap, s), string(append(document, '}')), "", nil)
	if len(result.Errors) > 0 {
		if cause := result.Errors[0].ResolverError; cause != nil {
			return nil, cause
		}
		return nil, result.Errors[0]
	}
	var data map[string]json.RawMessage
	err := json.Unmarshal(result.Data, &data)
	return data[s.key], err
}

// Alone executes a document as it was written by graph-gophers, with nothing of this package in front of it but the values
// of one root field: full selects all of them.
func (o *Oracle) Alone(query, variables, full string) string {
	op, errs := o.e.prepare(full, "")
	if len(errs) > 0 {
		panic(errs[0].Message)
	}
	var values map[string]any
	if err := json.Unmarshal([]byte(variables), &values); err != nil {
		panic(err)
	}
	var body []byte
	err := o.e.index.View(context.Background(), func(snap index.Snapshot) error {
		var err error
		body, err = json.Marshal(o.gophers.Exec(oracleContext(snap, op.static[0]), query, "", values))
		return err
	})
	if err != nil {
		panic(err)
	}
	return string(body)
}

func oracleContext(snap index.Snapshot, s *selection) context.Context {
	ctx := context.WithValue(context.Background(), figureSourceKey{}, figureSource(snap))
	return context.WithValue(ctx, rootExecutionKey{}, &rootExecution{snap: snap, selection: s})
}

// graph-gophers reads Go values by reflection. The values it needs are the fields of the schema filled from rows of
// the index, so their Go types are made from the two, once, instead of written out a third time:
//
//   - an object type is a struct with a field tagged with each name: a pointer to a scalar, a struct, a pointer to one
//     (nullable) or a slice, or, for a field with arguments, a func that takes them;
//   - an input type is a struct of the kind graph-gophers fills with arguments.
//
// A value is filled with no more than what the query selects.
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
func newGophers(schema *ast.Schema, text string) (*gophers.Schema, error) {
	r := &resolvers{schema: schema, objects: make(map[string]*objectType), inputs: make(map[string]reflect.Type)}
	root, err := r.root()
	if err != nil {
		return nil, err
	}
	return gophers.ParseSchema(text, root, gophers.UseStringDescriptions(), gophers.UseFieldResolvers(),
		gophers.DisableFieldSelections(), gophers.MaxParallelism(1))
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
	query, ok := rowQueries[def.Name]
	if !ok {
		return r.figureFunc(def), nil
	}
	object, err := r.object(r.schema.Types[def.Type.Name()], query.rows)
	if err != nil {
		return reflect.Value{}, err
	}
	list := reflect.SliceOf(object.goType)
	signature := reflect.FuncOf([]reflect.Type{contextType, r.argumentsType(def.Arguments)}, []reflect.Type{list, errorType}, false)
	return reflect.MakeFunc(signature, func(in []reflect.Value) []reflect.Value {
		x := in[0].Interface().(context.Context).Value(rootExecutionKey{}).(*rootExecution)
		result, failed := reflect.New(list).Elem(), reflect.New(errorType).Elem()
		rows, err := query.read(context.Background(), x.snap, argumentsOf(argumentMap(in[1])))
		if err != nil {
			failed.Set(reflect.ValueOf(err))
		} else {
			x.fillList(object, rows, x.selection.children, result)
		}
		return []reflect.Value{result, failed}
	}), nil
}

// figureFunc makes one that calls a figure's resolver, without arguments.
func (r *resolvers) figureFunc(def *ast.FieldDefinition) reflect.Value {
	method := reflect.ValueOf(figures{}).MethodByName(methodName(def.Name))
	out := []reflect.Type{method.Type().Out(0), method.Type().Out(1)}
	signature := reflect.FuncOf([]reflect.Type{contextType, r.argumentsType(def.Arguments)}, out, false)
	return reflect.MakeFunc(signature, func(in []reflect.Value) []reflect.Value {
		if method.Type().NumIn() == 1 {
			return method.Call(in[:1])
		}
		return method.Call([]reflect.Value{in[0], reflect.Zero(method.Type().In(1))})
	})
}

// methodName turns v2_stats_count into V2StatsCount.
func methodName(field string) string {
	var name strings.Builder
	for _, word := range strings.Split(field, "_") {
		name.WriteString(strings.ToUpper(word[:1]) + word[1:])
	}
	return name.String()
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

// anyScalar is a value of a scalar that is not built in: a time.Time, text or any JSON.
type anyScalar struct{ value any }

func (anyScalar) ImplementsGraphQLType(name string) bool {
	return name == "DateTime" || name == "NaiveDate" || name == "JSON" || name == scalarJSONB
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

// rootExecution is what resolvers know of the root field that graph-gophers executes.
type rootExecution struct {
	snap      snapshot
	selection *selection
}

func (x *rootExecution) fillList(object *objectType, rows []index.Row, set []*selection, list reflect.Value) {
	list.Set(reflect.MakeSlice(list.Type(), len(rows), len(rows)))
	for i, row := range rows {
		x.fill(object, row, set, list.Index(i))
	}
}

// fill sets the fields of a value that are selected, once each, whatever aliases they have.
func (x *rootExecution) fill(object *objectType, row index.Row, set []*selection, value reflect.Value) {
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
		if f.access.kind == accessLeaf {
			setLeaf(target, row, f)
		} else if target.IsZero() {
			x.fillObjects(f, row, inner[s.def.Name], target)
		}
	}
}

// fillObjects sets a field that holds objects.
func (x *rootExecution) fillObjects(f objectField, row index.Row, set []*selection, target reflect.Value) {
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
func (x *rootExecution) fillFiltered(f objectField, rows []index.Row, set []*selection, target reflect.Value) {
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

// setLeaf sets a column's value.
func setLeaf(target reflect.Value, row index.Row, f objectField) {
	switch f.column {
	case index.FieldText:
		if text, ok := row.Text(f.access.number); ok {
			target.Set(reflect.ValueOf(&text))
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
			target.Set(reflect.ValueOf(&anyScalar{t}))
		}
	case index.FieldTexts:
		if texts := row.Texts(f.access.number); texts != nil {
			target.Set(reflect.ValueOf(&texts))
		}
	case index.FieldJSON:
		if encoded := row.AppendJSON(nil, f.access.number); string(encoded) != "null" {
			target.Set(reflect.ValueOf(&anyScalar{json.RawMessage(encoded)}))
		}
	}
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

// appendLiteral prints a coerced value as a GraphQL literal. enum tells that strings are names.
func appendLiteral(dst []byte, schema *ast.Schema, t *ast.Type, value any) []byte {
	switch value := value.(type) {
	case nil:
		return append(dst, "null"...)
	case bool:
		return strconv.AppendBool(dst, value)
	case int32:
		return strconv.AppendInt(dst, int64(value), 10)
	case float64:
		return strconv.AppendFloat(dst, value, 'g', -1, 64)
	case json.Number:
		return append(dst, value...)
	case string:
		if schema.Types[t.Name()].Kind == ast.Enum {
			return append(dst, value...)
		}
		return append(dst, (&ast.Value{Kind: ast.StringValue, Raw: value}).String()...)
	case []any:
		dst = append(dst, '[')
		for i, element := range value {
			if i > 0 {
				dst = append(dst, ',')
			}
			elem := t
			if t.Elem != nil {
				elem = t.Elem
			}
			dst = appendLiteral(dst, schema, elem, element)
		}
		return append(dst, ']')
	case map[string]any:
		return appendLiteralObject(dst, schema, t, value)
	}
	panic(fmt.Sprintf("no literal for a %T", value))
}

func appendLiteralObject(dst []byte, schema *ast.Schema, t *ast.Type, object map[string]any) []byte {
	dst = append(dst, '{')
	for i, name := range slices.Sorted(maps.Keys(object)) {
		if i > 0 {
			dst = append(dst, ',')
		}
		member := t
		if f := schema.Types[t.NamedType].Fields.ForName(name); f != nil {
			member = f.Type
		}
		dst = append(append(dst, name...), ':')
		dst = appendLiteral(dst, schema, member, object[name])
	}
	return append(dst, '}')
}
