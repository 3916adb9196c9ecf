package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/attestd/attestd/appliance/service"
)

// fakeSystemdCreds puts a systemd-creds that decrypts everything to a PIN first into PATH.
func fakeSystemdCreds(t *testing.T, pin string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root decrypts credentials")
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "systemd-creds"), []byte("#!/bin/sh\necho "+pin+"\n"),
		0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}

func TestTheDecryptedPINIsRemoved(t *testing.T) {
	fakeSystemdCreds(t, "31415926")
	failure := errors.New("the child failed")
	for _, want := range []error{nil, failure} {
		var folder string
		err := service.WithCredential(t.Context(), "pin", service.User{}, func(f string) error {
			folder = f
			if pin, err := os.ReadFile(filepath.Join(folder, "pin")); err != nil || string(pin) != "31415926\n" {
				t.Errorf("the credential is %q, %v", pin, err)
			}
			return want
		})
		if !errors.Is(err, want) {
			t.Errorf("got %v, want %v", err, want)
		}
		if _, err := os.Stat(folder); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the folder %s is still there: %v", folder, err)
		}
	}
}

func TestADecryptedPINThatCannotBeRemovedIsReported(t *testing.T) {
	fakeSystemdCreds(t, "31415926")
	failure := errors.New("the child did not start")
	exit := service.PassOn(exec.CommandContext(t.Context(), "false").Run())
	for name, test := range map[string]struct{ child, is error }{
		"after success":                   {nil, nil},
		"after an exit status":            {exit, nil},
		"together with any other failure": {failure, failure},
	} {
		t.Run(name, func(t *testing.T) {
			var folder string
			err := service.WithCredential(t.Context(), "pin", service.User{}, func(f string) error {
				folder = f
				makeBusy(t, folder)
				return test.child
			})
			if err == nil || !strings.Contains(err.Error(), "by hand") || !strings.Contains(err.Error(), folder) ||
				!errors.Is(err, test.is) && test.is != nil {
				t.Errorf("got %v, want the folder %s and what to do", err, folder)
			}
			var printed strings.Builder
			if status := exitStatus(&printed, err, false); status != exitFailure ||
				!strings.Contains(printed.String(), folder) {
				t.Errorf("exit status %d, and printed %q", status, printed.String())
			}
		})
	}
}

// makeBusy mounts a file system in the folder, so that the folder cannot be removed.
func makeBusy(t *testing.T, folder string) {
	t.Helper()
	busy := filepath.Join(folder, "busy")
	if err := os.Mkdir(busy, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(folder); err != nil {
			t.Error(err)
		}
	})
	if err := syscall.Mount("tmpfs", busy, "tmpfs", 0, "size=4k"); err != nil {
		t.Skipf("cannot mount: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(busy, 0); err != nil {
			t.Error(err)
		}
	})
}
