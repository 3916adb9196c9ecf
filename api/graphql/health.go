package graphql

import (
	"bytes"
	"encoding/json"
	"net/http"
	"slices"

	"github.com/gofiber/fiber/v2"

	"github.com/attestd/attestd/api/graphql/document"
	"github.com/attestd/attestd/appliance"
)

// healthQuery is the query behind the hosted service's GET /api/rest/health.
const healthQuery = "{ v2_health_check { status environment last_update } }"

// Health answers GET /api/rest/health in the form that the hosted service's status page reads: {"v2_health_check":
// [{status, environment, last_update}]}.
func (e *Endpoint) Health(c *fiber.Ctx) error {
	c.Response().Header.SetContentType(typeJSON)
	r := request{query: healthQuery,
		raw: rawRequest{bytes: []byte(`{"query":"` + healthQuery + `"}`), contentType: mediaJSON, accept: mediaJSON}}
	answer, _ := e.answer(c.UserContext(), r, cacheKey{})
	defer e.reuse(answer)
	var body struct {
		Data struct {
			Checks json.RawMessage `json:"v2_health_check"`
		} `json:"data"`
	}
	if !answer.isWhole() || json.Unmarshal(answer.body.whole(), &body) != nil ||
		!bytes.HasPrefix(body.Data.Checks, []byte("[")) {
		setRetryAfter(c, answer.retryAfter)
		return refuse(c, http.StatusServiceUnavailable, e.noHealth())
	}
	c.Set(fiber.HeaderCacheControl, "no-store")
	c.Vary(fiber.HeaderAcceptEncoding)
	return e.sendBody(c,
		response{body: pieces{slices.Concat([]byte(`{"v2_health_check":`), body.Data.Checks, []byte("}"))}})
}

func (e *Endpoint) noHealth() *document.Error {
	if e.executor == nil {
		return document.NewError(appliance.CodeUpstreamUnavailable, "the upstream does not report its health")
	}
	return document.NewError(appliance.CodeReplicaUnavailable, "the replica cannot be read")
}
