package client

import (
	"context"
	"net/http"

	"github.com/attestd/attestd/api/wire"
)

// NewAdminOver returns a client whose requests go through next, which knows the way to the daemon.
func NewAdminOver(next http.RoundTripper) *Admin {
	return &Admin{caller{base: "http://attestd", http: &http.Client{Transport: next}}}
}

// ConsoleLink makes a link into the console, with that role.
//
// Errors: CodeNotFound where there is no console; CodeInvalidField for a role that there is not.
func (a *Admin) ConsoleLink(ctx context.Context, role string) (link wire.ConsoleLink, err error) {
	err = a.do(ctx, call{method: http.MethodPost, path: "/console/links", body: wire.ConsoleRole{Role: role}, into: &link})
	return link, err
}

// Settings returns the values in effect.
func (a *Admin) Settings(ctx context.Context) ([]wire.Setting, error) {
	var answer wire.Settings
	err := a.do(ctx, call{method: http.MethodGet, path: "/settings", into: &answer})
	return answer.Settings, err
}

// Doctor decodes what doctor finds into findings, as encoding/json does: a doctor.Report, a package that the client does not import.
func (a *Admin) Doctor(ctx context.Context, findings any) error {
	return a.do(ctx, call{method: http.MethodGet, path: "/doctor", into: findings})
}
