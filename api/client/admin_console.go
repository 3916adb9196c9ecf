package client

import (
	"context"
	"encoding/json"
	"net/http"

	"github.com/attestd/attestd/api/wire"
)

// NewAdminOver returns a client that sends its requests through next, which connects to the daemon.
func NewAdminOver(next http.RoundTripper) *Admin {
	return &Admin{caller{base: "http://attestd", http: &http.Client{Transport: next}}}
}

// ConsoleLink makes a sign-in link for the console with the given role.
//
// Errors: CodeNotFound without a console; CodeInvalidField for an unknown role.
func (a *Admin) ConsoleLink(ctx context.Context, role string) (link wire.ConsoleLink, err error) {
	err = a.do(ctx,
		call{method: http.MethodPost, path: "/console/links", body: wire.ConsoleRole{Role: role}, into: &link})
	return link, err
}

// Settings returns the values in effect.
func (a *Admin) Settings(ctx context.Context) ([]wire.Setting, error) {
	var answer wire.Settings
	err := a.do(ctx, call{method: http.MethodGet, path: "/settings", into: &answer})
	return answer.Settings, err
}

// Doctor decodes the daemon's doctor.Report into findings, like encoding/json. The client does not import package
// doctor. The run ends when ctx ends.
func (a *Admin) Doctor(ctx context.Context, findings any) error {
	found, err := lastLine[json.RawMessage](ctx, a, call{method: http.MethodGet, path: "/doctor"}, nil)
	if err != nil {
		return err
	}
	return json.Unmarshal(found, findings)
}
