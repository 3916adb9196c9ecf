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
	"strconv"
	"strings"

	"golang.org/x/term"

	"github.com/attestd/attestd/appliance/config"
	"github.com/attestd/attestd/appliance/files"
	"github.com/attestd/attestd/hsm"
)

// ask goes through what can be chosen, at a terminal. What flags say is not asked.
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
	}{
		{"Label of the token", &s.Token, s.Token},
		{"Label of the key in it", &s.Key, s.Key},
		{"Address and port of the API", &s.Listen, or(s.Listen, config.DefaultText("server.listen"))},
		{"Digest scheme that the verifying contract expects", &s.Scheme, or(s.Scheme, config.DefaultText("attestation.scheme"))},
	} {
		answer, err := s.askText(ctx, q.text, q.initial)
		if err != nil {
			return err
		}
		*q.value = answer
	}
	return nil
}

func (s *setup) askModule(ctx context.Context) error {
	found := hsm.Modules()
	if len(found) == 0 {
		return nil // findModule says what to do
	}
	preferred := 1
	s.say("PKCS#11 modules on this machine:")
	for i, m := range found {
		s.say("  %d  %s  %s", i+1, m.Name, m.Path)
		if chosen, err := chooseModule(found); err == nil && chosen.Path == m.Path {
			preferred = i + 1
		}
	}
	for {
		answer, err := s.askText(ctx, "Which one (a number, or a path)", strconv.Itoa(preferred))
		if err != nil {
			return err
		}
		n, numberErr := strconv.Atoi(answer)
		switch {
		case numberErr == nil && n >= 1 && n <= len(found):
			s.Module = found[n-1].Path
			return nil
		case filepath.IsAbs(answer) && files.Exists(answer):
			s.Module = answer
			return nil
		}
		s.say("%q is neither one of these numbers nor the path of a file.", answer)
	}
}

func (s *setup) askText(ctx context.Context, question, initial string) (string, error) {
	fmt.Fprintf(s.Err, "%s [%s]: ", question, initial)
	line, err := unlessInterrupted(ctx, func() (string, error) { return s.answers.ReadString('\n') })
	if err != nil {
		return "", fmt.Errorf("read the answer: %w", err)
	}
	return or(strings.TrimSpace(line), initial), nil
}

// askPIN reads a PIN that is not shown.
func (s *setup) askPIN(ctx context.Context) ([]byte, error) {
	pin, err := askSecret(ctx, s.In, s.Err, "User PIN of the token")
	if err == nil && len(pin) == 0 {
		err = errors.New("the PIN is empty")
	}
	if err != nil {
		return nil, fmt.Errorf("read the PIN: %w", err)
	}
	return pin, nil
}

// askSecret reads what is not shown. It is at a terminal, for without one there is --yes.
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
		err = errors.Join(err, term.Restore(terminal, before)) // or what is typed later would not be shown
	}
	return secret, err
}

// AskPassphrase reads a new passphrase twice, at a terminal.
func AskPassphrase(ctx context.Context, in io.Reader, out io.Writer) ([]byte, error) {
	first, err := askSecret(ctx, in, out, "Passphrase for the bundle")
	if err != nil {
		return nil, err
	}
	second, err := askSecret(ctx, in, out, "The same again")
	if err == nil && !bytes.Equal(first, second) {
		err = errors.New("the two passphrases differ")
	}
	return first, err
}

// unlessInterrupted waits for a person, or for the end that a person wants: reading from a terminal takes no context.
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
