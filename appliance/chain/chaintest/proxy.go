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

// Proxy stands before a node, and fails and lies as it is told.
type Proxy struct {
	URL  string
	node string

	mu     sync.Mutex
	answer func(Request) *Reply
	asked  []Request
}

// Request is a call of the JSON-RPC.
type Request struct {
	Method string            `json:"method"`
	Params []json.RawMessage `json:"params"`
	ID     json.RawMessage   `json:"id"`
	pass   func() json.RawMessage
}

// Pass asks the node, and returns its result.
func (r Request) Pass() json.RawMessage { return r.pass() }

// Blocks returns the range of a question for events, and how many blocks it has; ok is false for another question.
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

// Reply is an answer in the place of the node's.
type Reply struct {
	Status     int    // of HTTP; zero means 200
	RetryAfter string // the header
	Result     json.RawMessage
	Error      string // of JSON-RPC, with code -32005
	Hang       bool   // until the client goes
	Raw        []byte // the whole body
}

// NewProxy returns a proxy that passes everything on.
func NewProxy(t testing.TB, node string) *Proxy {
	p := &Proxy{node: node}
	s := httptest.NewServer(p)
	t.Cleanup(s.Close)
	p.URL = s.URL
	return p
}

// Answer has the function answer instead of the node; where it returns nil, the node does. Nil has the node answer everything.
func (p *Proxy) Answer(answer func(Request) *Reply) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.answer = answer
}

// Get asks the node something else.
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

// ask passes a request on; an error of the node's is null.
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
