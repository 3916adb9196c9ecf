package hsmtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
	"unsafe"
)

// toolTime bounds one run of the compiler or of go.
const toolTime = 2 * time.Minute

// shared are the compiler options for a library.
var shared = []string{"-shared", "-fPIC"}

// compile compiles a C source to a program, or with shared to a library.
func compile(source []byte, options ...string) ([]byte, error) {
	dir, err := os.MkdirTemp("", "attestd-module-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	file := filepath.Join(dir, "module.c")
	if err := os.WriteFile(file, source, 0o600); err != nil {
		return nil, err
	}
	made := filepath.Join(dir, "made")
	options = append([]string{"-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-o", made, file}, options...)
	ctx, cancel := context.WithTimeout(context.Background(), toolTime)
	defer cancel()
	cc := exec.CommandContext(ctx, "cc", append(options, "-ldl", "-lpthread")...)
	if text, err := cc.CombinedOutput(); err != nil {
		return nil, errors.Join(fmt.Errorf("compile C for tests (`make deps` installs a compiler): %w", err),
			errors.New(string(text)))
	}
	return os.ReadFile(made)
}

// mapFile creates a file that this process and a module share, and maps it for the life of the process.
func mapFile(path string, size uintptr) (unsafe.Pointer, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if err := file.Truncate(int64(size)); err != nil {
		return nil, err
	}
	mapped, err := syscall.Mmap(int(file.Fd()), 0, int(size), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	return unsafe.Pointer(&mapped[0]), nil
}
