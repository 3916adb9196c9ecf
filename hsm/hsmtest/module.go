package hsmtest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"unsafe"
)

// compile makes a shared library of a C source.
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
	library := filepath.Join(dir, "module.so")
	options = append([]string{"-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", library, file}, options...)
	cc := exec.Command("cc", append(options, "-ldl", "-lpthread")...)
	if text, err := cc.CombinedOutput(); err != nil {
		return nil, errors.Join(fmt.Errorf("compile a PKCS#11 module for tests (`make deps` installs a compiler): %w", err), errors.New(string(text)))
	}
	return os.ReadFile(library)
}

// mapFile makes a file that this process and a module share, and maps it for as long as the process lives.
func mapFile(path string, size uintptr) (unsafe.Pointer, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if err := file.Truncate(int64(size)); err != nil {
		return nil, err
	}
	shared, err := syscall.Mmap(int(file.Fd()), 0, int(size), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	return unsafe.Pointer(&shared[0]), nil
}
