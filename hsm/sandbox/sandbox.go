// Package sandbox confines a process before it loads an HSM's PKCS#11 library, which may be malicious. Landlock
// (landlock(7)) limits the files that the process can open, and seccomp (seccomp(2)) the sockets that it can make. A
// mark lets the daemon recognise the process and its descendants at the admin socket. None of the three can be undone.
package sandbox

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/landlock-lsm/go-landlock/landlock"
	landlocksys "github.com/landlock-lsm/go-landlock/landlock/syscall"
)

// Network is the kind of sockets that a library may make.
type Network string

// The networks, from the tightest to the loosest. Auto chooses one by the library; an unknown library gets Any.
const (
	Auto Network = "auto"
	None Network = "none" // no socket
	Unix Network = "unix" // AF_UNIX, such as the socket of a p11-kit server
	Any  Network = "any"
)

// Rules are the resources that a library may use beyond the files of the system.
type Rules struct {
	Paths     []string `json:"paths"`     // existing files and folders to read and write, as far as the user may
	Network   Network  `json:"network"`   // the zero value means Auto
	Protected []string `json:"protected"` // files and folders that no path may cover
}

// Level describes how the process is confined.
type Level struct {
	Landlock int // version of the kernel's Landlock ABI; 0: none, and the library may open any file that its user may
	Network  Network
	Paths    []string // the paths that the library may write
}

// Enter confines this process permanently to the needs of a library. The library's path is absolute. If the kernel has
// no Landlock, the other restrictions still apply, and Level.Landlock is 0.
func Enter(library string, r Rules) (Level, error) {
	level := Level{Network: r.network(library), Paths: append(slices.Clone(r.Paths), libraryPaths(library)...)}
	fileRules, err := r.files(library, level)
	if err != nil {
		return level, err
	}
	if err := mark(); err != nil {
		return level, err
	}
	if err := restrictSockets(level.Network); err != nil {
		return level, err
	}
	if level.Landlock, err = landlocksys.LandlockGetABIVersion(); err != nil {
		level.Landlock = 0
		return level, nil //nolint:nilerr // ENOSYS, EOPNOTSUPP, or a system-call filter that does not know it
	}
	c := landlock.V11
	if level.Network == Any {
		c.HandledAccessNet = 0
	}
	if err := c.BestEffort().Restrict(fileRules...); err != nil {
		return level, fmt.Errorf("confine the HSM's library: %w", err)
	}
	return level, nil
}

func (r Rules) network(library string) Network {
	if n := cmp.Or(r.Network, Auto); n != Auto {
		return n
	}
	return needsOf(library).network
}

// files returns Landlock's rules for files.
func (r Rules) files(library string, level Level) (rules []landlock.Rule, _ error) {
	real := resolve(library) // loading will report a missing file
	readable := append(systemPaths(), real)
	// libraries may load others of their vendor from the same folder
	if folder := filepath.Dir(real); r.covered(folder) == "" {
		readable = append(readable, folder)
	}
	for _, path := range readable {
		rule, err := r.file(path, landlock.ROFiles, landlock.RODirs, level)
		switch {
		// it cannot be opened, and needs no rule
		case errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission):
		case err != nil:
			return nil, err
		default:
			rules = append(rules, rule)
		}
	}
	for _, path := range append(slices.Clone(level.Paths), devices()...) {
		rule, err := r.file(path, landlock.RWFiles, landlock.RWDirs, level)
		switch {
		case errors.Is(err, fs.ErrNotExist) && !slices.Contains(r.Paths, path):
		case err != nil:
			return nil, fmt.Errorf("%w; hsm.worker_paths lists the paths that the HSM's library may use", err)
		default:
			rules = append(rules, rule.WithIoctlDev())
		}
	}
	return rules, nil
}

func (r Rules) file(path string, file, folder func(...string) landlock.FSRule, level Level) (landlock.FSRule, error) {
	stat, err := os.Stat(path)
	if err != nil {
		return landlock.FSRule{}, fmt.Errorf("allow the HSM's library to use %s: %w", path, err)
	}
	if covered := r.covered(path); covered != "" {
		return landlock.FSRule{}, fmt.Errorf("cannot allow the HSM's library to use %s, because it contains %s: move "+
			"one of them", path, covered)
	}
	rule := file(path)
	if stat.IsDir() {
		rule = folder(path)
	}
	if level.Network != None {
		rule = rule.WithResolveUnix()
	}
	return rule, nil
}

// covered returns the first protected path at or below path, or "".
func (r Rules) covered(path string) string {
	folder := resolve(path)
	for _, p := range r.Protected {
		if inside, err := filepath.Rel(folder, resolve(p)); err == nil && inside != ".." &&
			!strings.HasPrefix(inside, "../") {
			return p
		}
	}
	return ""
}

// resolve follows symbolic links as far as the path exists.
func resolve(path string) string {
	if absolute, err := filepath.Abs(path); err == nil {
		path = absolute
	}
	if real, err := filepath.EvalSymlinks(path); err == nil {
		return real
	}
	if folder := filepath.Dir(path); folder != path {
		return filepath.Join(resolve(folder), filepath.Base(path))
	}
	return path
}
