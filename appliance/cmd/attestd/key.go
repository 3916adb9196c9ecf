package main

import (
	"fmt"
	"io"
	"net/netip"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/attestd/attestd/api/wire"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/text"
)

func newKey(a *app) *cobra.Command {
	return group("key", "API keys: create, list, revoke",
		"API keys say who may ask for attestations. While the daemon runs these commands go through its admin\nsocket and take effect at once; while it does not, they change the files.",
		newKeyCreate(a), newKeyList(a), newKeyRevoke(a))
}

func newKeyCreate(a *app) *cobra.Command {
	var name, rate, expires string
	var scopes, allowFrom []string
	cmd := &cobra.Command{
		Use:   "create --name NAME",
		Short: "Make an API key and print its token, once",
		Long: `Make an API key. The token alone goes to standard output, this once: it cannot be shown
again, since only its SHA-256 is kept.`,
		Example: `  attestd key create --name payments > payments.key
  attestd key create --name batch --rate unlimited --expires 90d
  attestd key create --name backend --allow-from 10.1.0.0/16 --scope attest`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			req, err := keyRequest(name, rate, expires, scopes, allowFrom)
			if err != nil {
				return usageError{cmd.CommandPath(), err}
			}
			return a.createKey(cmd, req)
		},
	}
	f := cmd.Flags()
	f.StringVar(&name, "name", "", "who or what the key is for (required)")
	f.StringVar(&rate, "rate", "default", "requests allowed: N/s, N/m, N/h, unlimited, or default for limits.default_rate")
	f.StringVar(&expires, "expires", "", "when it ends: a duration from now such as 90d or 12h, or a time such as 2027-01-31T00:00:00Z")
	f.StringSliceVar(&scopes, "scope", nil, "what it may do: attest, graphql; may be repeated (default: all)")
	f.StringSliceVar(&allowFrom, "allow-from", nil, "client networks that may use it, such as 10.1.0.0/16; may be repeated (default: any)")
	must(cmd.RegisterFlagCompletionFunc("scope", cobra.FixedCompletions([]string{"attest", "graphql"}, cobra.ShellCompDirectiveNoFileComp)))
	return cmd
}

func keyRequest(name, rate, expires string, scopes, allowFrom []string) (req appliance.KeyRequest, err error) {
	if name == "" {
		return req, fmt.Errorf("--name is required")
	}
	req.Name = name
	if req.Rate, err = appliance.ParseRate(rate); err != nil {
		return req, fmt.Errorf("--rate: %w", err)
	}
	if req.Expires, err = parseExpiry(expires, time.Now()); err != nil {
		return req, fmt.Errorf("--expires: %w", err)
	}
	for _, s := range scopes {
		scope, err := appliance.ParseScope(s)
		if err != nil {
			return req, fmt.Errorf("--scope: %w", err)
		}
		req.Scopes = append(req.Scopes, scope)
	}
	for _, s := range allowFrom {
		prefix, err := parsePrefix(s)
		if err != nil {
			return req, fmt.Errorf("--allow-from: %w", err)
		}
		req.AllowFrom = append(req.AllowFrom, prefix)
	}
	return req, nil
}

// parsePrefix reads a network, or one address as a network of its own.
func parsePrefix(s string) (netip.Prefix, error) {
	if addr, err := netip.ParseAddr(s); err == nil {
		return netip.PrefixFrom(addr, addr.BitLen()), nil
	}
	prefix, err := netip.ParsePrefix(s)
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("%q is not a network such as 10.1.0.0/16", s)
	}
	return prefix.Masked(), nil
}

// parseExpiry reads a time (RFC 3339), or a duration from now in which d stands for 24 hours.
func parseExpiry(s string, now time.Time) (time.Time, error) {
	if s == "" {
		return time.Time{}, nil
	}
	if t, err := time.Parse(time.RFC3339, s); err == nil {
		return t, nil
	}
	if days, found := strings.CutSuffix(s, "d"); found {
		var n int
		if _, err := fmt.Sscanf(days+"\n", "%d\n", &n); err == nil && n > 0 && n < 36500 {
			return now.AddDate(0, 0, n), nil
		}
	}
	d, err := time.ParseDuration(s)
	if err != nil || d <= 0 {
		return time.Time{}, fmt.Errorf("%q is neither a duration such as 90d or 12h nor a time such as 2027-01-31T00:00:00Z", s)
	}
	return now.Add(d), nil
}

func (a *app) createKey(cmd *cobra.Command, req appliance.KeyRequest) error {
	var key appliance.APIKey
	var token string
	err := a.withBackend(cmd, func(o backend) (err error) {
		key, token, err = o.CreateKey(cmd.Context(), req)
		return err
	})
	if err != nil {
		return err
	}
	if a.json() {
		return a.printJSON(struct {
			keyView
			Token string `json:"token"`
		}{viewKey(key), token})
	}
	a.say("API key %s (%s): store the token now, it is not shown again.", key.ID, key.Name)
	_, err = fmt.Fprintln(a.out, token)
	return err
}

func newKeyList(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Short:   "List the API keys",
		Example: "  attestd key list\n  attestd key list --output json",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withBackend(cmd, func(o backend) error {
				keys, err := o.ListKeys(cmd.Context())
				if err != nil {
					return err
				}
				return a.printKeys(keys)
			})
		},
	}
}

func newKeyRevoke(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "revoke ID",
		Short:   "End an API key, at once and for good",
		Example: "  attestd key revoke k3x5wq7mzp2n4r6t",
		Args:    oneArg("key ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withBackend(cmd, func(o backend) error {
				key, err := o.RevokeKey(cmd.Context(), args[0])
				if err != nil {
					return err
				}
				return a.print(viewKey(key), func(w io.Writer) {
					fmt.Fprintf(w, "API key %s (%s) is revoked.\n", key.ID, key.Name)
				})
			})
		},
	}
}

// keyView is an API key as it is shown.
type keyView struct {
	wire.Key
	State appliance.KeyState `json:"state"`
}

func viewKey(k appliance.APIKey) keyView {
	return keyView{wire.NewKey(k), k.State(time.Now())}
}

func (a *app) printKeys(keys []appliance.APIKey) error {
	views := make([]keyView, len(keys))
	rows := make([][]string, len(keys))
	for i, k := range keys {
		v := viewKey(k)
		views[i] = v
		rows[i] = []string{v.ID, v.Name, string(v.State), join(v.Scopes), v.Rate.String(), orDash(join(v.AllowFrom)), text.Time(v.Created), orDash(text.Time(v.Expires)), orDash(text.Time(v.LastUsed))}
	}
	return a.print(views, func(w io.Writer) {
		if len(keys) == 0 {
			a.say("There are no API keys. Make one: attestd key create --name NAME")
			return
		}
		table(w, "ID\tNAME\tSTATE\tSCOPES\tRATE\tALLOW FROM\tCREATED\tEXPIRES\tLAST USED", rows)
	})
}

func join[T any](items []T) string {
	s := make([]string, len(items))
	for i, item := range items {
		s[i] = fmt.Sprint(item)
	}
	return strings.Join(s, ",")
}
