package console

import (
	"net/http"
	"net/url"
	"path"
	"strings"
	"time"
)

// cookieName returns the name of the session cookie. With the __Host- prefix, browsers refuse a cookie that another
// host or a page without TLS has set.
func (c *Console) cookieName() string {
	if c.secure() {
		return "__Host-attestd-console"
	}
	return "attestd-console"
}

// session returns the session of a request, or nil.
func (c *Console) session(r *http.Request) *session {
	cookie, err := r.Cookie(c.cookieName())
	if err != nil {
		return nil
	}
	return c.sessions.of(cookie.Value)
}

// setCookie sets the session cookie. An empty value removes it.
func (c *Console) setCookie(w http.ResponseWriter, value string, life time.Duration) {
	http.SetCookie(w, &http.Cookie{
		Name: c.cookieName(), Value: value, Path: "/", MaxAge: int(life.Seconds()),
		HttpOnly: true, SameSite: http.SameSiteStrictMode, Secure: c.secure(),
	})
}

// signInData is the data of the sign-in page.
type signInData struct {
	Next  string // path to open after signing in
	Again bool   // the session is too old to make changes
	Role  Role   // of that session
	Wrong string // why a link was refused
	Token string // of the link to confirm
	Link  link   // the link with that token
	OIDC  string // URL to sign in at the provider; empty without one
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

// showLink shows the role of a link without using it up, because link previews follow links, too. The page's form uses
// the link; a module submits the form at once.
func (c *Console) showLink(w http.ResponseWriter, r *http.Request) {
	token := r.PathValue("token")
	l, ok := c.sessions.peekLink(token)
	if !ok {
		c.noLink(w, r, "/")
		return
	}
	c.writeSignIn(w, r, http.StatusOK, signInData{Next: "/", Token: token, Link: l})
}

// signIn uses a link: its token, or the whole pasted URL.
func (c *Console) signIn(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, maxForm)
	next := ownPath(r.PostFormValue("next"))
	token := strings.TrimSpace(r.PostFormValue("link"))
	l, ok := c.sessions.takeLink(token[strings.LastIndex(token, "/")+1:])
	if !ok {
		c.noLink(w, r, next)
		return
	}
	c.begin(w, r, Principal{Name: l.By, Role: l.Role, SignedIn: c.now()})
	http.Redirect(w, r, next, http.StatusSeeOther)
}

// begin begins a session, and ends the one that the browser had.
func (c *Console) begin(w http.ResponseWriter, r *http.Request, who Principal) {
	if old, err := r.Cookie(c.cookieName()); err == nil {
		c.sessions.finish(old.Value)
	}
	cookie, _ := c.sessions.begin(who)
	c.setCookie(w, cookie, sessionLife)
	c.logger.Info("console: signed in", "name", who.Name, "role", who.Role.String(), "address", r.RemoteAddr)
}

// mayTryMore limits how often invalid links may be tried. Valid links are not limited: 130 random bits cannot be
// guessed, and an attacker must not be able to keep other users out.
func (c *Console) mayTryMore(w http.ResponseWriter, r *http.Request) bool {
	if c.attempts.Allow() {
		return true
	}
	w.Header().Set("Retry-After", "2")
	c.problem(w, r, http.StatusTooManyRequests, "Too many invalid links. Try again in a few seconds.")
	return false
}

func (c *Console) noLink(w http.ResponseWriter, r *http.Request, next string) {
	if !c.mayTryMore(w, r) {
		return
	}
	c.logger.Warn("console: an invalid or expired link was used", "address", r.RemoteAddr)
	c.writeSignIn(w, r, http.StatusForbidden, signInData{Next: next, Wrong: "This link was already used or is older " +
		"than a minute."})
}

func (c *Console) signOut(w http.ResponseWriter, r *http.Request) {
	if cookie, err := r.Cookie(c.cookieName()); err == nil {
		c.sessions.finish(cookie.Value)
	}
	c.setCookie(w, "", -time.Second)
	http.Redirect(w, r, "/sign-in", http.StatusSeeOther)
}

// ownPath returns next as a path of this console, cleaned the way http.Redirect and browsers clean it. It returns "/"
// if next is not such a path, or leads to a link.
func ownPath(next string) string {
	u, err := url.Parse(next)
	if err != nil || !strings.HasPrefix(next, "/") || strings.HasPrefix(next, "//") ||
		strings.ContainsAny(u.Path, "\\\r\n\t") {
		return "/"
	}
	own := url.URL{Path: path.Clean(u.Path), RawQuery: u.RawQuery}
	if own.Path == "/link" || strings.HasPrefix(own.Path, "/link/") {
		return "/"
	}
	return own.String()
}
