package follower

import (
	"bytes"
	"encoding/json"
)

// An answer of a hundred rows has half a megabyte of JSON, which encoding/json would scan four times to separate the
// rows. This scanner separates them in one pass. It does not check the contents of a row, which index.ParseRow does.

// elements returns the values of a JSON list. It fails if there are more than most.
func elements(list []byte, most int) (values [][]byte, ok bool) {
	s := &scanner{in: list}
	s.expect('[')
	for first := true; s.more(']', first); first = false {
		if len(values) == most {
			return nil, false
		}
		values = append(values, s.value())
	}
	return values, s.ended()
}

// members returns the values of a JSON object, by name. It fails if there are more than most.
func members(object []byte, most int) (values map[string][]byte, ok bool) {
	s := &scanner{in: object}
	values = make(map[string][]byte)
	s.expect('{')
	for first := true; s.more('}', first); first = false {
		var name string
		if json.Unmarshal(s.value(), &name) != nil {
			return nil, false
		}
		if s.expect(':'); len(values) == most {
			return nil, false
		}
		values[name] = s.value()
	}
	return values, s.ended()
}

// scanner splits JSON. It does not validate: for invalid input, the values that it returns may not be JSON.
type scanner struct {
	in     []byte
	at     int
	failed bool
}

func (s *scanner) space() {
	for s.at < len(s.in) && (s.in[s.at] == ' ' || s.in[s.at] == '\n' || s.in[s.at] == '\t' || s.in[s.at] == '\r') {
		s.at++
	}
}

// next reports whether c comes next, and if so moves past it.
func (s *scanner) next(c byte) bool {
	s.space()
	if s.at == len(s.in) || s.in[s.at] != c {
		return false
	}
	s.at++
	return true
}

// expect moves past c, which must come next.
func (s *scanner) expect(c byte) { s.failed = !s.next(c) || s.failed }

// more reports whether another element follows, and moves to it. At the end it moves past the closing byte.
func (s *scanner) more(end byte, first bool) bool {
	if s.failed || s.next(end) {
		return false
	}
	if !first {
		s.expect(',')
	}
	return !s.failed
}

// ended reports whether the whole input was read without failure.
func (s *scanner) ended() bool {
	s.space()
	return !s.failed && s.at == len(s.in)
}

// value returns the next value.
func (s *scanner) value() []byte {
	s.space()
	start := s.at
	s.skip()
	s.failed = s.failed || s.at == start
	return s.in[start:s.at]
}

// skip moves past the value that begins here.
func (s *scanner) skip() {
	depth := 0
	for s.at < len(s.in) {
		c := s.in[s.at]
		switch c {
		case '"':
			s.skipText()
		case '{', '[':
			depth++
			s.at++
		case '}', ']', ',', ' ', '\n', '\t', '\r':
			if depth == 0 {
				return // the end of a number or literal
			}
			if c == '}' || c == ']' {
				depth--
			}
			s.at++
		default:
			s.at++
			continue // inside a number or literal
		}
		if depth == 0 {
			return
		}
	}
	s.failed = s.failed || depth > 0
}

// skipText moves past the string that begins here.
func (s *scanner) skipText() {
	for s.at++; ; {
		length := bytes.IndexByte(s.in[s.at:], '"')
		if length < 0 {
			s.at, s.failed = len(s.in), true
			return
		}
		text := s.in[s.at : s.at+length]
		s.at += length + 1
		if escapes := len(text) - len(bytes.TrimRight(text, `\`)); escapes%2 == 0 {
			return
		}
	}
}
