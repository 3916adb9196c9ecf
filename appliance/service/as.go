package service

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

// Do calls do as the user if the process is root. A link that the user has planted in its folder, for example to a file
// of root's, then gives no more access than the user has. New files belong to the user. The change concerns the whole
// process (seteuid(2)), so Do is for commands, and for a daemon before it serves.
func (i User) Do(do func() error) (err error) {
	before := uint32(os.Geteuid())
	if os.Getuid() != 0 || before == i.UID {
		return do()
	}
	groups, err := syscall.Getgroups()
	if err != nil {
		return err
	}
	mine := make([]int, len(i.Groups))
	for n, g := range i.Groups {
		mine[n] = int(g)
	}
	group := os.Getegid()
	defer func() {
		if back := become(int(before), group, groups); back != nil {
			err = errors.Join(err, back)
		}
	}()
	if err := become(int(i.UID), int(i.GID), mine); err != nil {
		return err
	}
	return do()
}

// become changes the effective user and groups. It becomes root first, because only root may do that.
func become(user, group int, groups []int) error {
	err := syscall.Seteuid(0)
	if err == nil {
		err = errors.Join(syscall.Setgroups(groups), syscall.Setegid(group), syscall.Seteuid(user))
	}
	if err != nil {
		return fmt.Errorf("switch to user %d: %w", user, err)
	}
	return nil
}

// In returns the user as which root works in a folder: i in the user's own folders, otherwise root.
func (i User) In(folder string) User {
	stat, err := os.Stat(folder)
	if err == nil && stat.Sys().(*syscall.Stat_t).Uid == i.UID {
		return i
	}
	return User{UID: uint32(os.Geteuid())}
}
