package upstream_test

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/attestd/attestd/api/upstream"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/index/follower"
)

// FuzzAnswer lets an upstream send arbitrary bytes and then close the connection. Query must return data that is a JSON
// object, a refusal of the query, or an error that blames the upstream.
func FuzzAnswer(f *testing.F) {
	for _, seed := range []string{
		"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 15\r\n\r\n{\"data\":{\"a\":1}}",
		"HTTP/1.1 200 OK\r\nContent-Type: application/graphql-response+json; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
		"HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\n\r\n{\"errors\":[{\"message\":\"\xff\",\"extensions\":{\"code\":\"rate-limited\"}}]}",
		"HTTP/1.1 429 No\r\nRetry-After: 99999999999999999999\r\nContent-Length: 0\r\n\r\n",
		"HTTP/1.1 302 Found\r\nLocation: http://[::1\r\n\r\n",
		"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Encoding: gzip\r\n\r\n\x1f\x8b\x08\x00",
		"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.0 200 OK\r\nContent-Type: application/json\r\n\r\n{\"data\":{}}",
		"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nRetry-After: Sat, 21 Nov 2026 00:00:00 GMT\r\n\r\n{\"data\":null}",
	} {
		f.Add([]byte(seed))
	}
	var answer atomic.Pointer[[]byte]
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		f.Fatal(err)
	}
	log.SetOutput(io.Discard) // net/http logs bytes after an answer
	f.Cleanup(func() { listener.Close(); log.SetOutput(os.Stderr) })
	go answerAll(listener, &answer)
	c := newClient(f,
		upstream.Options{URL: "http://" + listener.Addr().String(), Timeout: 30 * time.Second, MaxResponse: 1 << 20})
	f.Fuzz(func(t *testing.T, bytes []byte) {
		answer.Store(&bytes)
		data, err := c.Query(t.Context(), "{a}", nil)
		_, refused := errors.AsType[*follower.QueryError](err)
		if err != nil && !refused && appliance.CodeOf(err) != appliance.CodeUpstreamUnavailable {
			t.Errorf("%q: nobody is at fault: %v", bytes, err)
		}
		var object map[string]json.RawMessage
		if err == nil && (json.Unmarshal(data, &object) != nil || object == nil) {
			t.Errorf("%q: the data is %s", bytes, data)
		}
		got, err := c.Forward(t.Context(),
			upstream.Request{Method: http.MethodPost, Body: []byte("{}"), ContentType: mediaJSON})
		if err == nil &&
			(got.RetryAfter < 0 || got.RetryAfter > upstream.MaxRetryAfter || got.JSON() && !json.Valid(got.Body)) {
			t.Errorf("%q: forwarded as %+v", bytes, got)
		}
	})
}

// answerAll answers the first request of each connection.
func answerAll(listener net.Listener, answer *atomic.Pointer[[]byte]) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		go func() {
			defer conn.Close()
			if _, err := http.ReadRequest(bufio.NewReader(conn)); err == nil {
				_, _ = conn.Write(*answer.Load())
			}
		}()
	}
}
