package main

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/agnivade/levenshtein"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// misspelt is the greatest edit distance at which a name is still suggested.
func misspelt(name string) int { return min(2, len(name)/2) }

// flagError rewrites pflag's error, and suggests a flag for an unknown one.
func flagError(cmd *cobra.Command, err error) error {
	if unknown, is := errors.AsType[*pflag.NotExistError](err); is {
		if near := nearestFlag(cmd, unknown); near != "" {
			err = fmt.Errorf("%w; did you mean --%s?", err, near)
		}
	}
	if invalid, is := errors.AsType[*pflag.InvalidValueError](err); is {
		err = fmt.Errorf("--%s: %q is %s", invalid.GetFlag().Name, invalid.GetValue(), whyInvalid(invalid))
	}
	return usageError{cmd.CommandPath(), err}
}

// nearestFlag suggests a flag: one that begins with the typed name, or is misspelt, or was typed with a single dash.
func nearestFlag(cmd *cobra.Command, unknown *pflag.NotExistError) (near string) {
	typed := unknown.GetSpecifiedName()
	if letters := unknown.GetSpecifiedShortnames(); letters != "" {
		typed, _, _ = strings.Cut(letters, "=")
	}
	least := misspelt(typed) + 1
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		away := levenshtein.ComputeDistance(typed, f.Name)
		if len(typed) > 1 && strings.HasPrefix(f.Name, typed) {
			away = min(away, 1)
		}
		if !f.Hidden && away < least && len(typed) > 1 {
			near, least = f.Name, away
		}
	})
	return near
}

// whyInvalid describes the kind of value that the flag needs.
func whyInvalid(e *pflag.InvalidValueError) string {
	if errors.Is(e, strconv.ErrRange) {
		return "too large a number"
	}
	switch e.GetFlag().Value.Type() {
	case "int", "int64":
		return "not a whole number"
	case "uint64":
		return "not a whole number from 0 on"
	case "intSlice":
		return "not a list of whole numbers such as 1,2,4"
	case "duration":
		return "not a duration such as 30s or 2m"
	case "bool":
		return "not true or false"
	}
	return "not a value: " + e.Unwrap().Error()
}

// guessed maps words that newcomers try as commands to the commands that exist.
var guessed = map[string]string{
	"init":     "to set up this machine: attestd setup; to try attestd out: attestd dev",
	"install":  "to set up this machine: attestd setup",
	"start":    "to start the service: systemctl start attestd; to run it here: attestd serve; to try attestd out: attestd dev",
	"run":      "to run the daemon here: attestd serve; to try attestd out: attestd dev",
	"stop":     "to stop the service: systemctl stop attestd; to stop only attesting: attestd pause",
	"restart":  "to restart the service: systemctl restart attestd; to reload its configuration: attestd reload",
	"journal":  "for the journal: attestd log list, attestd log verify",
	"logs":     "for the journal of attestations: attestd log list; for the daemon's log: journalctl -u attestd",
	"export":   "to write the journal to a file: attestd log export; the replica: attestd replica export",
	"import":   "to fill the replica from a file: attestd replica import; to restore a backup: attestd restore",
	"generate": "to generate data for the replica: attestd replica generate; to generate a key in the HSM: attestd hsm keygen",
}

// noArgs refuses arguments, and suggests the command that may have been meant.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	if !cmd.HasSubCommands() {
		return usagef(cmd, "unexpected argument %q: %s takes no arguments", args[0], cmd.CommandPath())
	}
	if instead := guessed[strings.ToLower(args[0])]; instead != "" && !cmd.HasParent() {
		return usagef(cmd, "no command %q; %s", args[0], instead)
	}
	cmd.SuggestionsMinimumDistance = misspelt(args[0])
	if s := cmd.SuggestionsFor(args[0]); len(s) > 0 {
		return usagef(cmd, "no command %q; did you mean '%s %s'?", args[0], cmd.CommandPath(), nearestName(args[0], s))
	}
	return usagef(cmd, "no command %q; the commands are %s", args[0], strings.Join(commandNames(cmd), ", "))
}

// answerHelp makes cobra's own commands refuse unknown arguments, as all other commands do.
func answerHelp(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	help, _, err := root.Find([]string{"help"})
	must(err)
	help.Run = nil
	help.RunE = func(_ *cobra.Command, args []string) error {
		cmd, rest, err := root.Find(args)
		if err == nil {
			err = noArgs(cmd, rest)
		}
		if err != nil {
			return err
		}
		cmd.InitDefaultHelpFlag()
		return cmd.Help()
	}
	completion, _, err := root.Find([]string{"completion"})
	must(err)
	for _, shell := range completion.Commands() {
		shell.Args = noArgs
	}
}

// misnamed returns an error if the arguments ask for the help of a command that does not exist. cobra would show the
// help of the command above it.
func misnamed(root *cobra.Command, args []string) error {
	cmd, rest, err := root.Find(args)
	if err != nil || !cmd.HasAvailableSubCommands() || len(rest) > 0 && strings.HasPrefix(rest[0], "__") {
		return nil //nolint:nilerr // Execute returns the error
	}
	cmd.InitDefaultHelpFlag()
	if err := cmd.ParseFlags(rest); err != nil {
		return nil //nolint:nilerr // Execute returns the error
	}
	if help, err := cmd.Flags().GetBool("help"); err != nil || !help {
		return nil //nolint:nilerr // Execute returns the error
	}
	return noArgs(cmd, cmd.Flags().Args())
}

// nearestName returns the name with the smallest edit distance.
func nearestName(typed string, names []string) string {
	return slices.MinFunc(names, func(a, b string) int {
		return levenshtein.ComputeDistance(typed, a) - levenshtein.ComputeDistance(typed, b)
	})
}

// commandNames lists the available commands beneath cmd.
func commandNames(cmd *cobra.Command) (names []string) {
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			names = append(names, c.Name())
		}
	}
	return names
}

// oneArg requires exactly one argument, and names it in its error.
func oneArg(name string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) != 1 {
			return usagef(cmd, "%s takes one %s, not %d", cmd.CommandPath(), name, len(args))
		}
		return nil
	}
}

// group is a command that only holds other commands.
func group(use, short, long string, commands ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{
		Use: use, Short: short, Long: long, Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return usagef(cmd, "%s needs a command: %s", cmd.CommandPath(), strings.Join(commandNames(cmd), ", "))
		},
	}
	cmd.AddCommand(commands...)
	return cmd
}
