package chaintest

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"testing"
)

// Proxy forwards requests to a node. It fails or lies on demand.
type Proxy struct {
	URL  string
	node string

	mu     sync.Mutex
	answer func(Request) *Reply
	asked  []Request
}

// Request is a JSON-RPC call.
type Request struct {
	Method string            `json:"method"`
	Params []json.RawMessage `json:"params"`
	ID     json.RawMessage   `json:"id"`
	pass   func() json.RawMessage
}

// Pass forwards the request to the node and returns the node's result.
func (r Request) Pass() json.RawMessage { return r.pass() }

// Blocks returns the first and the last block of an eth_getLogs query. ok is false for other requests and for a query
// by block hash.
func (r Request) Blocks() (from, to uint64, ok bool) {
	if r.Method != "eth_getLogs" {
		return 0, 0, false
	}
	var q struct{ FromBlock, ToBlock string }
	if json.Unmarshal(r.Params[0], &q) != nil || q.FromBlock == "" {
		return 0, 0, false
	}
	from, _ = strconv.ParseUint(q.FromBlock, 0, 64)
	to, _ = strconv.ParseUint(q.ToBlock, 0, 64)
	return from, to, true
}

// Reply replaces the node's answer.
type Reply struct {
	Status     int    // HTTP status; zero means 200
	RetryAfter string // the header
	Result     json.RawMessage
	Error      string // JSON-RPC error, with code -32005
	Hang       bool   // do not answer until the client disconnects
	Raw        []byte // replaces the whole body
}

// NewProxy returns a proxy that forwards everything.
func NewProxy(t testing.TB, node string) *Proxy {
	p := &Proxy{node: node}
	s := httptest.NewServer(p)
	t.Cleanup(s.Close)
	p.URL = s.URL
	return p
}

// Answer sets a function that answers requests. If the function is nil or returns nil, the node answers.
func (p *Proxy) Answer(answer func(Request) *Reply) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.answer = answer
}

// Get sends another request to the node and returns its result.
func (p *Proxy) Get(q Request) json.RawMessage {
	body, _ := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": 1, "method": q.Method, "params": q.Params})
	return p.ask(body)
}

// Asked returns the requests so far.
func (p *Proxy) Asked() []Request {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]Request(nil), p.asked...)
}

// ServeHTTP implements http.Handler.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	var request Request
	if err != nil || json.Unmarshal(body, &request) != nil {
		http.Error(w, "not a request", http.StatusBadRequest)
		return
	}
	request.pass = func() json.RawMessage { return p.ask(body) }
	p.mu.Lock()
	p.asked = append(p.asked, request)
	answer := p.answer
	p.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	if answer != nil {
		if reply := answer(request); reply != nil {
			reply.write(w, r, request)
			return
		}
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"jsonrpc": "2.0", "id": request.ID, "result": request.Pass()})
}

// ask forwards a request to the node. It returns null for an error of the node.
func (p *Proxy) ask(body []byte) json.RawMessage {
	resp, err := http.Post(p.node, "application/json", bytes.NewReader(body))
	if err != nil {
		return nil
	}
	defer resp.Body.Close()
	var answer struct{ Result json.RawMessage }
	_ = json.NewDecoder(resp.Body).Decode(&answer)
	return answer.Result
}

func (a *Reply) write(w http.ResponseWriter, r *http.Request, request Request) {
	if a.Hang {
		<-r.Context().Done()
		return
	}
	if a.RetryAfter != "" {
		w.Header().Set("Retry-After", a.RetryAfter)
	}
	if a.Status != 0 {
		w.WriteHeader(a.Status)
	}
	answer := map[string]any{"jsonrpc": "2.0", "id": request.ID}
	switch {
	case a.Raw != nil:
		_, _ = w.Write(a.Raw)
		return
	case a.Error != "":
		answer["error"] = map[string]any{"code": -32005, "message": a.Error}
	default:
		answer["result"] = a.Result
	}
	_ = json.NewEncoder(w).Encode(answer)
}
