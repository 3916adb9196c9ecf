// Package text formats times, the state of a follower, and shell words for people. Commands and doctor use it.
package text

import (
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/attestd/attestd/appliance/index/follower"
)

// Time formats a time in UTC; the zero time is "".
func Time(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format("2006-01-02 15:04:05Z")
}

// Age formats a time with the time since then; the zero time is "".
func Age(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return fmt.Sprintf("%s (%s ago)", Time(t), time.Since(t).Round(time.Second))
}

// OneLine replaces characters of an upstream's message that would break a terminal or a table.
func OneLine(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return unicode.ReplacementChar
	}, s)
}

// Lag describes how far a replica may be behind its upstream.
func Lag(s follower.Status) string {
	if s.LagSeconds == nil {
		return fmt.Sprintf("unknown until the first full read, %s rows", Count(s.LagRows))
	}
	lag := time.Duration(*s.LagSeconds * float64(time.Second))
	text := fmt.Sprintf("%s, %s rows", lag.Round(100*time.Millisecond), Count(s.LagRows))
	if s.UnlistedRows > 0 {
		text += fmt.Sprintf(" (%s not listed by the upstream)", Count(s.UnlistedRows))
	}
	if s.SurplusRows > 0 {
		text += fmt.Sprintf(", %s surplus rows", Count(s.SurplusRows))
	}
	return text
}

// Follower describes the state of a follower.
func Follower(s follower.Status) string {
	if s.Failing && s.State == follower.StateLive {
		return "Upstream unreachable, retrying"
	}
	text := string(s.State)
	if all := Rows(s); s.State == follower.StateBackfill && all.Upstream > 0 {
		text += fmt.Sprintf(", %d %% (%s of %s packets and transfers)", min(100, 100*all.Here/all.Upstream),
			Count(all.Here), Count(all.Upstream))
	}
	if s.Failing {
		text += ", upstream unreachable, retrying"
	}
	return text
}

// Rows returns the sum over all kinds of rows, that is packets and transfers.
func Rows(s follower.Status) (all follower.Count) {
	for _, count := range s.Rows {
		all.Here += count.Here
		all.Upstream += count.Upstream
	}
	return all
}

// ShellWord returns s as one word of a POSIX shell.
func ShellWord(s string) string {
	safe := func(r rune) bool {
		return r == '/' || r == '.' || r == '-' || r == '_' || r == '+' || r >= '0' && r <= '9' || r >= 'A' &&
			r <= 'Z' || r >= 'a' && r <= 'z'
	}
	if s != "" && strings.IndexFunc(s, func(r rune) bool { return !safe(r) }) < 0 {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// Wrap breaks a text between words into lines of at most width characters. A longer word gets its own line.
func Wrap(s string, width int) (lines []string) {
	line := ""
	for word := range strings.FieldsSeq(s) {
		switch {
		case line == "":
			line = word
		case utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) <= width:
			line += " " + word
		default:
			lines = append(lines, line)
			line = word
		}
	}
	if line != "" {
		lines = append(lines, line)
	}
	return lines
}
