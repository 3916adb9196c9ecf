package console

import (
	"errors"
	"net/http"
	"strconv"
	"time"
)

// oidcCookie is the name of the cookie that binds a sign-in at the provider to the browser that began it. The cookie is
// SameSite=Lax, because the provider's site sends the browser back.
func (c *Console) oidcCookie() string { return c.cookieName() + "-oidc" }

// beginOIDC sends the browser to the provider.
func (c *Console) beginOIDC(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	to, cookie, err := c.provider.begin(r.Context(), ownPath(query.Get("next")), query.Has("again"))
	if errors.Is(err, errTooMany) {
		c.logger.Warn("console: too many sign-ins at the provider are in progress", "address", r.RemoteAddr)
		w.Header().Set("Retry-After", strconv.Itoa(int(startEvery.Seconds())))
		c.problem(w, r, http.StatusTooManyRequests, "Too many sign-ins are in progress. Try again in a minute, or "+
			"open a link from: sudo attestd console")
		return
	}
	if err != nil {
		c.logger.Error("console: the provider cannot be reached", "error", err.Error())
		c.problem(w, r, http.StatusBadGateway, "The identity provider failed. The appliance's log has the reason. To "+
			"sign in without the provider, open a link from: sudo attestd console")
		return
	}
	http.SetCookie(w, &http.Cookie{
		Name: c.oidcCookie(), Value: cookie, Path: "/", MaxAge: int(pendingLife.Seconds()),
		HttpOnly: true, SameSite: http.SameSiteLaxMode, Secure: c.secure(),
	})
	http.Redirect(w, r, to, http.StatusSeeOther)
}

// endOIDC handles the browser's return from the provider. It answers with a page that leads on instead of a redirect,
// because browsers do not send a SameSite=Strict cookie with a redirect that another site began.
func (c *Console) endOIDC(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	var cookie string
	if sent, err := r.Cookie(c.oidcCookie()); err == nil {
		cookie = sent.Value
	}
	begun, ok := c.provider.takePending(query.Get("state"), cookie)
	if !ok {
		if c.mayTryMore(w, r) {
			c.problem(w, r, http.StatusForbidden, "This sign-in was started in another browser or is older than ten "+
				"minutes. Sign in again.")
		}
		return
	}
	http.SetCookie(w, &http.Cookie{Name: c.oidcCookie(), Path: "/", MaxAge: -1, HttpOnly: true,
		SameSite: http.SameSiteLaxMode, Secure: c.secure()})
	if query.Has("error") {
		c.logger.Warn("console: the provider refused a sign-in", "error", query.Get("error"),
			"description", query.Get("error_description"))
		c.problem(w, r, http.StatusForbidden, "The identity provider refused the sign-in.")
		return
	}
	who, err := c.provider.finish(r.Context(), query.Get("code"), begun)
	switch {
	case errors.Is(err, errNoGroup):
		c.logger.Warn("console: the signed-in user has no group with access to the console", "name", who.Name)
		c.problem(w, r, http.StatusForbidden, "You signed in as "+who.Name+", but your groups do not allow access to "+
			"the console.")
	case err != nil:
		c.logger.Error("console: a sign-in failed", "error", err.Error())
		c.problem(w, r, http.StatusBadGateway, "The identity provider's answer is invalid. The appliance's log has "+
			"the reason.")
	default:
		who.SignedIn = minTime(who.SignedIn, c.now())
		c.begin(w, r, who)
		c.write(w, http.StatusOK,
			"signedin", view{Title: "Signed in", Page: "signedin", Now: c.now(), Data: begun.next})
	}
}

func minTime(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}
