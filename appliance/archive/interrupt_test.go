package archive_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/attestd/attestd/appliance/archive"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/store/bolt"
)

// interrupting passes on what is read or written, and somebody interrupts the command after the first of it.
type interrupting struct {
	io.Reader
	io.Writer
	interrupt func()
}

func (i interrupting) Read(p []byte) (int, error) {
	defer i.interrupt()
	return i.Reader.Read(p[:1])
}

func (i interrupting) Write(p []byte) (int, error) {
	defer i.interrupt()
	return i.Writer.Write(p)
}

// Whoever interrupts a backup or a restore finds the folder as it was, also in the middle of one large file.
func TestAnInterruptionLeavesNothing(t *testing.T) {
	t.Parallel()
	key, _, err := journal.NewLogKey("example.com/interrupted")
	if err != nil {
		t.Fatal(err)
	}
	store, err := bolt.Open(filepath.Join(t.TempDir(), "attestd.db"),
		bolt.Options{Signer: key.Signer, Verifier: key.Verifier})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	take := func(w io.Writer) error { return archive.Write(w, store, key, "test", time.Now()) }
	whole := filepath.Join(t.TempDir(), "backup.tar.zst")
	if _, _, err := archive.Make(t.Context(), whole, take, archive.Sealing{}, archive.AuditOptions{}); err != nil {
		t.Fatal(err)
	}
	backup, err := os.ReadFile(whole)
	if err != nil {
		t.Fatal(err)
	}
	for name, run := range map[string]func(ctx context.Context, dir string, interrupt func()) error{
		"backup": func(ctx context.Context, dir string, interrupt func()) error {
			_, _, err := archive.Make(ctx, filepath.Join(dir, "b.tar.zst"), func(w io.Writer) error {
				return take(interrupting{Writer: w, interrupt: interrupt})
			}, archive.Sealing{}, archive.AuditOptions{})
			return err
		},
		"restore": func(ctx context.Context, dir string, interrupt func()) error {
			_, err := archive.Restore(ctx, interrupting{Reader: bytes.NewReader(backup), interrupt: interrupt}, dir,
				archive.RestoreOptions{})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, interrupt := context.WithCancel(t.Context())
			defer interrupt()
			dir := t.TempDir()
			if err := run(ctx, dir, interrupt); !errors.Is(err, context.Canceled) {
				t.Errorf("it ended with %v", err)
			}
			if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
				t.Errorf("%v is left behind, %v", left, err)
			}
		})
	}
}
