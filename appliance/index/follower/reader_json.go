package follower

import (
	"bytes"
	"encoding/json"
)

// An answer of a hundred rows has half a megabyte of JSON, which encoding/json would go over four times until each row is
// apart. Here it is cut apart in one go, without looking at what is in a row: index.ParseRow checks that.

// elements returns the values of a JSON list of at most so many.
func elements(list []byte, most int) (values [][]byte, ok bool) {
	s := &scanner{in: list}
	s.take('[')
	for first := true; s.more(']', first); first = false {
		if len(values) == most {
			return nil, false
		}
		values = append(values, s.value())
	}
	return values, s.ended()
}

// members returns the values of a JSON object, of at most so many names, by name.
func members(object []byte, most int) (values map[string][]byte, ok bool) {
	s := &scanner{in: object}
	values = make(map[string][]byte)
	s.take('{')
	for first := true; s.more('}', first); first = false {
		var name string
		if json.Unmarshal(s.value(), &name) != nil {
			return nil, false
		}
		if s.take(':'); len(values) == most {
			return nil, false
		}
		values[name] = s.value()
	}
	return values, s.ended()
}

// scanner goes over JSON. What it cuts out need not be JSON where the input is none.
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

// next tells whether a byte comes next, and moves behind it.
func (s *scanner) next(c byte) bool {
	s.space()
	if s.at == len(s.in) || s.in[s.at] != c {
		return false
	}
	s.at++
	return true
}

// take moves behind a byte that must come next.
func (s *scanner) take(c byte) { s.failed = !s.next(c) || s.failed }

// more tells whether another element comes, and moves to it; else it moves behind the end.
func (s *scanner) more(end byte, first bool) bool {
	if s.failed || s.next(end) {
		return false
	}
	if !first {
		s.take(',')
	}
	return !s.failed
}

// ended tells whether the input was gone over to its end.
func (s *scanner) ended() bool {
	s.space()
	return !s.failed && s.at == len(s.in)
}

// value returns the value that comes next.
func (s *scanner) value() []byte {
	s.space()
	start := s.at
	s.skip()
	s.failed = s.failed || s.at == start
	return s.in[start:s.at]
}

// skip moves behind the value that begins here.
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
				return // behind a number or a literal
			}
			if c == '}' || c == ']' {
				depth--
			}
			s.at++
		default:
			s.at++
			continue // of a number or a literal
		}
		if depth == 0 {
			return
		}
	}
	s.failed = s.failed || depth > 0
}

// skipText moves behind the string that begins here.
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
