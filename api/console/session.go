package console

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	linkLife    = time.Minute
	sessionLife = 30 * time.Minute
	// mostLinks and mostSessions bound memory. One more takes the place of the oldest.
	mostLinks    = 32
	mostSessions = 64
	// mostStreams of a session leave connections to others (maxConnectionsPerAddress). A page that is seen has one.
	mostStreams = 16
)

// secret is what is kept of a link's token or of a session's cookie: whoever reads the memory cannot use it.
type secret [sha256.Size]byte

func hashed(token string) secret { return sha256.Sum256([]byte(token)) }

// link is an invitation that can be taken once.
type link struct {
	Role    Role
	By      string
	Expires time.Time
}

// session is somebody who has signed in.
type session struct {
	Principal
	expires time.Time
	ended   context.Context // ends with the session
	end     context.CancelFunc
	streams atomic.Int32 // that are open; see mostStreams
}

// sessions are all links and sessions, in memory only: a restart ends them. They are safe for concurrent use.
type sessions struct {
	now func() time.Time

	mu     sync.Mutex
	links  map[secret]link
	signed map[secret]*session
}

func newSessions(now func() time.Time) *sessions {
	return &sessions{now: now, links: make(map[secret]link), signed: make(map[secret]*session)}
}

// invite returns the token of a new link.
func (s *sessions) invite(role Role, by string) (token string, expires time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forgetExpired()
	makeRoom(s.links, mostLinks, func(l link) time.Time { return l.Expires })
	token, expires = rand.Text(), s.now().Add(linkLife)
	s.links[hashed(token)] = link{Role: role, By: by, Expires: expires}
	return token, expires
}

// look returns a link that can still be taken.
func (s *sessions) look(token string) (link, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forgetExpired()
	l, ok := s.links[hashed(token)]
	return l, ok
}

// take returns a link, which nobody can take again.
func (s *sessions) take(token string) (link, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forgetExpired()
	l, ok := s.links[hashed(token)]
	delete(s.links, hashed(token))
	return l, ok
}

// begin returns the cookie of a new session.
func (s *sessions) begin(who Principal) (cookie string, begun *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forgetExpired()
	for _, dropped := range makeRoom(s.signed, mostSessions, func(a *session) time.Time { return a.expires }) {
		dropped.end()
	}
	cookie = rand.Text()
	begun = &session{Principal: who, expires: s.now().Add(sessionLife)}
	// By the monotonic clock, for what is still being answered then; whether a session has ended is asked of now.
	begun.ended, begun.end = context.WithTimeout(context.Background(), sessionLife)
	s.signed[hashed(cookie)] = begun
	return cookie, begun
}

// of returns the session of a cookie; nil where there is none, or none any more.
func (s *sessions) of(cookie string) *session {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forgetExpired()
	return s.signed[hashed(cookie)]
}

// finish ends a session.
func (s *sessions) finish(cookie string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if a := s.signed[hashed(cookie)]; a != nil {
		a.end()
		delete(s.signed, hashed(cookie))
	}
}

// finishAll ends all sessions.
func (s *sessions) finishAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range s.signed {
		a.end()
	}
	clear(s.signed)
}

// forgetExpired must be called with the lock held.
func (s *sessions) forgetExpired() {
	now := s.now()
	for key, l := range s.links {
		if !now.Before(l.Expires) {
			delete(s.links, key)
		}
	}
	for key, a := range s.signed {
		if !now.Before(a.expires) {
			a.end()
			delete(s.signed, key)
		}
	}
}

// makeRoom removes what expires first until there is room for one more, and returns it.
func makeRoom[T any](held map[secret]T, most int, expires func(T) time.Time) (dropped []T) {
	for len(held) >= most {
		var keys []secret
		for key := range held {
			keys = append(keys, key)
		}
		first := slices.MinFunc(keys, func(a, b secret) int { return expires(held[a]).Compare(expires(held[b])) })
		dropped = append(dropped, held[first])
		delete(held, first)
	}
	return dropped
}
