package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/attestd/attestd/api/client"
	"github.com/attestd/attestd/api/wire"
	"github.com/attestd/attestd/appliance/text"
	"github.com/attestd/attestd/appliance/webhooks"
)

func newWebhook(a *app) *cobra.Command {
	return group("webhook", "Webhooks: create, list, test, rotate, disable, enable, delete, deliveries, redeliver",
		`attestd posts the events of the journal to the URLs of webhooks, as Standard Webhooks (docs/webhooks.md). The daemon
must run.`,
		newWebhookCreate(a), newWebhookList(a), newWebhookTest(a), newWebhookRotate(a), newWebhookDisable(a),
		newWebhookEnable(a), newWebhookDelete(a), newWebhookDeliveries(a), newWebhookRedeliver(a))
}

func newWebhookCreate(a *app) *cobra.Command {
	var r webhooks.Request
	var key string
	cmd := &cobra.Command{
		Use:        "create NAME --url URL",
		SuggestFor: []string{"add", "new"},
		Short:      "Create a webhook and print its secret, once",
		Long: `Create a webhook. It gets the events from now on. Only the secret goes to standard output. With it, the receiver
verifies the v1 signatures. The public key, with which it can verify the v1a signatures instead, is in the list.

Without --key the webhook gets the operators' events. With --key it gets those that this API key may see.`,
		Example: `  attestd webhook create billing --url https://example.com/hooks --types attestation.issued
  attestd webhook create approvals --url https://chat.example.com/hooks --types 'approval.*'
  attestd webhook create payments --url https://example.com/hooks --key payments`,
		Args: oneArg("NAME of the webhook"),
		RunE: func(cmd *cobra.Command, args []string) error {
			r.Name = args[0]
			if r.URL == "" {
				return usagef(cmd, "--url is required")
			}
			if key != "" {
				err := a.withBackend(cmd, func(o backend) error {
					found, err := findKey(cmd.Context(), o, key)
					r.KeyID = found.ID
					return err
				})
				if err != nil {
					return err
				}
			}
			return a.withDaemon(cmd, "webhook create", func(ctx context.Context, daemon *client.Admin) error {
				made, err := daemon.CreateWebhook(ctx, r)
				return a.printSecret(made, err)
			})
		},
	}
	f := cmd.Flags()
	f.StringVar(&r.URL, "url", "", "URL that receives the events, https://… (required)")
	f.StringSliceVar(&r.Types, "types", nil,
		"types of events, such as attestation.issued, or all of a group: approval.*; may be repeated (default: all)")
	f.StringSliceVar(&r.Addresses, "addresses", nil,
		"send only events about one of these addresses; may be repeated (default: any)")
	f.StringVar(&key, "key", "", "ID or name of the API key whose events are sent (default: the operators' events)")
	return cmd
}

// printSecret prints a webhook that was created or rotated.
func (a *app) printSecret(made wire.WebhookSecret, err error) error {
	if err != nil {
		return err
	}
	if a.json() {
		return a.printJSON(made)
	}
	a.say("Webhook %s: store the secret now; it is not shown again. Public key: %s", made.Name, made.Keys[0].Public)
	_, err = fmt.Fprintln(a.out, made.Secret)
	return err
}

func newWebhookList(a *app) *cobra.Command {
	return &cobra.Command{
		Use:        "list",
		SuggestFor: []string{"ls", "show"},
		Short:      "List the webhooks",
		Example:    "  attestd webhook list\n  attestd webhook list --output json",
		Args:       noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withDaemon(cmd, "webhook list", func(ctx context.Context, daemon *client.Admin) error {
				all, err := daemon.Webhooks(ctx)
				if err != nil {
					return err
				}
				return a.print(all, func(w io.Writer) {
					if len(all) == 0 {
						a.say("No webhooks found. Create one: attestd webhook create NAME --url URL")
						return
					}
					writeWebhooks(w, all)
				})
			})
		},
	}
}

func newWebhookTest(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "test NAME",
		Short:   "Send a test event to a webhook",
		Long:    "Send an event of the type webhook.test, once, and show the result. It is not in the journal.",
		Example: "  attestd webhook test billing",
		Args:    oneArg("NAME of the webhook"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withDaemon(cmd, "webhook test", func(ctx context.Context, daemon *client.Admin) error {
				one, err := daemon.TestWebhook(ctx, args[0])
				return a.printDelivery(one, err)
			})
		},
	}
}

func newWebhookRotate(a *app) *cobra.Command {
	var overlap time.Duration
	cmd := &cobra.Command{
		Use:   "rotate NAME",
		Short: "Replace the secret of a webhook and print the new one, once",
		Long: `Replace the secret and the key pair of a webhook. The previous ones sign, too, until --overlap is over: each delivery
has the signatures of both. If the secret was stolen, use --overlap 0s.`,
		Example: "  attestd webhook rotate billing\n  attestd webhook rotate billing --overlap 0s",
		Args:    oneArg("NAME of the webhook"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withDaemon(cmd, "webhook rotate", func(ctx context.Context, daemon *client.Admin) error {
				made, err := daemon.RotateWebhook(ctx, args[0], overlap)
				return a.printSecret(made, err)
			})
		},
	}
	cmd.Flags().DurationVar(&overlap, "overlap", 24*time.Hour, "how long the previous secret signs, too; at most 720h")
	return cmd
}

func newWebhookDisable(a *app) *cobra.Command {
	return &cobra.Command{
		Use:        "disable NAME",
		SuggestFor: []string{"pause", "stop"},
		Short:      "Send no events to a webhook until it is enabled",
		Long: `Send no events to a webhook until "attestd webhook enable". Events that wait are kept, and the events of the
meantime are sent afterwards, too. A webhook that an operator disabled is not a failure: no alert reports it.`,
		Example: "  attestd webhook disable billing",
		Args:    oneArg("NAME of the webhook"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withDaemon(cmd, "webhook disable", func(ctx context.Context, daemon *client.Admin) error {
				s, err := daemon.DisableWebhook(ctx, args[0])
				if err != nil {
					return err
				}
				return a.print(s, func(w io.Writer) {
					fmt.Fprintf(w, "The webhook %s is disabled. To enable it: attestd webhook enable %[1]s\n", s.Name)
				})
			})
		},
	}
}

func newWebhookEnable(a *app) *cobra.Command {
	return &cobra.Command{
		Use:        "enable NAME",
		SuggestFor: []string{"resume", "start"},
		Short:      "Enable a webhook that is disabled",
		Long: `Enable a webhook that an operator or attestd disabled. The events that wait are sent at once, then those of the
meantime.`,
		Example: "  attestd webhook enable billing",
		Args:    oneArg("NAME of the webhook"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withDaemon(cmd, "webhook enable", func(ctx context.Context, daemon *client.Admin) error {
				s, err := daemon.ResumeWebhook(ctx, args[0])
				if err != nil {
					return err
				}
				return a.print(s, func(w io.Writer) { fmt.Fprintf(w, "The webhook %s is enabled.\n", s.Name) })
			})
		},
	}
}

func newWebhookDelete(a *app) *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use:        "delete NAME",
		SuggestFor: []string{"remove", "rm"},
		Short:      "Delete a webhook",
		Long: `Delete a webhook. Events that wait to be sent again are not sent. At a terminal, the command asks for confirmation
unless --yes is given.`,
		Example: "  attestd webhook delete billing",
		Args:    oneArg("NAME of the webhook"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !yes && isTerminal(a.in) {
				if err := a.confirm(cmd.Context(), "Delete the webhook %s?", args[0]); err != nil {
					return err
				}
			}
			return a.withDaemon(cmd, "webhook delete", func(ctx context.Context, daemon *client.Admin) error {
				deleted, err := daemon.DeleteWebhook(ctx, args[0])
				if err != nil {
					return err
				}
				return a.print(deleted, func(w io.Writer) { fmt.Fprintf(w, "The webhook %s is deleted.\n", deleted.Name) })
			})
		},
	}
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask for confirmation")
	return cmd
}

func newWebhookDeliveries(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "deliveries NAME",
		Short:   "List the newest deliveries of a webhook",
		Long:    "List the last 100 attempts to deliver an event, newest first.",
		Example: "  attestd webhook deliveries billing",
		Args:    oneArg("NAME of the webhook"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withDaemon(cmd, "webhook deliveries", func(ctx context.Context, daemon *client.Admin) error {
				all, err := daemon.Deliveries(ctx, args[0])
				if err != nil {
					return err
				}
				return a.print(all, func(w io.Writer) { writeDeliveries(w, all) })
			})
		},
	}
}

func newWebhookRedeliver(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "redeliver NAME [EVENT]",
		Short: "Send an event again, or all that wait",
		Long: `With EVENT, the id of an event, send that event once and show the result. Without it, send all events that wait at
once, and enable the webhook if it is disabled.`,
		Example: `  attestd webhook redeliver billing
  attestd webhook redeliver billing 019a3f0e-7c1b-7d55-9a52-0d6f3c8e1b21`,
		Args: cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				return a.withDaemon(cmd, "webhook redeliver", func(ctx context.Context, daemon *client.Admin) error {
					s, err := daemon.ResumeWebhook(ctx, args[0])
					if err != nil {
						return err
					}
					return a.print(s, func(w io.Writer) {
						fmt.Fprintf(w, "The webhook %s sends the events that wait: %d.\n", s.Name, s.Waiting)
					})
				})
			}
			id, err := uuid.Parse(args[1])
			if err != nil {
				return usagef(cmd, "%q is not the id of an event, as 'attestd webhook deliveries' shows it", args[1])
			}
			return a.withDaemon(cmd, "webhook redeliver", func(ctx context.Context, daemon *client.Admin) error {
				one, err := daemon.Redeliver(ctx, args[0], id)
				return a.printDelivery(one, err)
			})
		},
	}
}

// printDelivery prints an attempt. A failed one is the command's failure.
func (a *app) printDelivery(one webhooks.Delivery, err error) error {
	if err != nil {
		return err
	}
	err = a.print(one, func(w io.Writer) { writeDeliveries(w, []webhooks.Delivery{one}) })
	if err == nil && one.Outcome != webhooks.Delivered {
		err = errors.New(one.Error)
	}
	return err
}

func writeWebhooks(w io.Writer, all []webhooks.Status) {
	rows := make([][]string, len(all))
	for i, s := range all {
		rows[i] = []string{s.Name, s.State(), text.Count(s.Waiting), orDash(strings.Join(s.Types, ",")), orDash(s.KeyID),
			orDash(text.Time(s.Succeeded)), text.OneLine(s.URL), orDash(text.OneLine(reasonOf(s)))}
	}
	table(w, "NAME\tSTATE\tWAITING\tTYPES\tAPI KEY\tLAST DELIVERY\tURL\tREASON", rows, "TYPES", "API KEY",
		"LAST DELIVERY")
}

// reasonOf returns why a webhook is disabled or failing.
func reasonOf(s webhooks.Status) string {
	if s.Reason != "" {
		return s.Reason
	}
	return s.LastError
}

func writeDeliveries(w io.Writer, all []webhooks.Delivery) {
	rows := make([][]string, len(all))
	for i, d := range all {
		status := "-"
		if d.Status != 0 {
			status = strconv.Itoa(d.Status)
		}
		rows[i] = []string{text.Time(d.Time), d.ID, string(d.Type), string(d.Outcome), strconv.Itoa(d.Attempt), status,
			fmt.Sprintf("%d ms", d.Milliseconds), orDash(text.OneLine(d.Error))}
	}
	table(w, "TIME\tEVENT\tTYPE\tOUTCOME\tATTEMPT\tSTATUS\tTOOK\tERROR", rows, "TOOK", "ATTEMPT", "TYPE",
		"TIME")
}
