package config

import (
	"errors"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// DatabaseURL is libpq's URL of a PostgreSQL database (PostgreSQL 15, section 34.1.1.2). It may contain a password,
// which String hides. Convert it to a string if the password is needed.
type DatabaseURL string

// hiddenPassword replaces a password in shown URLs, as in url.URL.Redacted.
const hiddenPassword = "xxxxx"

// IsDatabaseURL reports whether s begins like a PostgreSQL URL.
func IsDatabaseURL(s string) bool {
	return strings.HasPrefix(s, "postgres://") || strings.HasPrefix(s, "postgresql://")
}

// userinfo matches up to the last @, because a malformed URL may have a password up to there.
var userinfo = regexp.MustCompile(`^([a-z]+://[^:@]*):(.*)@`)

// String returns the URL with hidden passwords.
func (u DatabaseURL) String() string {
	base, query, hasQuery := u.split()
	base = userinfo.ReplaceAllString(base, "${1}:"+hiddenPassword+"@")
	if !hasQuery {
		return base
	}
	parameters := strings.Split(query, "&")
	for i, p := range parameters {
		if name, _, _ := strings.Cut(p, "="); isPassword(name) {
			parameters[i] = name + "=" + hiddenPassword
		}
	}
	return base + "?" + strings.Join(parameters, "&")
}

// WithoutPassword returns the URL without its passwords.
func (u DatabaseURL) WithoutPassword() DatabaseURL {
	base, query, hasQuery := u.split()
	base = userinfo.ReplaceAllString(base, "${1}@")
	if !hasQuery {
		return DatabaseURL(base)
	}
	kept := slices.DeleteFunc(strings.Split(query, "&"), func(p string) bool {
		name, _, _ := strings.Cut(p, "=")
		return isPassword(name)
	})
	return DatabaseURL(strings.TrimSuffix(base+"?"+strings.Join(kept, "&"), "?"))
}

// As returns the URL for another user, without a password.
func (u DatabaseURL) As(user string) (DatabaseURL, error) {
	bare := string(u.WithoutPassword())
	scheme, rest, found := strings.Cut(bare, "://")
	if !found {
		return "", errors.New("not a PostgreSQL URL")
	}
	end := len(rest)
	if i := strings.IndexAny(rest, "/?"); i >= 0 {
		end = i
	}
	if at := strings.LastIndexByte(rest[:end], '@'); at >= 0 {
		rest = rest[at+1:]
	}
	base, query, _ := strings.Cut(rest, "?")
	kept := slices.DeleteFunc(strings.Split(query, "&"), func(p string) bool {
		return p == "" || strings.HasPrefix(p, "user=")
	})
	if len(kept) > 0 {
		base += "?" + strings.Join(kept, "&")
	}
	return DatabaseURL(scheme + "://" + url.PathEscape(user) + "@" + base), nil
}

// WithPassfile returns the URL with a passfile (PostgreSQL 15, section 34.16), in place of its own.
func (u DatabaseURL) WithPassfile(path string) DatabaseURL {
	base, query, _ := u.split()
	kept := slices.DeleteFunc(strings.Split(query, "&"), func(p string) bool {
		return p == "" || strings.HasPrefix(p, "passfile=")
	})
	kept = append(kept, "passfile="+strings.ReplaceAll(url.QueryEscape(path), "%2F", "/"))
	return DatabaseURL(base + "?" + strings.Join(kept, "&"))
}

// split splits the URL at the question mark before its parameters.
func (u DatabaseURL) split() (base, query string, hasQuery bool) {
	base, query, hasQuery = strings.Cut(string(u), "?")
	if strings.Contains(query, "@") && !strings.Contains(base, "@") { // the question mark is part of a password
		return string(u), "", false
	}
	return base, query, hasQuery
}

// HasPassword reports whether the URL contains a password.
func (u DatabaseURL) HasPassword() bool {
	return u.String() != string(u) || strings.Contains(string(u), hiddenPassword)
}

func isPassword(parameter string) bool {
	name, err := url.QueryUnescape(parameter)
	return err != nil || name == "password" || name == "sslpassword"
}

// maxMemberName is the maximum length of a host name on Linux.
const maxMemberName = 64

// validateStore checks store.url and cluster.name without opening a connection.
func (c *Config) validateStore(check func(ok bool, format string, args ...any)) {
	err := c.Store.URL.check()
	check(err == nil, "store.url: %v", err)
	unprintable := strings.ContainsFunc(c.Cluster.Name, func(r rune) bool { return !strconv.IsPrint(r) })
	check(len(c.Cluster.Name) <= maxMemberName &&
		!unprintable, "cluster.name: must be at most %d bytes of printable text", maxMemberName)
}

// check validates the URL as far as this package can. Its errors do not repeat a password.
func (u DatabaseURL) check() error {
	switch {
	case u != "" && !IsDatabaseURL(string(u)):
		return errors.New(
			"must be a URL such as postgres://attestd@db.example.com/attestd, or empty for the file in data_dir")
	case strings.Contains(string(u), hiddenPassword):
		return errors.New(
			"has the placeholder of attestd config show; write the password, or better a passfile (PGPASSFILE)")
	}
	return nil
}
