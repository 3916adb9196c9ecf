package followertest

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strconv"
	"sync"
	"time"
)

// Fault is a kind of failure of a Proxy.
type Fault struct {
	Name   string
	chance float64
	wait   time.Duration // of Retry-After
	date   bool
	apply  func(v *visit, f Fault) (ended bool)
}

// Sometimes returns the fault with a probability per request, from 0 to 1.
func (f Fault) Sometimes(chance float64) Fault {
	f.chance = chance
	return f
}

// RetryAfter adds a Retry-After in seconds, rounded up.
func (f Fault) RetryAfter(wait time.Duration) Fault {
	f.wait, f.date = wait, false
	f.Name += ", Retry-After in seconds"
	return f
}

// RetryAfterDate adds a Retry-After that is a date, rounded up to whole seconds.
func (f Fault) RetryAfterDate(wait time.Duration) Fault {
	f.wait, f.date = wait, true
	f.Name += ", Retry-After a date"
	return f
}

// Faults returns one fault of each kind. Their Retry-After is one second.
func Faults() []Fault {
	return []Fault{
		Delay(20*time.Millisecond, 50*time.Millisecond), Cut(), CutInBody(),
		Status(http.StatusTooManyRequests).RetryAfter(time.Second),
		Status(http.StatusTooManyRequests).RetryAfterDate(time.Second),
		Status(http.StatusTooManyRequests), Status(http.StatusInternalServerError), Status(http.StatusBadGateway),
		Status(http.StatusServiceUnavailable).RetryAfter(time.Second),
		Truncated(), TornGzip(), Malformed(), Empty(), HTML(), GraphQLError("INTERNAL_SERVER_ERROR"), PartialData(),
	}
}

func fault(name string, apply func(v *visit, f Fault) bool) Fault {
	return Fault{Name: name, chance: 1, apply: apply}
}

// replaced returns a fault that changes the target's answer.
func replaced(name string, change func(a answer) answer) Fault {
	return fault(name, func(v *visit, f Fault) bool {
		if a, ok := v.ask(); ok {
			v.failed(f.Name)
			v.send(change(a))
		}
		return true
	})
}

// Delay delays the answer by this time, and by up to jitter more. The other faults apply afterwards.
func Delay(by, jitter time.Duration) Fault {
	return fault("delay", func(v *visit, f Fault) bool {
		v.failed(f.Name)
		select {
		case <-time.After(by + v.jitter(jitter)):
			return false
		case <-v.r.Context().Done():
			return true
		}
	})
}

// Cut closes the connection instead of answering.
func Cut() Fault {
	return fault("cut before the answer", func(v *visit, f Fault) bool {
		v.failed(f.Name)
		v.end(false)
		panic(http.ErrAbortHandler) // closes the connection without a log entry
	})
}

// CutInBody closes the connection in the middle of an answer.
func CutInBody() Fault {
	return fault("cut in the answer", func(v *visit, f Fault) bool {
		a, ok := v.ask()
		if !ok {
			return true
		}
		v.failed(f.Name)
		body := v.header(a)
		v.end(false)
		v.w.Header().Set("Content-Length", strconv.Itoa(len(body)))
		v.w.WriteHeader(a.status)
		_, _ = v.w.Write(body[:len(body)/2])
		_ = http.NewResponseController(v.w).Flush()
		panic(http.ErrAbortHandler)
	})
}

// Status answers with this status without asking the target.
func Status(code int) Fault {
	return fault("status "+strconv.Itoa(code), func(v *visit, f Fault) bool {
		v.refuse(code, f)
		return true
	})
}

// RateLimit admits this many requests per second and rejects further ones with status 429, as rate limiters do. A
// second begins with the first request after the previous one has ended.
func RateLimit(requests int) Fault {
	var mu sync.Mutex
	var began time.Time
	passed := 0
	return fault("a rate limit", func(v *visit, f Fault) bool {
		mu.Lock()
		if time.Since(began) > time.Second {
			began, passed = time.Now(), 0
		}
		passed++
		refused := passed > requests
		mu.Unlock()
		if refused {
			v.refuse(http.StatusTooManyRequests, f)
		}
		return refused
	}).RetryAfter(time.Second)
}

// refuse answers with this status, and with Retry-After if the fault has one.
func (v *visit) refuse(code int, f Fault) {
	v.failed(f.Name)
	a := answer{status: code, contentType: "text/plain; charset=utf-8", body: []byte(http.StatusText(code))}
	if f.wait > 0 {
		now := time.Now()
		seconds := (f.wait + time.Second - 1) / time.Second
		at := now.Add(seconds * time.Second)
		a.retryAfter = strconv.Itoa(int(seconds))
		if f.date {
			at = now.Add(f.wait + time.Second).Truncate(time.Second)
			a.retryAfter = at.UTC().Format(http.TimeFormat)
		}
		v.notBefore(at)
	}
	v.send(a)
}

// Truncated answers with the first half of the body and a matching Content-Length.
func Truncated() Fault {
	return replaced("truncated", func(a answer) answer {
		a.body = a.body[:len(a.body)/2]
		return a
	})
}

// TornGzip answers with the first half of the compressed body and a matching Content-Length. Clients that do not accept
// gzip get Truncated.
func TornGzip() Fault {
	return fault("torn gzip", func(v *visit, f Fault) bool {
		a, ok := v.ask()
		if !ok {
			return true
		}
		v.failed(f.Name)
		a.body = v.header(a)
		a.body = a.body[:len(a.body)/2]
		v.compress = false // already compressed
		v.send(a)
		return true
	})
}

// Malformed replaces the last brace of the JSON with a bracket.
func Malformed() Fault {
	return replaced("malformed", func(a answer) answer {
		a.body = bytes.Clone(a.body)
		if i := bytes.LastIndexByte(a.body, '}'); i >= 0 {
			a.body[i] = ']'
		}
		return a
	})
}

// Empty answers with an empty body.
func Empty() Fault {
	return replaced("empty", func(a answer) answer {
		a.body = nil
		return a
	})
}

// HTML answers with a web page, like a captive portal.
func HTML() Fault {
	return replaced("a page", func(answer) answer {
		return answer{status: http.StatusOK, contentType: "text/html",
			body: []byte("<!doctype html><title>Welcome</title><p>Please log in.")}
	})
}

// GraphQLError answers with an error of that code and no data, with status 200.
func GraphQLError(code string) Fault {
	return replaced("a GraphQL error", func(answer) answer { return graphQLErrors("", "it failed", code) })
}

// PartialData answers with the data and an error.
func PartialData() Fault {
	return replaced("data and a GraphQL error", func(a answer) answer {
		var whole struct{ Data json.RawMessage }
		if json.Unmarshal(a.body, &whole) != nil || whole.Data == nil {
			whole.Data = json.RawMessage("null")
		}
		return graphQLErrors(`"data":`+string(whole.Data)+`,`, "a part of it failed", "INTERNAL_SERVER_ERROR")
	})
}

// graphQLErrors returns an answer with one error, after other members.
func graphQLErrors(members, message, code string) answer {
	quoted, err := json.Marshal(message)
	if err != nil { // a string always marshals
		panic(err)
	}
	body := "{" + members + `"errors":[{"message":` + string(quoted) + `,"extensions":{"code":"` + code + `"}}]}`
	return answer{status: http.StatusOK, contentType: "application/json", body: []byte(body)}
}
