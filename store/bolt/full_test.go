package bolt_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/store/bolt"
	"github.com/attestd/attestd/store/storetest"
)

func TestOnlyAWriteCanFindTheDiskFullOrReadOnly(t *testing.T) {
	t.Parallel()
	write := func(errno syscall.Errno) error { return &fs.PathError{Op: "write", Path: "x", Err: errno} }
	for _, test := range []struct {
		err  error
		want bool
	}{
		{write(syscall.ENOSPC), true},
		{write(syscall.EDQUOT), true},
		{write(syscall.EFBIG), true},
		{write(syscall.EROFS), true},
		{syscall.EROFS, false},
		{errors.New("file resize error: " + (&fs.PathError{Op: "truncate", Path: "x", Err: syscall.EFBIG}).Error()),
			true},
		{write(syscall.EIO), false},
		{syscall.ENOSPC, false}, // from fdatasync: an unknown part was lost
		{syscall.EIO, false},
		{errors.New("file sync error: " + (&fs.PathError{Op: "sync", Path: "x", Err: syscall.ENOSPC}).Error()), false},
		{errors.New("anything"), false},
	} {
		if got := bolt.NotWritten(test.err); got != test.want {
			t.Errorf("%#v: %v", test.err, got)
		}
	}
}

// TestFullDiskIsSurvived fills a real, small file system.
func TestFullDiskIsSurvived(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=4m,mode=0700"); err != nil {
		t.Skipf("no small file system can be mounted here (needs root): %v", err)
	}
	t.Cleanup(func() { syscall.Unmount(dir, syscall.MNT_DETACH) })
	key := newLogKey(t)
	o := options(key)
	o.MinFree = 64 << 10
	path := filepath.Join(dir, "attestd.db")
	s := mustOpen(t, path, o)
	apiKey, _, err := appliance.NewAPIKey(appliance.KeyRequest{Name: "one"}, time.Now())
	check(t, err)
	check(t, s.Keys().Create(t.Context(), apiKey))
	acknowledged := fill(t, s, 10)

	ballast := filepath.Join(dir, "ballast")
	fillDisk(t, ballast)
	wantCode(t, s.Journal().Ready(t.Context()), appliance.CodeJournalUnavailable)
	for range 3 {
		acknowledged = append(acknowledged, fillUntilFull(t, s)...)
	}
	revoked, err := s.Keys().Revoke(t.Context(), apiKey.ID, time.Now())
	if err != nil {
		wantCode(t, err, appliance.CodeJournalUnavailable)
	}
	if got, _ := s.Keys().Key(t.Context(), apiKey.ID); revoked.Revoked.IsZero() || got.Revoked.IsZero() {
		t.Error("a full disk kept a key from being revoked")
	}
	select {
	case err := <-s.Failed():
		t.Fatalf("a full disk was taken for a broken one: %v", err)
	default:
	}
	wantClean(t, s, nil)

	check(t, os.Remove(ballast))
	acknowledged = append(acknowledged, fill(t, s, 10)...)
	check(t, s.Close())
	s = mustOpen(t, path, o)
	check(t, s.Journal().Ready(t.Context()))
	for i, want := range acknowledged {
		got, err := s.Journal().ByID(t.Context(), want.Record.ID)
		check(t, err)
		if got.Index != int64(i) {
			t.Errorf("acknowledged record %d has index %d", i, got.Index)
		}
	}
	if got, _ := s.Keys().Key(t.Context(), apiKey.ID); got.Revoked.IsZero() {
		t.Error("the revocation never reached the disk")
	}
	wantClean(t, s, nil)
}

// fillUntilFull appends until an append fails because the disk is full.
func fillUntilFull(t *testing.T, s *bolt.Store) (entries []journal.Entry) {
	t.Helper()
	for range 10_000 {
		e, _, err := s.Journal().Append(context.Background(), storetest.Record(t, "key"))
		if full, ok := errors.AsType[*appliance.Error](err); ok && full.Code == appliance.CodeJournalUnavailable {
			if full.RetryAfter == 0 || !errors.Is(err, syscall.ENOSPC) {
				t.Errorf("a full disk is %#v", full)
			}
			return entries
		}
		check(t, err)
		entries = append(entries, e)
	}
	t.Fatal("the disk is never full")
	return nil
}

// fillDisk writes a file until the disk is full.
func fillDisk(t *testing.T, path string) {
	t.Helper()
	f, err := os.Create(path)
	check(t, err)
	defer f.Close()
	for block := make([]byte, 4096); err == nil; {
		_, err = f.Write(block)
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
}
