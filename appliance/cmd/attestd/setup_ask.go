package main

import (
	"bufio"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/attestd/attestd/hsm"
)

// ask goes through what can be chosen, at a terminal. What flags say is not asked.
func (s *setup) ask() error {
	if s.yes {
		return nil
	}
	s.answers = bufio.NewReader(s.in)
	if s.module == "" {
		if err := s.askModule(); err != nil {
			return err
		}
	}
	for _, q := range []struct {
		text    string
		value   *string
		initial string
	}{
		{"Label of the token", &s.token, s.token},
		{"Label of the key in it", &s.object, s.object},
		{"Address and port of the API", &s.listen, or(s.listen, defaultText("server.listen"))},
		{"Digest scheme that the verifying contract expects", &s.scheme, or(s.scheme, defaultText("attestation.scheme"))},
	} {
		answer, err := s.askText(q.text, q.initial)
		if err != nil {
			return err
		}
		*q.value = answer
	}
	return nil
}

func (s *setup) askModule() error {
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
		answer, err := s.askText("Which one (a number, or a path)", strconv.Itoa(preferred))
		if err != nil {
			return err
		}
		n, numberErr := strconv.Atoi(answer)
		switch {
		case numberErr == nil && n >= 1 && n <= len(found):
			s.module = found[n-1].path
			return nil
		case filepath.IsAbs(answer) && exists(answer):
			s.module = answer
			return nil
		}
		s.say("%q is neither one of these numbers nor the path of a file.", answer)
	}
}

func (s *setup) askText(question, initial string) (string, error) {
	fmt.Fprintf(s.err, "%s [%s]: ", question, initial)
	line, err := s.answers.ReadString('\n')
	if err != nil {
		return "", fmt.Errorf("read the answer: %w", err)
	}
	return or(strings.TrimSpace(line), initial), nil
}

func or(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}

// defaultText is the default of a value that is text.
func defaultText(name string) string {
	for _, s := range settings() {
		if s.name == name {
			return s.value.(string)
		}
	}
	panic("settings(): no " + name)
}
