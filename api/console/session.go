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
	// mostLinks and mostSessions bound memory. Beyond them, a new entry replaces the oldest.
	mostLinks    = 32
	mostSessions = 64
	// mostStreams bounds the streams of a session, so that connections remain for other clients
	// (maxConnectionsPerAddress). A visible page has one stream.
	mostStreams = 16
)

// secret is the hash of a link's token or of a session's cookie. A reader of the process's memory cannot use it.
type secret [sha256.Size]byte

func hashed(token string) secret { return sha256.Sum256([]byte(token)) }

// link is an invitation that can be used once.
type link struct {
	Role    Role
	By      string
	Expires time.Time
}

// session is the session of a signed-in user.
type session struct {
	Principal
	expires time.Time
	ended   context.Context // ends with the session
	end     context.CancelFunc
	streams atomic.Int32 // open streams; see mostStreams
}

// sessions holds all links and sessions in memory; a restart ends them. It is safe for concurrent use.
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

// peekLink returns a link that is still valid.
func (s *sessions) peekLink(token string) (link, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forgetExpired()
	l, ok := s.links[hashed(token)]
	return l, ok
}

// takeLink removes and returns a link.
func (s *sessions) takeLink(token string) (link, bool) {
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
	// This timeout uses the monotonic clock. It ends requests that are still being answered; forgetExpired uses s.now
	// instead.
	begun.ended, begun.end = context.WithTimeout(context.Background(), sessionLife)
	s.signed[hashed(cookie)] = begun
	return cookie, begun
}

// of returns the session of a cookie, or nil if it does not exist or has ended.
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

// forgetExpired removes expired links and sessions. The caller must hold the lock.
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

// makeRoom removes the entries that expire first until one more fits, and returns them.
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
