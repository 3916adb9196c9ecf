package graphql

import (
	"context"
	"encoding/json"
	"errors"

	gophers "github.com/graph-gophers/graphql-go"

	"github.com/attestd/attestd/api/graphql/answer"
	"github.com/attestd/attestd/api/graphql/document"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/index"
)

// Oracle answers queries over rows with graph-gophers. The endpoint's answers must equal them byte for byte. The steps
// before execution are the endpoint's own, and graph-gophers computes figures in both cases.
type Oracle struct {
	e       *Endpoint
	index   answer.Index
	gophers *gophers.Schema
}

// NewOracle makes the oracle of an endpoint's answers from an index.
func NewOracle(e *Endpoint, idx answer.Index) (*Oracle, error) {
	schema, err := newGophers(e.schema)
	return &Oracle{e: e, index: idx, gophers: schema}, err
}

// Execute answers a query.
func (o *Oracle) Execute(query, variables string) string {
	root, errs := o.bind(query, variables)
	if len(errs) > 0 {
		return string(document.ErrorBody(errs...))
	}
	data := []byte(`{"data":{`)
	err := o.index.View(context.Background(), func(snap index.Snapshot) error {
		for i, s := range root {
			value, err := o.rootField(snap, s)
			if err != nil {
				errs = append(errs, err)
			}
			data = append(s.AppendKey(data, i), value...)
		}
		return nil
	})
	if err != nil {
		panic(err)
	}
	if len(errs) > 0 {
		return string(append(document.AppendErrors([]byte(`{"data":null,`), errs), '}'))
	}
	return string(finish(append(data, '}'), answer.Warnings(root)))
}

func (o *Oracle) bind(query, variables string) ([]*document.Selection, []*document.Error) {
	op, errs := o.e.operation(context.Background(), posted(query, variables))
	if len(errs) > 0 {
		return nil, errs
	}
	given, err := readObject([]byte(variables))
	if err != nil {
		return nil,
			[]*document.Error{document.NewError(document.CodeInvalidVariable, "variables must be a JSON object")}
	}
	values, errs := op.CoerceVariables(given)
	if len(errs) > 0 {
		return nil, errs
	}
	root, errs := op.Bind(values)
	if err := o.e.limits.CheckCost(root); err != nil {
		errs = append(errs, err)
	}
	return root, errs
}

// rootField answers a root field with its own document: without fragments, directives and variables, with arguments as
// literals, and with unique response keys. So the validation of graph-gophers cannot reject it.
func (o *Oracle) rootField(snap index.Snapshot, s *document.Selection) (json.RawMessage, *document.Error) {
	var data map[string]json.RawMessage
	if document.RowsOf(s.Def.Name) == nil {
		var object []byte
		last, errs := o.e.executor.Execute(context.Background(), nil, []*document.Selection{s},
			answer.Output{Max: 1 << 30, Next: func(full []byte) []byte {
				object = append(object, full...)
				return []byte{}
			}})
		object = append(object, last...)
		if len(errs) > 0 {
			return nil, errs[0]
		}
		return json.RawMessage(object[len(s.AppendKey([]byte("{"), 0)) : len(object)-1]), nil
	}
	text := append(appendSelection([]byte{'{'}, o.e.schema, s), '}')
	result := o.gophers.Exec(oracleContext(snap, s), string(text), "", nil)
	if len(result.Errors) > 0 {
		known, ok := errors.AsType[*appliance.Error](result.Errors[0].ResolverError)
		if !ok {
			panic(result.Errors[0])
		}
		err := document.FromDomain(known)
		err.Extensions["argument"] = known.Field
		return nil, err.At(s.PositionOf(known.Field)).WithPath(s.Key)
	}
	if err := json.Unmarshal(result.Data, &data); err != nil {
		panic(err)
	}
	return data[s.Key], nil
}

// Alone executes the original document with graph-gophers. The endpoint provides only the values of one root field:
// full selects all of them.
func (o *Oracle) Alone(query, variables, full string) string {
	root, errs := o.bind(full, "")
	if len(errs) > 0 {
		panic(errs[0].Message)
	}
	var values map[string]any
	if err := json.Unmarshal([]byte(variables), &values); err != nil {
		panic(err)
	}
	var body []byte
	err := o.index.View(context.Background(), func(snap index.Snapshot) error {
		var err error
		body, err = json.Marshal(o.gophers.Exec(oracleContext(snap, root[0]), query, "", values))
		return err
	})
	if err != nil {
		panic(err)
	}
	return string(body)
}

func oracleContext(snap index.Snapshot, s *document.Selection) context.Context {
	return context.WithValue(context.Background(), rootExecutionKey{}, &rootExecution{snap: snap, selection: s})
}
