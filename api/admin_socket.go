package api

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// ErrSocketInUse means that another daemon listens on the admin socket.
var ErrSocketInUse = errors.New("another daemon uses this socket")

// ListenAdmin listens on a Unix socket that only its owner can open (mode 0600). It replaces a stale socket, returns
// ErrSocketInUse if a daemon listens there, and refuses to replace any other file.
//
// If refuse returns an error for a connecting process, the connection is closed. refuse may be nil.
//
// The socket is created in a directory of mode 0700 and renamed once it has its mode, so other users cannot connect at
// any moment. A umask would work too, but it applies to all threads of the process.
func ListenAdmin(path string, refuse func(pid int) error) (net.Listener, error) {
	if err := clearStale(path); err != nil {
		return nil, fmt.Errorf("admin socket %s: %w", path, err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil { // normally systemd has made it
		return nil, fmt.Errorf("admin socket %s: %w", path, err)
	}
	ln, err := bindPrivately(path, refuse)
	if err != nil {
		return nil, fmt.Errorf("admin socket %s: %w", path, err)
	}
	return ln, nil
}

// clearStale returns nil if a new socket may replace the file at path.
func clearStale(path string) error {
	found, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case found.Mode().Type() != fs.ModeSocket:
		return errors.New("the path exists but is not a socket: remove the file")
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	c, err := new(net.Dialer).DialContext(ctx, "unix", path)
	if err == nil {
		_ = c.Close()
		return ErrSocketInUse
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return err
	}
	return nil // the rename replaces the stale socket
}

func bindPrivately(path string, refuse func(pid int) error) (net.Listener, error) {
	// The directory's name is short because a socket's path is limited to 107 bytes.
	dir, err := os.MkdirTemp(filepath.Dir(path), ".s")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	private := filepath.Join(dir, "s")
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: private, Net: "unix"})
	if err != nil {
		return nil, err
	}
	ln.SetUnlinkOnClose(false)
	made, err := placeSocket(private, path)
	if err != nil {
		_ = ln.Close()
		return nil, err
	}
	return &adminListener{UnixListener: ln, path: path, made: made, refuse: refuse}, nil
}

func placeSocket(private, path string) (fs.FileInfo, error) {
	if err := os.Chmod(private, 0o600); err != nil {
		return nil, err
	}
	if err := os.Rename(private, path); err != nil {
		return nil, err
	}
	return os.Lstat(path)
}

// adminListener removes its socket when it is closed, unless another socket has replaced it.
type adminListener struct {
	*net.UnixListener
	path   string
	made   fs.FileInfo
	refuse func(pid int) error
}

func (l *adminListener) Accept() (net.Conn, error) {
	for {
		c, err := l.AcceptUnix()
		if err != nil || l.refuse == nil {
			return c, err
		}
		if peerProcess(c, l.refuse) == nil {
			return c, nil
		}
		_ = c.Close()
	}
}

func (l *adminListener) Close() error {
	if now, err := os.Lstat(l.path); err == nil && os.SameFile(now, l.made) {
		_ = os.Remove(l.path)
	}
	return l.UnixListener.Close()
}
