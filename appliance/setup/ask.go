package setup

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"golang.org/x/term"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/archive"
	"github.com/attestd/attestd/appliance/config"
	"github.com/attestd/attestd/appliance/daemon"
	"github.com/attestd/attestd/hsm"
)

// ask prompts for the choices at a terminal. Values of flags are the initial answers, except that it does not prompt
// for a module that a flag names.
func (s *setup) ask(ctx context.Context) error {
	if s.Yes {
		return nil
	}
	s.answers = bufio.NewReader(s.In)
	if s.Module == "" {
		if err := s.askModule(ctx); err != nil {
			return err
		}
	}
	for _, q := range []struct {
		text    string
		value   *string
		initial string
		wrong   func(answer string) error
	}{
		{"Label of the token", &s.Token, s.Token, checkLabel},
		{"Label of the key in the token", &s.Key, s.Key, checkLabel},
		{"Address and port of the API", &s.Listen, or(s.Listen, config.DefaultText("server.listen")), s.checkListen},
	} {
		answer, err := s.askText(ctx, q.text, q.initial, q.wrong)
		if err != nil {
			return err
		}
		*q.value = answer
	}
	if err := s.askScheme(ctx); err != nil {
		return err
	}
	return s.askRecipient(ctx)
}

// leftOut is the answer that leaves the log key out of backups.
const leftOut = "none"

// askRecipient prompts for the age recipient of the log key in backups.
func (s *setup) askRecipient(ctx context.Context) error {
	s.say(
		"Backups include the log key only if it is encrypted (age). To get a recipient, age1…, run on another machine: age-keygen -o backup-identity.txt")
	answer, err := s.askText(ctx, "Recipient of the log key in backups, or none to omit the key",
		or(s.BackupRecipient, leftOut), func(answer string) error {
			if answer == leftOut {
				return nil
			}
			_, err := archive.ParseRecipient(answer)
			return err
		})
	if answer != leftOut {
		s.BackupRecipient = answer
	}
	return err
}

// maxLabel is the size of a label in PKCS#11, in bytes.
const maxLabel = 32

func checkLabel(answer string) error {
	if len(answer) > maxLabel || strings.IndexFunc(answer, func(r rune) bool { return !unicode.IsPrint(r) }) >= 0 {
		return fmt.Errorf("a label must be 1 to %d bytes of printable text", maxLabel)
	}
	return nil
}

// checkListen refuses an address that the daemon would refuse.
func (s *setup) checkListen(answer string) error {
	if !config.IsHostPort(answer) {
		return fmt.Errorf("%q is not an address and port such as %s", answer, config.DefaultText("server.listen"))
	}
	var c config.Config
	c.Server.Listen, c.Server.TLS.Cert, c.Server.AllowPlainHTTP = answer, s.TLSCert, s.AllowPlainHTTP
	return daemon.CheckPlainHTTP(&c)
}

// askScheme prompts for the digest scheme, by number or by name.
func (s *setup) askScheme(ctx context.Context) error {
	s.say("Digest schemes:")
	names := make([]string, len(appliance.SchemeNames))
	initial := or(s.Scheme, config.DefaultText("attestation.scheme"))
	for i, name := range appliance.SchemeNames {
		names[i] = string(name)
		s.say("  %d  %s", i+1, name)
	}
	chosen := func(answer string) string {
		if n, err := strconv.Atoi(answer); err == nil && n >= 1 && n <= len(names) {
			return names[n-1]
		}
		return answer
	}
	answer, err := s.askText(ctx, "Which scheme does the verifying contract expect (a number or a name)",
		strconv.Itoa(1+slices.Index(names, initial)), func(answer string) error {
			return checkSchemeName(appliance.SchemeName(chosen(answer)))
		})
	s.Scheme = chosen(answer)
	return err
}

// checkSchemeName refuses unknown schemes, and eip712, for whose domain setup has no question.
func checkSchemeName(name appliance.SchemeName) error {
	_, err := appliance.NewScheme(name, nil)
	if err != nil && name == appliance.SchemeEIP712 {
		return errors.New("setup cannot configure eip712, which needs a domain: choose another scheme now, " +
			"and set attestation.scheme and attestation.eip712 in the configuration before the first attestation")
	}
	return err
}

func (s *setup) askModule(ctx context.Context) error {
	found := hsm.Modules()
	if len(found) == 0 {
		return nil // findModule returns the error
	}
	preferred := 1
	s.say("PKCS#11 modules on this machine:")
	for i, m := range found {
		s.say("  %d  %s  %s", i+1, m.Name, m.Path)
		if chosen, err := chooseModule(found); err == nil && chosen.Path == m.Path {
			preferred = i + 1
		}
	}
	chosen := func(answer string) string {
		if n, err := strconv.Atoi(answer); err == nil && n >= 1 && n <= len(found) {
			return found[n-1].Path
		}
		return answer
	}
	answer, err := s.askText(ctx, "Which module (a number or a path)", strconv.Itoa(preferred),
		func(answer string) error {
			path := chosen(answer)
			if stat, err := os.Stat(path); !filepath.IsAbs(path) || err != nil || stat.IsDir() {
				return fmt.Errorf("%q is not one of these numbers, and not the path of a file", answer)
			}
			return nil
		})
	s.Module = chosen(answer)
	return err
}

// askText prompts until wrong accepts the answer.
func (s *setup) askText(ctx context.Context, question, initial string,
	wrong func(answer string) error) (string, error) {
	for {
		fmt.Fprintf(s.Err, "%s [%s]: ", question, initial)
		line, err := unlessInterrupted(ctx, func() (string, error) { return s.answers.ReadString('\n') })
		if errors.Is(err, io.EOF) {
			return "", errors.New("no more answers on standard input: give --yes to skip the questions")
		}
		if err != nil {
			return "", fmt.Errorf("read the answer: %w", err)
		}
		answer := or(strings.TrimSpace(line), initial)
		why := wrong(answer)
		if why == nil {
			return answer, nil
		}
		s.say("%s.", why)
	}
}

// askPIN prompts for a PIN without echo.
func (s *setup) askPIN(ctx context.Context) ([]byte, error) {
	for {
		pin, err := askSecret(ctx, s.In, s.Err, "User PIN of the token")
		if err != nil {
			return nil, fmt.Errorf("read the PIN: %w", err)
		}
		if len(pin) > 0 {
			return pin, nil
		}
		s.say("The PIN must not be empty.")
	}
}

// askSecret prompts for a secret without echo. in must be a terminal.
func askSecret(ctx context.Context, in io.Reader, out io.Writer, question string) ([]byte, error) {
	terminal := int(in.(*os.File).Fd())
	before, err := term.GetState(terminal)
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(out, "%s (not shown): ", question)
	secret, err := unlessInterrupted(ctx, func() ([]byte, error) { return term.ReadPassword(terminal) })
	fmt.Fprintln(out)
	if ctx.Err() != nil {
		err = errors.Join(err, term.Restore(terminal, before)) // the terminal must echo again
	}
	return secret, err
}

// AskPassphrase prompts at a terminal for a new passphrase, until it was typed twice.
func AskPassphrase(ctx context.Context, in io.Reader, out io.Writer) ([]byte, error) {
	for {
		first, err := askSecret(ctx, in, out, "Passphrase for the bundle")
		if err != nil {
			return nil, err
		}
		second, err := askSecret(ctx, in, out, "Passphrase again")
		switch {
		case err != nil:
			return nil, err
		case len(first) == 0:
			fmt.Fprintln(out, "The passphrase must not be empty.")
		case !bytes.Equal(first, second):
			fmt.Fprintln(out, "The two passphrases differ.")
		default:
			return first, nil
		}
	}
}

// unlessInterrupted returns the result of read, or an error when ctx ends. read may stay blocked, since reading from a
// terminal takes no context.
func unlessInterrupted[T any](ctx context.Context, read func() (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	done := make(chan result, 1)
	go func() {
		value, err := read()
		done <- result{value, err}
	}()
	select {
	case r := <-done:
		return r.value, r.err
	case <-ctx.Done():
		var none T
		return none, errors.New("interrupted")
	}
}

func or(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}
