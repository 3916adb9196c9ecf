package graphql

import (
	"bytes"
	"context"
	"encoding/json"
	"maps"
	"mime"
	"net/http"
	"strings"

	"github.com/gofiber/fiber/v2"

	"github.com/attestd/attestd/api/graphql/document"
	"github.com/attestd/attestd/appliance/events"
)

const mediaEvents = "text/event-stream"

// takesEvents reports whether an Accept header names text/event-stream.
func takesEvents(accept string) bool {
	for part := range strings.SplitSeq(accept, ",") {
		if media, params, err := mime.ParseMediaType(part); err == nil && media == mediaEvents && params["q"] != "0" {
			return true
		}
	}
	return false
}

// follows reports whether a request is a subscription whose client accepts a stream.
func (e *Endpoint) follows(ctx context.Context, r request) bool {
	if e.subscribe == nil || !takesEvents(r.raw.accept) {
		return false
	}
	op, errs := e.operation(ctx, r)
	return len(errs) == 0 && op.Subscribes()
}

// stream answers in the form of graphql-sse, distinct connections mode. The errors of an operation are messages, too,
// except those after which a client should try again.
func (e *Endpoint) stream(c *fiber.Ctx, r request, hash cacheKey) error {
	rows, answer := e.subscription(c.UserContext(), r, hash)
	switch {
	case answer == nil:
		return e.subscribe(c, rows)
	case answer.status == statusUnavailable:
		setRetryAfter(c, answer.retryAfter)
		return refuse(c, http.StatusServiceUnavailable, answer.errors[0])
	}
	c.Response().Header.SetContentType(mediaEvents)
	c.Set(fiber.HeaderCacheControl, "no-store")
	m := e.message(*answer)
	send(c, pieces{append(m.Text, complete...)}, m.Done)
	return nil
}

// changeTypes are the events after which the rows of a subscription may have changed.
var changeTypes = map[string]events.Type{"v2_transfers": events.TransferUpdated, "v2_packets": events.PacketUpdated}

// subscription returns the rows that a subscription follows, or the answer to another operation or to an invalid one.
func (e *Endpoint) subscription(ctx context.Context, r request, hash cacheKey) (events.Rows, *response) {
	op, errs := e.operation(ctx, r)
	if len(errs) == 0 && !op.Subscribes() {
		answer, entry := e.answer(ctx, r, hash)
		switch {
		case entry != nil:
			answer = response{body: entry.body}
		case answer.status == statusForwarded || answer.status == statusStale:
			answer = refused(statusRefused, document.NewError(document.CodeOperationUnsupported,
				"the upstream answers no stream: accept "+mediaJSON))
		}
		return events.Rows{}, &answer
	}
	var root []*document.Selection
	if len(errs) == 0 {
		root, errs = e.followed(op, r)
	}
	if len(errs) > 0 {
		answer := refused(statusRefused, errs...)
		return events.Rows{}, &answer
	}
	r.payFor(job{cost: document.Cost(root)})
	return e.rows(root[0]), nil
}

// followed returns the selection of a subscription.
func (e *Endpoint) followed(op *operation, r request) ([]*document.Selection, []*document.Error) {
	if len(r.variables) > e.limits.MaxVariablesBytes {
		return nil, []*document.Error{e.variablesTooLarge(r)}
	}
	given, err := readObject(r.variables)
	if err != nil {
		return nil, []*document.Error{
			document.NewError(document.CodeInvalidVariable, "variables must be a JSON object")}
	}
	variables, errs := op.CoerceVariables(given)
	if len(errs) > 0 {
		return nil, errs
	}
	root, errs := e.bind(op, variables)
	if len(errs) == 0 && (len(root) != 1 || changeTypes[root[0].Def.Name] == "") {
		errs = []*document.Error{document.NewError(document.CodeOperationUnsupported,
			"a subscription selects one of v2_transfers and v2_packets")}
	}
	return root, errs
}

// rows returns the rows of a root field and of its changes.
func (e *Endpoint) rows(field *document.Selection) events.Rows {
	args, _ := field.Args["args"].(map[string]any)
	return events.Rows{
		Filter: filterOf(field.Def.Name, args),
		First: func(ctx context.Context) events.Message {
			return e.message(e.run(ctx, field))
		},
		Changed: func(ctx context.Context, packet string) events.Message {
			one := make(map[string]any, len(args)+1)
			maps.Copy(one, args)
			for _, page := range []string{"p_limit", "p_sort_order", "p_comparison"} {
				delete(one, page)
			}
			one["p_packet_hash"] = packet
			changed := *field
			changed.Args = map[string]any{"args": one}
			answer := e.run(ctx, &changed)
			if string(answer.body.whole()) == `{"data":{"`+field.Key+`":[]}}` { // of another filter
				e.reuse(answer)
				return events.Message{}
			}
			return e.message(answer)
		},
	}
}

// run executes a subscription's selection, within the bounds of queries.
func (e *Endpoint) run(ctx context.Context, field *document.Selection) response {
	root := []*document.Selection{field}
	return e.recovering(e.executions.bounded(func(ctx context.Context) response {
		return e.execute(ctx, root, false)
	}))(ctx)
}

// filterOf selects the changes of rows that the arguments of a root field may select.
func filterOf(name string, args map[string]any) events.Filter {
	f := events.Filter{Types: []string{string(changeTypes[name])}}
	if packet, ok := args["p_packet_hash"].(string); ok {
		f.Subjects = []string{strings.ToLower(packet)}
	}
	for _, end := range []string{"p_source_universal_chain_id", "p_destination_universal_chain_id"} {
		if chain, ok := args[end].(string); ok {
			f.Chains = []string{chain}
		}
	}
	switch given := args["p_addresses_canonical"].(type) {
	case string:
		f.Addresses = []string{strings.ToLower(given)}
	case []any:
		for _, address := range given {
			if text, ok := address.(string); ok {
				f.Addresses = append(f.Addresses, strings.ToLower(text))
			}
		}
	}
	return f
}

// message returns the message next of a response. The response counts against the budget until the message is sent.
func (e *Endpoint) message(r response) events.Message {
	m := events.Message{Text: next(r.body.whole()), Extra: extraOf(r.body), Done: func() {}}
	if r.held != nil {
		m.Done = func() { e.reuse(r) }
	}
	return m
}

const complete = "event: complete\ndata:\n\n"

// next returns the message next with a JSON text.
func next(body []byte) []byte {
	text := bytes.NewBufferString("event: next\ndata: ")
	if bytes.ContainsAny(body, "\r\n") {
		_ = json.Compact(text, body) // made by this package, so it is JSON
	} else {
		text.Write(body)
	}
	text.WriteString("\n\n")
	return text.Bytes()
}
