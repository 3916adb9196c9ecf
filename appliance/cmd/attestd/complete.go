package main

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/attestd/attestd/api/client"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/config"
	"github.com/attestd/attestd/appliance/daemon"
)

// completeWithin bounds the wait after the tab key.
const completeWithin = 2 * time.Second

// completion returns the words to offer for an argument or a flag's value. If it fails, the shell offers no words and
// shows no error.
type completion func(ctx context.Context, c *config.Config) ([]cobra.Completion, error)

// ask returns cobra's form of a completion that reads the configuration or asks the appliance.
func (a *app) ask(complete completion) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		ctx, cancel := context.WithTimeout(context.Background(), completeWithin)
		defer cancel()
		c, err := a.config(nil)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		words, _ := complete(ctx, c)
		return words, cobra.ShellCompDirectiveNoFileComp
	}
}

// first completes only the first argument.
func first(complete cobra.CompletionFunc) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return complete(cmd, args, typed)
	}
}

// keyIDs returns the ids of the API keys that are not revoked, with their names.
func keyIDs(ctx context.Context, c *config.Config) (words []cobra.Completion, err error) {
	keys, err := listKeys(ctx, c)
	for _, k := range keys {
		if k.Revoked.IsZero() {
			words = append(words, cobra.CompletionWithDesc(k.ID, k.Name))
		}
	}
	return words, err
}

// listKeys asks the daemon. If no daemon runs, it reads the store if one exists.
func listKeys(ctx context.Context, c *config.Config) (keys []appliance.APIKey, err error) {
	running := client.NewAdmin(c.Admin.Socket)
	defer func() { err = errors.Join(err, running.Close()) }()
	if keys, err = running.ListKeys(ctx); !errors.Is(err, client.ErrNotRunning) || !daemon.StoreExists(c) {
		return keys, err
	}
	store, err := daemon.ReadStore(c)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	return store.Keys.List(ctx)
}

// attestorNames returns the names of hsm.keys.
func attestorNames(_ context.Context, c *config.Config) (words []cobra.Completion, err error) {
	for _, k := range c.HSM.Keys {
		words = append(words, cobra.CompletionWithDesc(k.Name, string(k.State)))
	}
	return words, nil
}

// contractNames returns the names of chain.contracts.
func contractNames(_ context.Context, c *config.Config) (words []cobra.Completion, err error) {
	for _, contract := range c.Chain.Contracts {
		words = append(words, contract.Name)
	}
	return words, nil
}

// addCompletions registers the shell's completions of flag values and arguments, except commands and files.
func (a *app) addCompletions(root *cobra.Command) {
	var schemes []cobra.Completion
	for _, s := range appliance.SchemeNames {
		schemes = append(schemes, string(s))
	}
	const noFiles = cobra.ShellCompDirectiveNoFileComp
	for flag, complete := range map[string]cobra.CompletionFunc{
		"setup --scheme":  cobra.FixedCompletions(schemes, noFiles),
		"verify --scheme": cobra.FixedCompletions(schemes, noFiles),
		"setup --pin-store": cobra.FixedCompletions([]cobra.Completion{"auto", "credential", "file"},
			noFiles),
		"key create --scope":    cobra.FixedCompletions([]cobra.Completion{"attest", "graphql"}, noFiles),
		"key create --attestor": a.ask(attestorNames),
		"key bind --attestor":   a.ask(attestorNames),
		"log list --key":        a.ask(keyIDs),
		"log export --format":   cobra.FixedCompletions(exportFormats, noFiles),
		"log export --redact": cobra.FixedCompletions([]cobra.Completion{"addresses", "unspendable", "none"},
			noFiles),
		"chain redemptions --contract": a.ask(contractNames),
	} {
		path, name, _ := strings.Cut(flag, " --")
		cmd, _, err := root.Find(strings.Fields(path))
		must(err)
		must(cmd.RegisterFlagCompletionFunc(name, complete))
	}
	for _, path := range []string{"key bind", "key revoke"} {
		cmd, _, err := root.Find(strings.Fields(path))
		must(err)
		cmd.ValidArgsFunction = first(a.ask(keyIDs))
	}
	offerNoFiles(root)
}

// offerNoFiles keeps the shell from offering files to commands that take none.
func offerNoFiles(cmd *cobra.Command) {
	for _, c := range cmd.Commands() {
		offerNoFiles(c)
	}
	takesFile := strings.Contains(cmd.Use, "FILE") || strings.Contains(cmd.Use, "FOLDER")
	if !takesFile && cmd.ValidArgsFunction == nil {
		cmd.ValidArgsFunction = cobra.NoFileCompletions
	}
}
