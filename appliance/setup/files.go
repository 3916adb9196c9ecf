package setup

import (
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/attestd/attestd/appliance/files"
	"github.com/attestd/attestd/appliance/service"
)

func (s *setup) ensureFolder(path string, mode fs.FileMode, owner service.User) error {
	if files.Exists(path) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	s.result.Changes = append(s.result.Changes, path+"  (a folder)")
	return s.service.In(filepath.Dir(path)).Do(func() error {
		if err := os.Mkdir(path, mode); err != nil {
			return err
		}
		return s.own(path, mode, owner)
	})
}

// own sets the owner and the mode of a path that root made in root's folder.
func (s *setup) own(path string, mode fs.FileMode, owner service.User) error {
	if os.Geteuid() == 0 {
		if err := os.Lchown(path, int(owner.UID), int(owner.GID)); err != nil {
			return err
		}
	}
	return os.Chmod(path, mode)
}

// place writes a file in a folder that belongs to root. An existing file keeps its owner and mode.
func (s *setup) place(path string, content []byte, mode fs.FileMode, owner service.User, what string) error {
	if stat, err := os.Stat(path); err == nil {
		if err := s.replaceAs(path, content, stat); err != nil {
			return err
		}
	} else if err := s.write(path, content, mode, owner); err != nil {
		return err
	}
	s.made(path, what)
	return nil
}

// replace overwrites an existing file, without a message.
func (s *setup) replace(path string, content []byte) error {
	stat, err := os.Stat(path)
	if err != nil {
		return err
	}
	return s.replaceAs(path, content, stat)
}

func (s *setup) replaceAs(path string, content []byte, was fs.FileInfo) error {
	owner := was.Sys().(*syscall.Stat_t)
	return s.write(path, content, was.Mode().Perm(), service.User{UID: owner.Uid, GID: owner.Gid})
}

func (s *setup) write(path string, content []byte, mode fs.FileMode, owner service.User) error {
	if err := files.Write(path, content, 0o600); err != nil {
		return err
	}
	return s.own(path, mode, owner)
}
