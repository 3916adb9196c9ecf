package service

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

// Do runs do as the user where root runs this program: what the user has planted in a folder of its own, such as a link to a file
// of root's, then leads no further than the user may go. Files that are made are the user's. The whole process changes meanwhile
// (seteuid(2)), so that this is for commands, and for a daemon that has not begun to serve.
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

// become changes whom the kernel asks. Only root may, so it is root first.
func become(user, group int, groups []int) error {
	err := syscall.Seteuid(0)
	if err == nil {
		err = errors.Join(syscall.Setgroups(groups), syscall.Setegid(group), syscall.Seteuid(user))
	}
	if err != nil {
		return fmt.Errorf("work as user %d: %w", user, err)
	}
	return nil
}

// In is as whom root works in a folder: the user itself in its own folders, else root.
func (i User) In(folder string) User {
	stat, err := os.Stat(folder)
	if err == nil && stat.Sys().(*syscall.Stat_t).Uid == i.UID {
		return i
	}
	return User{UID: uint32(os.Geteuid())}
}
