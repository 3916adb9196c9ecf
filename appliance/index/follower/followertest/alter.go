package followertest

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
)

// refuseLacking rejects a query for a field that an older target lacks, as GraphQL servers do.
func (v *visit) refuseLacking() bool {
	var request struct{ Query string }
	if len(v.lacks) == 0 || json.Unmarshal(v.body, &request) != nil {
		return false
	}
	for _, lack := range v.lacks {
		of, name, _ := strings.Cut(lack, ".")
		if slices.Contains(strings.FieldsFunc(request.Query, notOfName), name) {
			v.send(graphQLErrors("", "Cannot query field \""+name+"\" on type \""+of+"\".",
				"GRAPHQL_VALIDATION_FAILED"))
			return true
		}
	}
	return false
}

func notOfName(r rune) bool {
	return r != '_' && (r < '0' || r > '9') && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z')
}

// withoutFields removes fields from an introspection answer. It returns other answers unchanged.
func withoutFields(body []byte, lacks []string) []byte {
	if !bytes.Contains(body, []byte(`"fields"`)) {
		return body
	}
	return AlterObjects(func(object map[string]any) {
		fields, ok := object["fields"].([]any)
		if !ok {
			return
		}
		of, _ := object["name"].(string)
		object["fields"] = slices.DeleteFunc(fields, func(field any) bool {
			member, _ := field.(map[string]any)
			name, _ := member["name"].(string)
			return slices.ContainsFunc(lacks, func(lack string) bool {
				return lack == of+"."+name || of == "" && strings.HasSuffix(lack, "."+name)
			})
		})
	})(body)
}

// AlterObjects returns a lie for Proxy.Lie that calls alter for each object in an answer's JSON. Numbers are
// json.Number.
func AlterObjects(alter func(object map[string]any)) func(body []byte) []byte {
	return func(body []byte) []byte {
		d := json.NewDecoder(bytes.NewReader(body))
		d.UseNumber()
		var tree any
		if d.Decode(&tree) != nil {
			return body
		}
		eachObject(tree, alter)
		altered, err := json.Marshal(tree)
		if err != nil { // decoded JSON can be encoded
			panic(err)
		}
		return altered
	}
}

func eachObject(node any, visit func(map[string]any)) {
	switch node := node.(type) {
	case []any:
		for _, element := range node {
			eachObject(element, visit)
		}
	case map[string]any:
		visit(node)
		for _, member := range node {
			eachObject(member, visit)
		}
	}
}
