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
	cmd.Flags().StringVar(which, "token", "", "which token of hsm.uris is meant: its position, from 1, or its label")
}

// chooseToken returns the token that is meant, and the command line with it.
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
	i, err := tokenMeant(uris, which)
	if err != nil {
		return nil, uri, nil, err
	}
	if len(uris) > 1 {
		args = append(args, "--token", strconv.Itoa(i+1))
	}
	return c, uris[i], args, nil
}

// tokenMeant finds a token by its position or, where only one has it, by its label.
func tokenMeant(uris []hsm.URI, which string) (int, error) {
	if which == "" && len(uris) == 1 {
		return 0, nil
	}
	names := make([]string, len(uris))
	var meant []int
	for i, u := range uris {
		names[i] = fmt.Sprintf("%d (%s)", i+1, u.Token)
		if which == strconv.Itoa(i+1) {
			return i, nil
		}
		if which != "" && which == u.Token {
			meant = append(meant, i)
		}
	}
	if len(meant) == 1 {
		return meant[0], nil
	}
	if which == "" {
		return 0, fmt.Errorf("hsm.uris names several tokens: say with --token which is meant: %s", strings.Join(names, ", "))
	}
	return 0, fmt.Errorf("--token %s names %d of the configured tokens; there are %s", which, len(meant), strings.Join(names, ", "))
}

// inspectToken looks at the token at a position in a process of its own.
func (a *app) inspectToken(ctx context.Context, position int) (found doctor.Inspection, err error) {
	cmd, err := a.self(ctx, "hsm", "inspect", "--token", strconv.Itoa(position))
	if err != nil {
		return found, err
	}
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		said := strings.TrimPrefix(strings.TrimSpace(stderr.String()), "attestd: ")
		if cmd.ProcessState == nil || cmd.ProcessState.ExitCode() < 0 {
			said = "the module ended the process that loaded it: " + lastOf(said, 500)
		}
		return found, fmt.Errorf("%s (%w)", said, err)
	}
	return found, json.Unmarshal(stdout.Bytes(), &found)
}

// inspectEach looks at each of several tokens while no daemon does.
func (a *app) inspectEach(ctx context.Context, c *config.Config) (hsm.Status, error) {
	uris, err := daemon.TokenURIs(c)
	if err != nil {
		return hsm.Status{}, err
	}
	var all hsm.Status
	var tokens []hsm.Standing
	var failures []error
	for i, uri := range uris {
		found, err := a.inspectToken(ctx, i+1)
		if err == nil && found.LastError != "" {
			err = errors.New(found.LastError)
		}
		one := hsm.Standing{Position: i + 1, Name: uri.Token, State: hsm.TokenReady, Since: time.Now().UTC(), Status: found.Status}
		if err != nil {
			one.State, one.Reason = hsm.TokenFailing, err.Error()
			failures = append(failures, fmt.Errorf("token %d, %s: %w", i+1, uri.Token, err))
		}
		if one.Ready && !all.Ready {
			all, one.State = found.Status, hsm.TokenSigns
		}
		tokens = append(tokens, one)
	}
	if !all.Ready {
		return all, errors.Join(failures...)
	}
	all.Tokens = tokens
	return all, nil
}

// writeTokens shows several tokens: what holds for all, a line for each, and what each tells of itself.
func writeTokens(w io.Writer, s hsm.Status) {
	ready := 0
	var rows [][]string
	for _, one := range s.Tokens {
		if one.Ready {
			ready++
		}
		rows = append(rows, []string{fmt.Sprint(one.Position), one.Name, one.State, fmt.Sprint(one.Signatures), fmt.Sprint(one.HandedOver), text.Time(one.Since)})
	}
	state := map[bool]string{true: "yes", false: "no"}[s.Ready]
	total := [][2]string{{"ready", fmt.Sprintf("%s, %d of %d tokens", state, ready, len(s.Tokens))}}
	if s.Key.Address != nil {
		total = append(total, [2]string{"address", s.Key.Address.String()})
	}
	total = append(total, [2]string{"signatures", fmt.Sprintf("%d made, %d wrong and withheld, %d repairs", s.Signatures, s.WrongSignatures, s.Repairs)})
	fields(w, total)
	fmt.Fprintln(w)
	table(w, "TOKEN\tLABEL\tSTATE\tSIGNATURES\tHANDED OVER\tSINCE", rows)
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

// told is a field of text that may be long, in lines that fit a terminal.
func told(name, value string) (lines [][2]string) {
	const columns, names = 80, 12
	for _, line := range text.Wrap(value, columns-names) {
		lines = append(lines, [2]string{name, line})
		name = ""
	}
	return lines
}
