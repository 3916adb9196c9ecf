// Package service has the user of the daemon, and the PIN as a credential of systemd (systemd-creds(1)).
package service

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
)

// The PIN as a credential, encrypted to this machine (systemd-creds(1)).
const (
	encryptedCredentials = "/etc/credstore.encrypted"
	credentialPrefix     = "attestd." // the file attestd.pin has the credential pin
)

// CredentialPath returns the path of an encrypted credential of the unit.
func CredentialPath(name string) string {
	return filepath.Join(encryptedCredentials, credentialPrefix+name)
}

// User is a user with the numbers that the kernel uses.
type User struct {
	Name   string
	UID    uint32
	GID    uint32
	Groups []uint32 // GID and the supplementary groups
}

// IsRoot reports whether the user is root.
func (i User) IsRoot() bool { return i.UID == 0 }

func (i User) in(gid uint32) bool { return slices.Contains(i.Groups, gid) }

// UserOf returns the daemon's user: the owner of data_dir or, if that does not exist, the current user.
func UserOf(dataDir string) (User, error) {
	uid := os.Geteuid()
	stat, err := os.Stat(dataDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return User{}, fmt.Errorf("data_dir: %w", err)
	}
	if err == nil {
		uid = int(stat.Sys().(*syscall.Stat_t).Uid)
	}
	if u, err := user.LookupId(strconv.Itoa(uid)); err == nil {
		return FromOS(u)
	}
	gid := uint32(os.Getegid()) // in a container, a user may have no name
	return User{Name: strconv.Itoa(uid), UID: uint32(uid), GID: gid, Groups: []uint32{gid}}, nil
}

// FromOS returns the user with all groups.
func FromOS(u *user.User) (id User, err error) {
	number := func(s string) uint32 {
		n, parseErr := strconv.ParseUint(s, 10, 32)
		err = errors.Join(err, parseErr)
		return uint32(n)
	}
	id = User{Name: u.Username, UID: number(u.Uid), GID: number(u.Gid)}
	id.Groups = []uint32{id.GID}
	others, lookupErr := u.GroupIds()
	if lookupErr != nil {
		return id, errors.Join(err, lookupErr)
	}
	for _, g := range others {
		if n := number(g); !id.in(n) {
			id.Groups = append(id.Groups, n)
		}
	}
	return id, err
}

// Reads reports whether the user may read a file, according to its mode.
func (i User) Reads(owner *syscall.Stat_t, mode fs.FileMode) bool {
	switch {
	case i.IsRoot():
		return true
	case owner.Uid == i.UID:
		return mode&0o400 != 0
	case i.in(owner.Gid):
		return mode&0o040 != 0
	}
	return mode&0o004 != 0
}
