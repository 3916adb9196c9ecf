package main

import (
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/attestd/attestd/appliance/config"
	"github.com/attestd/attestd/appliance/service"
	"github.com/attestd/attestd/hsm"
)

// atToken runs this program again with args as the daemon's user, if root runs it. If the PIN is a systemd credential,
// the child gets it. done reports whether the child ran; then err is its result, and the caller returns it. A
// ChildStatus means that the child has printed its error.
//
// An HSM library such as SoftHSM writes token files, which the daemon could not open if they belonged to root. systemd
// gives a credential only to the daemon's own process, but root can decrypt it.
func (a *app) atToken(ctx context.Context, c *config.Config, uri hsm.URI, stdin io.Reader,
	args ...string) (done bool, err error) {
	owner, err := service.UserOf(c.DataDir)
	if err != nil {
		return false, err
	}
	_, given := a.source.Lookup(hsm.CredentialsVariable)
	needsCredential := uri.Credential() != "" && !given
	if os.Geteuid() != 0 || owner.IsRoot() && !needsCredential {
		return false, nil
	}
	cmd, err := a.self(ctx, args...)
	if err != nil {
		return true, err
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, a.out, a.err
	if !owner.IsRoot() {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: owner.UID, Gid: owner.GID,
			Groups: owner.Groups}}
		cmd.Dir = "/"
	}
	if !needsCredential {
		return true, service.PassOn(cmd.Run())
	}
	return true, service.WithCredential(ctx, uri.Credential(), owner, func(folder string) error {
		cmd.Env = append(cmd.Env, hsm.CredentialsVariable+"="+folder)
		return service.PassOn(cmd.Run())
	})
}

// self returns a command that runs this program with the same configuration.
func (a *app) self(ctx context.Context, args ...string) (*exec.Cmd, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, program, append(args, "--output", a.output)...)
	cmd.Env = slices.Clone(os.Environ())
	if path := a.source.Named(); path != "" {
		absolute, err := filepath.Abs(path)
		if err != nil {
			return nil, err
		}
		cmd.Env = append(cmd.Env, "ATTESTD_CONFIG="+absolute)
	}
	return cmd, nil
}
