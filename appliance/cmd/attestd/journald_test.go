package main

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/attestd/attestd/appliance/config"
)

// journald stops, which breaks the connection, and is restarted. The first line that cannot be written goes to the new
// connection.
func TestAJournaldThatWasStoppedIsConnectedAgain(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "stdout")
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	first, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	stderr, err := first.(*net.UnixConn).File()
	if err != nil {
		t.Fatal(err)
	}
	defer stderr.Close()
	_ = first.Close()
	stream := journaldStream{stderr, path}
	reader, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	_ = reader.Close()
	_ = listener.Close()
	for range 2 {
		if n, err := io.WriteString(stream, "lost\n"); n != 0 || err == nil {
			t.Fatalf("%d bytes were written to nobody, %v", n, err)
		}
	}
	listener, err = net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	for range 2 {
		if _, err := io.WriteString(stream, "read\n"); err != nil {
			t.Fatal(err)
		}
	}
	reader, err = listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	const want = "attestd\n\n6\n1\n0\n0\n0\nread\nread\n"
	_ = reader.SetReadDeadline(time.Now().Add(time.Minute))
	got := make([]byte, len(want))
	if _, err := io.ReadFull(reader, got); err != nil || string(got) != want {
		t.Errorf("journald reads %q, %v, not %q", got, err, want)
	}
}

func TestLinesForJournaldBeginWithTheirPriority(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	level := new(slog.LevelVar)
	open := func(w io.Writer) slog.Handler { return logTo(new(config.Config), w, false, level).Handler() }
	log := slog.New(newByPriority(&out, open)).With("part", "a")
	log.Debug("left out")
	level.Set(slog.LevelDebug)
	for _, l := range []slog.Level{slog.LevelDebug, slog.LevelInfo, slog.LevelWarn, slog.LevelError} {
		log.WithGroup("g").Log(t.Context(), l, "said", "n", 1)
	}
	var want strings.Builder
	for _, l := range []string{"<7>|DEBUG", "<6>|INFO", "<4>|WARN", "<3>|ERROR"} {
		priority, name, _ := strings.Cut(l, "|")
		fmt.Fprintf(&want, `%s{"level":"%s","msg":"said","part":"a","g":{"n":1}}`+"\n", priority, name)
	}
	if got := regexp.MustCompile(`"time":"[^"]*",`).ReplaceAllString(out.String(), ""); got != want.String() {
		t.Errorf("written:\n%swant:\n%s", got, want.String())
	}
}
