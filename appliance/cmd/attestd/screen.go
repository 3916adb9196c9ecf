package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync/atomic"

	"golang.org/x/term"
)

// screen is a terminal that is redrawn repeatedly. close restores the terminal.
type screen struct {
	out   *os.File
	in    *os.File // nil if keys cannot be read
	state *term.State
	quit  chan struct{} // closed by q and by Ctrl-C
	key   atomic.Int32  // the key that closed quit; 0 for none
}

// Keys that close the screen.
const (
	keyCtrlC = 3
	keyQuit  = 'q'
)

// openScreen returns nil if standard output is no terminal.
func (a *app) openScreen() *screen {
	if !isTerminal(a.out) {
		return nil
	}
	s := &screen{out: a.out.(*os.File), quit: make(chan struct{})}
	if isTerminal(a.in) {
		in := a.in.(*os.File)
		if state, err := term.MakeRaw(int(in.Fd())); err == nil {
			s.in, s.state = in, state
			go s.readKeys()
		}
	}
	fmt.Fprint(s.out, "\x1b[?1049h\x1b[?25l") // alternate screen, no cursor
	return s
}

func (s *screen) readKeys() {
	var key [1]byte
	for {
		if _, err := io.ReadFull(s.in, key[:]); err != nil {
			return // from now on, no key closes the screen
		}
		if key[0] == keyCtrlC || key[0] == keyQuit {
			s.key.Store(int32(key[0]))
			close(s.quit)
			return
		}
	}
}

func (s *screen) close() {
	fmt.Fprint(s.out, "\x1b[?25h\x1b[?1049l")
	if s.state != nil {
		_ = term.Restore(int(s.in.Fd()), s.state) // fails only if the terminal fails
	}
}

// size returns 80 by 24 if the terminal does not report its size.
func (s *screen) size() (width, height int) {
	width, height, err := term.GetSize(int(s.out.Fd()))
	if err != nil || width < 1 || height < 1 {
		return 80, 24
	}
	return width, height
}

// draw shows a text, cut to the size of the terminal.
func (s *screen) draw(text string) {
	width, height := s.size()
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	var b strings.Builder
	b.WriteString("\x1b[H")
	for i, line := range lines[:min(len(lines), height)] {
		if i > 0 {
			b.WriteString("\r\n")
		}
		b.WriteString(clip(line, width) + "\x1b[K")
	}
	b.WriteString("\x1b[J")
	fmt.Fprint(s.out, b.String())
}

// clip cuts a line to a width. Its only control characters are colours, which take no room.
func clip(line string, width int) string {
	var b strings.Builder
	colour := false // inside an escape sequence
	for _, r := range line {
		switch {
		case r == '\x1b':
			colour = true
		case colour:
			colour = r != 'm'
		case width == 0:
			continue
		default:
			width--
		}
		b.WriteRune(r)
	}
	return b.String()
}
