package service

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// WithCredential calls do with a folder that holds the decrypted credential, and then removes the folder. It returns
// the error of the removal instead of a child's exit status, because the child has printed its own error.
func WithCredential(ctx context.Context, name string, service User, do func(folder string) error) (err error) {
	folder, err := DecryptCredential(ctx, name, service)
	if err != nil {
		return err
	}
	defer func() {
		removeErr := os.RemoveAll(folder)
		if removeErr == nil {
			return
		}
		if child := ChildStatus(0); errors.As(err, &child) {
			err = nil
		}
		err = errors.Join(err,
			fmt.Errorf("cannot remove the decrypted PIN: %w: remove it by hand: rm -r %s", removeErr, folder))
	}()
	return do(folder)
}

// DecryptCredential creates a folder like the one that systemd gives to the service. Only the service's user can read
// it. The caller removes it.
func DecryptCredential(ctx context.Context, name string, service User) (folder string, err error) {
	pin, err := DecryptedCredential(ctx, name)
	if err != nil {
		return "", err
	}
	parent := "/run"
	if _, err := os.Stat(parent); err != nil {
		parent = ""
	}
	if folder, err = os.MkdirTemp(parent, "attestd-credentials-"); err != nil {
		return "", err
	}
	path := filepath.Join(folder, name)
	err = errors.Join(os.WriteFile(path, pin, 0o400), os.Chown(path, int(service.UID), int(service.GID)),
		os.Chown(folder, int(service.UID), int(service.GID)))
	if err != nil {
		return "", errors.Join(err, os.RemoveAll(folder))
	}
	return folder, nil
}

// DecryptedCredential returns the content of a credential of the service. Only root can decrypt it.
func DecryptedCredential(ctx context.Context, name string) ([]byte, error) {
	encrypted := CredentialPath(name)
	content, err := SystemdCreds(ctx, nil, "decrypt", "--name="+name, encrypted, "-")
	if err != nil {
		return nil,
			fmt.Errorf(
				"cannot decrypt the PIN, which is the credential %q of the service in %s: run the command as root: %w",
				name, encrypted, err)
	}
	return content, nil
}

// SystemdCreds runs systemd-creds(1) and returns its standard output.
func SystemdCreds(ctx context.Context, stdin []byte, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "systemd-creds", args...)
	var stderr bytes.Buffer
	cmd.Stdin, cmd.Stderr = bytes.NewReader(stdin), &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("systemd-creds %s: %w: %s", args[0], err, bytes.TrimSpace(stderr.Bytes()))
	}
	return out, nil
}

// ChildStatus is the exit status of a child process, which has printed its error.
type ChildStatus int

func (s ChildStatus) Error() string { return fmt.Sprintf("exit status %d", int(s)) }

// PassOn turns a child's exit status into ChildStatus.
func PassOn(err error) error {
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() > 0 {
		return ChildStatus(exit.ExitCode())
	}
	return err
}
