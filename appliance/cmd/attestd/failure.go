package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/attestd/attestd/api/client"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/report"
	"github.com/attestd/attestd/appliance/service"
	"github.com/attestd/attestd/appliance/text"
)

// exitStatus prints an error, as text or as JSON, and returns the command's exit status.
func exitStatus(stderr io.Writer, err error, asJSON bool) int {
	if err == nil {
		return exitOK
	}
	if silent := (silentFailure{}); errors.As(err, &silent) {
		return exitFailure // the command has printed its failure
	}
	if child := service.ChildStatus(0); errors.As(err, &child) {
		return int(child) // the child has printed its failure
	}
	f := failureOf(err)
	if asJSON {
		line, err := json.Marshal(f)
		must(err)
		fmt.Fprintf(stderr, "%s\n", line)
		return f.status
	}
	fmt.Fprintf(stderr, "attestd: %s\n", f.Detail)
	if usage := (usageError{}); errors.As(err, &usage) {
		fmt.Fprintf(stderr, "Run '%s --help' for usage.\n", usage.command)
	}
	return f.status
}

// failure is the JSON form of an error: one line on standard error, with the members of the API's problem documents.
type failure struct {
	Code      appliance.Code `json:"code"` // a code of the API or of the daemon, or one of the constants below
	Detail    string         `json:"detail"`
	Field     string         `json:"field,omitempty"`
	RequestID string         `json:"requestId,omitempty"`
	status    int            // exit status of the command
}

// Codes of failures that come from the command itself, not from the API.
const (
	codeUsage       appliance.Code = "usage"
	codeFailed      appliance.Code = "failed"
	codeInterrupted appliance.Code = "interrupted"
	codeNotRunning  appliance.Code = "not_running"
	codePINRefused  appliance.Code = "pin_refused"
)

func failureOf(err error) failure {
	f := failure{Code: codeFailed, Detail: err.Error(), status: exitFailure}
	if p, is := errors.AsType[*client.Problem](err); is {
		f.Code, f.Field, f.RequestID = cmp.Or(p.Code, codeFailed), p.Field, p.RequestID
	} else if e, is := errors.AsType[*appliance.Error](err); is {
		f.Code, f.Field = e.Code, e.Field
	}
	if e, is := errors.AsType[*report.Error](err); is {
		f.Code = appliance.Code(e.Code)
	}
	usage, interrupted := usageError{}, interruptedError{}
	switch {
	case errors.As(err, &usage):
		f.Code, f.status = codeUsage, exitUsage
	case isWrongPIN(err):
		f.Code, f.status = codePINRefused, exitPIN
	case errors.As(err, &interrupted):
		f.Code, f.status = codeInterrupted, exitInterrupted
	case errors.Is(err, client.ErrNotRunning):
		f.Code = codeNotRunning
	case errors.Is(err, fs.ErrPermission) && os.Geteuid() != 0:
		f.Detail += "; run the command as root: " + sudo(os.Args)
	}
	return f
}

// sudo returns the command line that repeats this command as root.
func sudo(args []string) string {
	words := []string{"sudo"}
	for _, arg := range args {
		words = append(words, text.ShellWord(arg))
	}
	return strings.Join(words, " ")
}

// wantsJSON finds --output json in a command line that may be invalid.
func wantsJSON(args []string) bool {
	if end := slices.Index(args, "--"); end >= 0 {
		args = args[:end]
	}
	for i, arg := range args {
		switch arg {
		case "-o", "--output":
			return i+1 < len(args) && args[i+1] == "json"
		case "-ojson", "-o=json", "--output=json":
			return true
		}
	}
	return false
}

// toldBy extracts the error from the standard error of a child process of this program, in text or JSON form.
func toldBy(stderr string) string {
	stderr = strings.TrimSpace(stderr)
	last := stderr[strings.LastIndex(stderr, "\n")+1:]
	var f failure
	if json.Unmarshal([]byte(last), &f) == nil && f.Detail != "" {
		return f.Detail
	}
	return strings.TrimPrefix(stderr, "attestd: ")
}

// silentFailure ends a command with exitFailure. The command's output describes the failure.
type silentFailure struct{}

func (silentFailure) Error() string { return "failed" }

// interruptedError ends a command with exitInterrupted.
type interruptedError struct{ err error }

func (e interruptedError) Error() string { return e.err.Error() }
func (e interruptedError) Unwrap() error { return e.err }

// usageError is an invalid command line.
type usageError struct {
	command string
	err     error
}

func (e usageError) Error() string { return e.err.Error() }
func (e usageError) Unwrap() error { return e.err }

func usagef(cmd *cobra.Command, format string, args ...any) error {
	return usageError{cmd.CommandPath(), fmt.Errorf(format, args...)}
}

// interrupted returns err. If the user has interrupted the command, it returns an error that says how much of the work
// is kept.
func interrupted(ctx context.Context, err error, kept string, args ...any) error {
	if err == nil || ctx.Err() == nil {
		return err
	}
	return interruptedError{fmt.Errorf("interrupted; "+kept, args...)}
}
