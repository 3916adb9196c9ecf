package console

import (
	"net/http"
	"net/url"
	"path"
	"strings"
	"time"
)

// cookieName of the session. __Host- makes browsers refuse one that another host or a page without TLS has set.
func (c *Console) cookieName() string {
	if c.secure() {
		return "__Host-attestd-console"
	}
	return "attestd-console"
}

// session returns that of a request's cookie, nil where there is none.
func (c *Console) session(r *http.Request) *session {
	cookie, err := r.Cookie(c.cookieName())
	if err != nil {
		return nil
	}
	return c.sessions.of(cookie.Value)
}

// setCookie gives the browser a session's cookie; with an empty value it takes it away.
func (c *Console) setCookie(w http.ResponseWriter, value string, life time.Duration) {
	http.SetCookie(w, &http.Cookie{
		Name: c.cookieName(), Value: value, Path: "/", MaxAge: int(life.Seconds()),
		HttpOnly: true, SameSite: http.SameSiteStrictMode, Secure: c.secure(),
	})
}

// signInData is what the page shows on which to sign in.
type signInData struct {
	Next  string // path to go to then
	Again bool   // a session is there, but too old to change things
	Role  Role   // of that session
	Wrong string // what was wrong with a link
	Token string // of a link that is to be confirmed
	Link  link   // which it is of
	OIDC  string // where one signs in at the provider; empty where there is none
}

func (c *Console) writeSignIn(w http.ResponseWriter, r *http.Request, status int, data signInData) {
	if c.provider != nil {
		query := url.Values{"next": {data.Next}}
		if data.Again {
			query.Set("again", "yes")
		}
		data.OIDC = "/oidc?" + query.Encode()
	}
	view := view{Title: "Sign in", Page: "signin", Now: c.now(), Data: data}
	if s := c.session(r); s != nil {
		view.pages, view.Who, view.Expires = c.pages, &s.Principal, s.expires
	}
	c.write(w, status, "signin", view)
}

func (c *Console) showSignIn(w http.ResponseWriter, r *http.Request) {
	c.writeSignIn(w, r, http.StatusOK, signInData{Next: ownPath(r.URL.Query().Get("next"))})
}

// showLink shows for what a link is, and does not take it: programs that look ahead follow links, too. Its form does, which a module sends at
// once.
func (c *Console) showLink(w http.ResponseWriter, r *http.Request) {
	token := r.PathValue("token")
	l, ok := c.sessions.look(token)
	if !ok {
		c.noLink(w, r, "/")
		return
	}
	c.writeSignIn(w, r, http.StatusOK, signInData{Next: "/", Token: token, Link: l})
}

// signIn takes a link: its token, or all of it as somebody has pasted it.
func (c *Console) signIn(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, maxForm)
	next := ownPath(r.PostFormValue("next"))
	token := strings.TrimSpace(r.PostFormValue("link"))
	l, ok := c.sessions.take(token[strings.LastIndex(token, "/")+1:])
	if !ok {
		c.noLink(w, r, next)
		return
	}
	c.begin(w, r, Principal{Name: l.By, Role: l.Role, SignedIn: c.now()})
	http.Redirect(w, r, next, http.StatusSeeOther)
}

// begin begins a session in the place of the one that the browser had.
func (c *Console) begin(w http.ResponseWriter, r *http.Request, who Principal) {
	if old, err := r.Cookie(c.cookieName()); err == nil {
		c.sessions.finish(old.Value)
	}
	cookie, _ := c.sessions.begin(who)
	c.setCookie(w, cookie, sessionLife)
	c.logger.Info("console: signed in", "name", who.Name, "role", who.Role.String(), "address", r.RemoteAddr)
}

// mayTryMore bounds how often links are tried that are none. One that is good is taken all the same: nobody guesses 130 random bits, and
// whoever tries must not keep others out.
func (c *Console) mayTryMore(w http.ResponseWriter, r *http.Request) bool {
	if c.attempts.Allow() {
		return true
	}
	w.Header().Set("Retry-After", "2")
	c.problem(w, r, http.StatusTooManyRequests, "Too many links were tried that are none. Try again in a few seconds.")
	return false
}

func (c *Console) noLink(w http.ResponseWriter, r *http.Request, next string) {
	if !c.mayTryMore(w, r) {
		return
	}
	c.logger.Warn("console: a link was tried that is none, or none any more", "address", r.RemoteAddr)
	c.writeSignIn(w, r, http.StatusForbidden, signInData{Next: next, Wrong: "This link was used before, or is older than a minute."})
}

func (c *Console) signOut(w http.ResponseWriter, r *http.Request) {
	if cookie, err := r.Cookie(c.cookieName()); err == nil {
		c.sessions.finish(cookie.Value)
	}
	c.setCookie(w, "", -time.Second)
	http.Redirect(w, r, "/sign-in", http.StatusSeeOther)
}

// ownPath returns a path of this console, cleaned as http.Redirect and browsers clean it: / if next is none, or leads to a link.
func ownPath(next string) string {
	u, err := url.Parse(next)
	if err != nil || !strings.HasPrefix(next, "/") || strings.HasPrefix(next, "//") || strings.ContainsAny(u.Path, "\\\r\n\t") {
		return "/"
	}
	own := url.URL{Path: path.Clean(u.Path), RawQuery: u.RawQuery}
	if own.Path == "/link" || strings.HasPrefix(own.Path, "/link/") {
		return "/"
	}
	return own.String()
}
