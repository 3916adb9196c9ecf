package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/attestd/attestd/appliance/config"
	"github.com/attestd/attestd/appliance/daemon"
	"github.com/attestd/attestd/appliance/doctor"
	"github.com/attestd/attestd/appliance/text"
	"github.com/attestd/attestd/hsm"
)

func tokenFlag(cmd *cobra.Command, which *string) {
	cmd.Flags().StringVar(which, "token", "",
		"token of hsm.uris or hsm.keys: its position, from 1, its label, or the name of its key")
}

// chooseToken finds the token that --token names. It returns the command line with that flag, for a child process.
func (a *app) chooseToken(which string, args []string) (c *config.Config, uri hsm.URI, _ []string, err error) {
	if c, err = a.config(nil); err != nil {
		return nil, uri, nil, err
	}
	if err := daemon.RequireSetup(&a.source, c); err != nil {
		return nil, uri, nil, err
	}
	uris, err := daemon.TokenURIs(c)
	if err != nil {
		return nil, uri, nil, err
	}
	i, err := tokenMeant(c, uris, which)
	if err != nil {
		return nil, uri, nil, err
	}
	if len(uris) > 1 {
		args = append(args, "--token", strconv.Itoa(i+1))
	}
	return c, uris[i], args, nil
}

// tokenMeant finds a token by its position, its label, or the name of its attestor key. A label or name must be unique.
func tokenMeant(c *config.Config, uris []hsm.URI, which string) (int, error) {
	if which == "" && len(uris) == 1 {
		return 0, nil
	}
	names := make([]string, len(uris))
	var meant []int
	for i, u := range uris {
		key, _ := c.KeyOfToken(i)
		names[i] = fmt.Sprintf("%d (%s)", i+1, u.Token)
		if key.Name != "" {
			names[i] = fmt.Sprintf("%d (%s, key %s)", i+1, u.Token, key.Name)
		}
		if which == strconv.Itoa(i+1) {
			return i, nil
		}
		if which != "" && (which == u.Token || which == key.Name) {
			meant = append(meant, i)
		}
	}
	if len(meant) == 1 {
		return meant[0], nil
	}
	if which == "" {
		return 0,
			fmt.Errorf("%s has several tokens: choose one with --token: %s", severalIn(c), strings.Join(names, ", "))
	}
	return 0,
		fmt.Errorf("--token %s matches %d of the configured tokens: %s", which, len(meant), strings.Join(names, ", "))
}

// severalIn returns the setting that names several tokens.
func severalIn(c *config.Config) string {
	if len(c.HSM.Keys) > 0 {
		return "hsm.keys"
	}
	return "hsm.uris"
}

// inspectToken inspects the token at a position, counted from 1, in a child process.
func (a *app) inspectToken(ctx context.Context, position int) (found doctor.Inspection, err error) {
	cmd, err := a.self(ctx, "hsm", "inspect", "--token", strconv.Itoa(position))
	if err != nil {
		return found, err
	}
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		said := toldBy(stderr.String())
		if cmd.ProcessState == nil || cmd.ProcessState.ExitCode() < 0 {
			said = "the PKCS#11 module crashed its process: " + lastOf(said, 500)
		}
		return found, fmt.Errorf("%s (%w)", said, err)
	}
	return found, json.Unmarshal(stdout.Bytes(), &found)
}

// inspectEach inspects all tokens while no daemon runs.
func (a *app) inspectEach(ctx context.Context, c *config.Config) (status hsm.Status, err error) {
	var failures []error
	position := 1
	for _, k := range c.AttestorKeys() {
		one := hsm.NamedStatus{Name: k.Name, State: string(k.State), Default: k.Name == c.DefaultKey().Name}
		one.Status, err = a.inspectKey(ctx, k, position)
		position += len(k.TokenURIs())
		if err != nil {
			one.LastError = err.Error()
			failures = append(failures, err)
		}
		if one.Default && err == nil {
			status = one.Status
		}
		if k.Name != "" {
			status.Keys = append(status.Keys, one)
		}
	}
	if !status.Ready {
		return status, errors.Join(failures...)
	}
	return status, nil
}

// inspectKey inspects the tokens of an attestor key. position belongs to its first token.
func (a *app) inspectKey(ctx context.Context, k config.AttestorKey, position int) (all hsm.Status, err error) {
	var tokens []hsm.Standing
	var failures []error
	for i, text := range k.TokenURIs() {
		uri, err := hsm.ParseURI(text)
		if err != nil {
			return all, err
		}
		found, err := a.inspectToken(ctx, position+i)
		if err == nil && found.LastError != "" {
			err = errors.New(found.LastError)
		}
		one := hsm.Standing{KeyName: k.Name, Position: position + i, Name: uri.Token, State: hsm.TokenReady,
			Since: time.Now().UTC(), Status: found.Status}
		if err != nil {
			one.State, one.Reason = hsm.TokenFailing, err.Error()
			failures = append(failures, fmt.Errorf("token %d, %s: %w", position+i, uri.Token, err))
		}
		if one.Ready && !all.Ready {
			all, one.State = found.Status, hsm.TokenSigns
		}
		tokens = append(tokens, one)
	}
	if !all.Ready {
		return all, errors.Join(failures...)
	}
	if len(tokens) > 1 {
		all.Tokens = tokens
	}
	return all, nil
}

// writeKeys shows named attestor keys: a summary line for each, then the status of each.
func writeKeys(w io.Writer, keys []hsm.NamedStatus) {
	rows := make([][]string, len(keys))
	for i, k := range keys {
		state := k.State
		if k.Default {
			state += ", default"
		}
		address := "unknown"
		if k.Key.Address != nil {
			address = k.Key.Address.String()
		}
		rows[i] = []string{k.Name, state, map[bool]string{true: "yes", false: "no"}[k.Ready], address}
	}
	table(w, "KEY\tSTATE\tREADY\tADDRESS", rows)
	for _, k := range keys {
		fmt.Fprintf(w, "\nKey %s\n", k.Name)
		if k.Module.Path == "" {
			fields(w, told("not open", k.LastError))
			continue
		}
		writeStatus(w, k.Status)
	}
}

// writeTokens shows several tokens: the common values, a line for each token, then the status of each.
func writeTokens(w io.Writer, s hsm.Status) {
	ready := 0
	var rows [][]string
	for _, one := range s.Tokens {
		if one.Ready {
			ready++
		}
		rows = append(rows, []string{fmt.Sprint(one.Position), one.Name, one.State, text.Count(one.Signatures),
			text.Count(one.HandedOver), text.Time(one.Since)})
	}
	state := map[bool]string{true: "yes", false: "no"}[s.Ready]
	total := [][2]string{{"ready", fmt.Sprintf("%s, %d of %d tokens", state, ready, len(s.Tokens))}}
	if s.Key.Address != nil {
		total = append(total, [2]string{"address", s.Key.Address.String()})
	}
	total = append(total, [2]string{"signatures",
		fmt.Sprintf("%s made, %s wrong and withheld, %s repairs", text.Count(s.Signatures),
			text.Count(s.WrongSignatures), text.Count(s.Repairs))})
	fields(w, total)
	fmt.Fprintln(w)
	table(w, "TOKEN\tLABEL\tSTATE\tSIGNATURES\tHANDED OVER\tSINCE", rows, "HANDED OVER", "SINCE")
	for _, one := range s.Tokens {
		fmt.Fprintf(w, "\nToken %d: %s\n", one.Position, one.Name)
		if one.Reason != "" {
			fields(w, told(one.State, one.Reason))
		}
		if one.Module.Path != "" {
			alone := one.Status
			alone.Tokens = nil
			writeStatus(w, alone)
		}
	}
}

// told wraps the value of a field to lines that fit 80 columns.
func told(name, value string) (lines [][2]string) {
	const columns, names = 80, 12
	for _, line := range text.Wrap(value, columns-names) {
		lines = append(lines, [2]string{name, line})
		name = ""
	}
	return lines
}
