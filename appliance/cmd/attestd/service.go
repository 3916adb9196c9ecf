package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"

	"github.com/attestd/attestd/appliance/config"
	"github.com/attestd/attestd/hsm"
)

// Where the PIN is kept as a credential, encrypted to this machine (systemd-creds(1)).
const (
	encryptedCredentials = "/etc/credstore.encrypted"
	credentialPrefix     = "attestd." // attestd.pin is the credential pin
)

// credentialPath is where the unit looks for a credential.
func credentialPath(name string) string {
	return filepath.Join(encryptedCredentials, credentialPrefix+name)
}

// identity is a user, as the kernel knows it.
type identity struct {
	name   string
	uid    uint32
	gid    uint32
	groups []uint32 // gid and the supplementary ones
}

func (i identity) isRoot() bool { return i.uid == 0 }

func (i identity) in(gid uint32) bool { return slices.Contains(i.groups, gid) }

// serviceUser is as whom the daemon runs: the owner of data_dir, else whoever asks.
func serviceUser(dataDir string) (identity, error) {
	uid := os.Geteuid()
	stat, err := os.Stat(dataDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return identity{}, fmt.Errorf("data_dir: %w", err)
	}
	if err == nil {
		uid = int(stat.Sys().(*syscall.Stat_t).Uid)
	}
	if u, err := user.LookupId(strconv.Itoa(uid)); err == nil {
		return identityOf(u)
	}
	gid := uint32(os.Getegid()) // a container may know a user by number only
	return identity{name: strconv.Itoa(uid), uid: uint32(uid), gid: gid, groups: []uint32{gid}}, nil
}

func identityOf(u *user.User) (id identity, err error) {
	number := func(s string) uint32 {
		n, parseErr := strconv.ParseUint(s, 10, 32)
		err = errors.Join(err, parseErr)
		return uint32(n)
	}
	id = identity{name: u.Username, uid: number(u.Uid), gid: number(u.Gid)}
	id.groups = []uint32{id.gid}
	others, lookupErr := u.GroupIds()
	if lookupErr != nil {
		return id, errors.Join(err, lookupErr)
	}
	for _, g := range others {
		if n := number(g); !id.in(n) {
			id.groups = append(id.groups, n)
		}
	}
	return id, err
}

// atToken reruns this program, with these arguments, as the user as whom the daemon runs, and with the PIN where it
// is a credential. It returns done when it has: then err is how that ended, a childStatus where the child has told why,
// and the caller has nothing more to do.
//
// What a library of an HSM writes, such as SoftHSM's token files, must belong to the daemon; what root writes there the
// daemon cannot open. And only the daemon's own process is given a credential by systemd; root can decrypt it.
func (a *app) atToken(ctx context.Context, c *config.Config, stdin io.Reader, args ...string) (done bool, err error) {
	uri, err := hsm.ParseURI(c.HSM.URI)
	if err != nil {
		return false, fmt.Errorf("hsm.uri: %w", err)
	}
	owner, err := serviceUser(c.DataDir)
	if err != nil {
		return false, err
	}
	_, given := a.source.Lookup(hsm.CredentialsVariable)
	needsCredential := uri.Credential() != "" && !given
	if os.Geteuid() != 0 || owner.isRoot() && !needsCredential {
		return false, nil
	}
	cmd, err := a.self(ctx, args...)
	if err != nil {
		return true, err
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, a.out, a.err
	if !owner.isRoot() {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: owner.uid, Gid: owner.gid, Groups: owner.groups}}
		cmd.Dir = "/"
	}
	if !needsCredential {
		return true, passOn(cmd.Run())
	}
	return true, withCredential(ctx, uri.Credential(), owner, func(folder string) error {
		cmd.Env = append(cmd.Env, hsm.CredentialsVariable+"="+folder)
		return passOn(cmd.Run())
	})
}

// withCredential calls do with a folder that holds the decrypted credential, and then removes the folder. An error of that
// is never hidden by the exit status of a child, which has printed its own.
func withCredential(ctx context.Context, name string, service identity, do func(folder string) error) (err error) {
	folder, err := decryptCredential(ctx, name, service)
	if err != nil {
		return err
	}
	defer func() {
		removeErr := os.RemoveAll(folder)
		if removeErr == nil {
			return
		}
		if child := childStatus(0); errors.As(err, &child) {
			err = nil
		}
		err = errors.Join(err, fmt.Errorf("remove the decrypted PIN: %w: remove the folder %s by hand", removeErr, folder))
	}()
	return do(folder)
}

// self is this program with the configuration in effect.
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

// decryptCredential makes a folder like the one that systemd gives to the service. Only the service's user can read it,
// and the caller removes it.
func decryptCredential(ctx context.Context, name string, service identity) (folder string, err error) {
	encrypted := credentialPath(name)
	pin, err := runSystemdCreds(ctx, nil, "decrypt", "--name="+name, encrypted, "-")
	if err != nil {
		return "", fmt.Errorf("the PIN is the credential %q of the service; as root it can be decrypted where it is in %s: %w", name, encrypted, err)
	}
	parent := "/run"
	if _, err := os.Stat(parent); err != nil {
		parent = ""
	}
	if folder, err = os.MkdirTemp(parent, "attestd-credentials-"); err != nil {
		return "", err
	}
	path := filepath.Join(folder, name)
	err = errors.Join(os.WriteFile(path, pin, 0o400), os.Chown(path, int(service.uid), int(service.gid)), os.Chown(folder, int(service.uid), int(service.gid)))
	if err != nil {
		return "", errors.Join(err, os.RemoveAll(folder))
	}
	return folder, nil
}

// runSystemdCreds runs systemd-creds(1) and returns its standard output.
func runSystemdCreds(ctx context.Context, stdin []byte, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "systemd-creds", args...)
	var stderr bytes.Buffer
	cmd.Stdin, cmd.Stderr = bytes.NewReader(stdin), &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("systemd-creds %s: %w: %s", args[0], err, bytes.TrimSpace(stderr.Bytes()))
	}
	return out, nil
}

// childStatus is the exit status of a child of this program, passed on: the child has told why.
type childStatus int

func (s childStatus) Error() string { return fmt.Sprintf("exit status %d", int(s)) }

// passOn turns a child's exit status into this program's.
func passOn(err error) error {
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() > 0 {
		return childStatus(exit.ExitCode())
	}
	return err
}
