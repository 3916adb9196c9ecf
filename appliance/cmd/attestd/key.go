package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/attestd/attestd/api/wire"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/text"
)

func newKey(a *app) *cobra.Command {
	return group("key", "API keys: create, list, bind, revoke",
		"Clients need an API key to request attestations. While the daemon runs, these commands use its admin socket and\ntake effect at once; otherwise they change the files.",
		newKeyCreate(a), newKeyList(a), newKeyBind(a), newKeyRevoke(a))
}

func newKeyCreate(a *app) *cobra.Command {
	var name, rate, expires, attestor string
	var scopes, allowFrom []string
	cmd := &cobra.Command{
		Use:        "create --name NAME",
		SuggestFor: []string{"add", "new", "make", "generate"},
		Short:      "Create an API key and print its token, once",
		Long: `Create an API key. Only the token goes to standard output. It is shown this one time, because attestd stores
only its SHA-256. Key names are unique among keys that are not revoked.`,
		Example: `  attestd key create --name payments > payments.key
  attestd key create --name batch --rate unlimited --expires 90d
  attestd key create --name backend --allow-from 10.1.0.0/16 --scope attest`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			req, err := keyRequest(name, rate, expires, scopes, allowFrom)
			req.Attestor = attestor
			if err == nil {
				err = checkKeyRequest(req, time.Now())
			}
			if err != nil {
				return usageError{cmd.CommandPath(), err}
			}
			return a.createKey(cmd, req)
		},
	}
	f := cmd.Flags()
	f.StringVar(&name, "name", "", "name of the key's holder or purpose; unique (required)")
	f.StringVar(&rate, "rate", "default",
		"maximum rate of requests: N/s, N/m, N/h, unlimited, or default for limits.default_rate")
	f.StringVar(&expires, "expires", "",
		"expiry: a duration from now such as 90d or 12h, a date such as 2027-01-31 (00:00 UTC), or a time such as 2027-01-31T12:00:00Z")
	f.StringSliceVar(&scopes, "scope", nil,
		"permitted use: attest, graphql, or cosign (sign as a member of a quorum); may be repeated (default: attest and graphql)")
	f.StringSliceVar(&allowFrom, "allow-from", nil,
		"client networks that may use the key, such as 10.1.0.0/16; may be repeated (default: any)")
	f.StringVar(&attestor, "attestor", "",
		"name of the attestor key of hsm.keys that signs for it (default: the first active key)")
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
		prefix, err := appliance.ParseNetwork(s)
		if err != nil {
			return req, fmt.Errorf("--allow-from: %w", err)
		}
		req.AllowFrom = append(req.AllowFrom, prefix)
	}
	return req, nil
}

// keyFlags maps fields of a key request to the flags that set them.
var keyFlags = map[string]string{"name": "--name", "scopes": "--scope", "attestor": "--attestor",
	"expires": "--expires"}

// checkKeyRequest validates a request as the appliance does. Its error names the flag.
func checkKeyRequest(req appliance.KeyRequest, now time.Time) error {
	err := req.Validate(now)
	if e, is := errors.AsType[*appliance.Error](err); is && keyFlags[e.Field] != "" {
		return fmt.Errorf("%s %s", keyFlags[e.Field], e.Detail)
	}
	return err
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
	a.say("API key %s (%s): store the token now; it is not shown again.", key.ID, key.Name)
	_, err = fmt.Fprintln(a.out, token)
	return err
}

func newKeyList(a *app) *cobra.Command {
	return &cobra.Command{
		Use:        "list",
		Short:      "List the API keys",
		SuggestFor: []string{"ls", "show"},
		Example:    "  attestd key list\n  attestd key list --output json",
		Args:       noArgs,
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

func newKeyBind(a *app) *cobra.Command {
	var attestor string
	cmd := &cobra.Command{
		Use:   "bind KEY --attestor NAME",
		Short: "Bind an API key to an attestor key",
		Long: `Bind an API key to an attestor key: from the next request on, that attestor key alone signs for it. The holder
of the API key need not do anything. With --attestor "" the binding ends, and the first active key of hsm.keys
signs. Existing attestations do not change: a request repeated with its Idempotency-Key gets the same
attestation as before.

'attestd hsm status' lists the attestor keys. API keys cannot be bound to a retiring attestor key.`,
		Example: "  attestd key bind k3x5wq7mzp2n4r6t --attestor attestor-2027\n  attestd key bind k3x5wq7mzp2n4r6t --attestor \"\"",
		Args:    oneArg("KEY, the ID or the name of an API key"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !cmd.Flags().Changed("attestor") {
				return usagef(cmd, "--attestor is required")
			}
			return a.withBackend(cmd, func(o backend) error {
				key, err := findKey(cmd.Context(), o, args[0])
				if err != nil {
					return err
				}
				if key, err = o.BindKey(cmd.Context(), key.ID, attestor); err != nil {
					return err
				}
				return a.print(viewKey(key), func(w io.Writer) {
					fmt.Fprintf(w, "API key %s (%s) is bound to %s.\n", key.ID, key.Name,
						cmp.Or(key.Attestor, "the default attestor key"))
				})
			})
		},
	}
	cmd.Flags().StringVar(&attestor, "attestor", "",
		"name of the attestor key of hsm.keys; empty for the default key (required)")
	return cmd
}

func newKeyRevoke(a *app) *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use:        "revoke KEY",
		Short:      "Revoke an API key, at once and permanently",
		SuggestFor: []string{"delete", "remove", "rm", "disable"},
		Long: `Revoke an API key, given by its ID or its name. Requests with the key are refused from then on, and the key
cannot be restored. At a terminal, the command asks for confirmation unless --yes is given.`,
		Example: "  attestd key revoke payments\n  attestd key revoke k3x5wq7mzp2n4r6t --yes",
		Args:    oneArg("KEY, the ID or the name of an API key"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withBackend(cmd, func(o backend) error {
				key, err := findKey(cmd.Context(), o, args[0])
				if err != nil {
					return err
				}
				if !yes && isTerminal(a.in) {
					if err := a.confirm(cmd.Context(), "Revoke API key %s (%s) permanently?", key.ID,
						key.Name); err != nil {
						return err
					}
				}
				if key, err = o.RevokeKey(cmd.Context(), key.ID); err != nil {
					return err
				}
				return a.print(viewKey(key), func(w io.Writer) {
					fmt.Fprintf(w, "API key %s (%s) is revoked.\n", key.ID, key.Name)
				})
			})
		},
	}
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask for confirmation")
	return cmd
}

// confirm asks a question at the terminal. It returns an error unless the answer is yes.
func (a *app) confirm(ctx context.Context, question string, args ...any) error {
	fmt.Fprintf(a.err, question+" [y/N]: ", args...)
	answered := make(chan string, 1)
	go func() {
		line, _ := bufio.NewReader(a.in).ReadString('\n') // the end of the input counts as no
		answered <- strings.ToLower(strings.TrimSpace(line))
	}()
	select {
	case answer := <-answered:
		if answer == "y" || answer == "yes" {
			return nil
		}
		return errors.New("not confirmed, the key is unchanged")
	case <-ctx.Done():
		return ctx.Err()
	}
}

// findKey returns the API key with that ID or name. A name can belong to several keys, of which at most one is active:
// that one is meant.
func findKey(ctx context.Context, o backend, given string) (appliance.APIKey, error) {
	keys, err := o.ListKeys(ctx)
	if err != nil {
		return appliance.APIKey{}, err
	}
	var named []appliance.APIKey
	for _, k := range keys {
		switch {
		case k.ID == given:
			return k, nil
		case k.Name == given && k.State(time.Now()) == appliance.KeyActive:
			named = []appliance.APIKey{k}
		case k.Name == given && (len(named) == 0 || named[0].State(time.Now()) != appliance.KeyActive):
			named = append(named, k)
		}
	}
	switch len(named) {
	case 1:
		return named[0], nil
	case 0:
		return appliance.APIKey{},
			appliance.Errorf(appliance.CodeNotFound, "no API key %q; list the keys with: attestd key list", given)
	}
	return appliance.APIKey{}, fmt.Errorf(
		"%d API keys have the name %q: give the ID of one of them, from: attestd key list", len(named), given)
}

// keyView is an API key as commands show it.
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
	bound := slices.ContainsFunc(keys, func(k appliance.APIKey) bool { return k.Attestor != "" })
	for i, k := range keys {
		v := viewKey(k)
		views[i] = v
		rows[i] = []string{v.ID, v.Name, string(v.State), join(v.Scopes), v.Rate.String(), orDash(join(v.AllowFrom)),
			text.Time(v.Created), orDash(text.Time(v.Expires)), orDash(text.Time(v.LastUsed))}
		if bound {
			rows[i] = append(rows[i], orDash(v.Attestor))
		}
	}
	head := "ID\tNAME\tSTATE\tSCOPES\tRATE\tALLOW FROM\tCREATED\tEXPIRES\tLAST USED"
	if bound {
		head += "\tATTESTOR"
	}
	return a.print(views, func(w io.Writer) {
		if len(keys) == 0 {
			a.say("No API keys found. Create one: attestd key create --name NAME")
			return
		}
		table(w, head, rows, "CREATED", "ALLOW FROM", "RATE", "SCOPES", "ATTESTOR", "LAST USED")
	})
}

func join[T any](items []T) string {
	s := make([]string, len(items))
	for i, item := range items {
		s[i] = fmt.Sprint(item)
	}
	return strings.Join(s, ",")
}
