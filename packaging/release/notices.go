package main

import (
	"context"
	"debug/buildinfo"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/google/licensecheck"
	"golang.org/x/mod/module"
)

// licenseFile matches the names of license files in modules. A module without one is an error, because it must not be
// linked.
var licenseFile = regexp.MustCompile(`(?i)^(licen[cs]e|copying|notice|patents)([-._].*)?$`)

// termsFile matches the license files with terms that SPDX lists.
var termsFile = regexp.MustCompile(`(?i)^(licen[cs]e|copying)([-._].*)?$`)

// writeNotices writes the licenses of all modules in a program, of the bundles that it embeds, and of Go itself. These
// licenses require it from each distributor of the program.
func writeNotices(ctx context.Context, w io.Writer, program string, bundles []string) error {
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		return err
	}
	cache, err := goEnv(ctx, "GOMODCACHE")
	if err != nil {
		return err
	}
	root, err := goEnv(ctx, "GOROOT")
	if err != nil {
		return err
	}
	fmt.Fprintf(w,
		"The program attestd is made from its own source (Apache-2.0) and from these modules, each under its own terms.\n"+
			"Their source is at the address that is each one's name, and in Go's module mirror.\n")
	failures := []error{notice(w, "Go "+strings.TrimPrefix(info.GoVersion, "go")+" (standard library and runtime)",
		root)}
	for _, m := range info.Deps {
		dir, err := moduleDir(cache, m)
		if err == nil {
			err = notice(w, m.Path+" "+m.Version, dir)
		}
		failures = append(failures, err)
	}
	return errors.Join(append(failures, writeBundledNotices(w, bundles))...)
}

// moduleDir returns the folder of a module in the module cache.
func moduleDir(cache string, m *debug.Module) (string, error) {
	if m.Replace != nil {
		m = m.Replace
	}
	path, err := module.EscapePath(m.Path)
	if err != nil {
		return "", err
	}
	version, err := module.EscapeVersion(m.Version)
	if err != nil {
		return "", err
	}
	return filepath.Join(cache, filepath.FromSlash(path)+"@"+version), nil
}

// licenses are the licenses that a module's license files do not identify. go-ethereum also contains the license of its
// programs. Only its README says that the library, which is linked here, is under the LGPL. bloomfilter, which only
// tests use, has its license in its source.
//
// psx is dual-licensed under BSD-3-Clause and GPL-2.0. It is used under BSD-3-Clause.
var licenses = map[string]string{
	"github.com/ethereum/go-ethereum": "LGPL-3.0-or-later", "github.com/holiman/bloomfilter/v2": "MIT",
	"kernel.org/pub/linux/libs/security/libcap/psx": "BSD-3-Clause",
}

// moduleLicense returns the SPDX expression for the license files of a module.
func moduleLicense(name, dir string) (string, error) {
	if known := licenses[name]; known != "" {
		return known, nil
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return "", fmt.Errorf("%s: %w", name, err)
	}
	var found []string
	for _, e := range entries {
		if e.IsDir() || !termsFile.MatchString(e.Name()) || filepath.Ext(e.Name()) == ".go" {
			continue
		}
		text, err := fs.ReadFile(os.DirFS(dir), e.Name())
		if err != nil {
			return "", fmt.Errorf("%s: %w", name, err)
		}
		for _, m := range licensecheck.Scan(text).Match {
			if !m.IsURL && !slices.Contains(found, m.ID) {
				found = append(found, m.ID)
			}
		}
	}
	if len(found) == 0 {
		return "", fmt.Errorf("%s: the license in %s is none that is known", name, dir)
	}
	return strings.Join(found, " AND "), nil
}

// notice writes the license files of one folder.
func notice(w io.Writer, name, dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	found := false
	for _, e := range entries {
		if e.IsDir() || !licenseFile.MatchString(e.Name()) || filepath.Ext(e.Name()) == ".go" {
			continue
		}
		text, err := fs.ReadFile(os.DirFS(dir), e.Name())
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		found = true
		rule := strings.Repeat("=", 100)
		if _, err := fmt.Fprintf(w, "\n%s\n%s: %s\n%s\n\n%s\n", rule, name, e.Name(), rule,
			strings.TrimSpace(strings.ReplaceAll(string(text), "\r", ""))); err != nil {
			return err
		}
	}
	if !found {
		return fmt.Errorf("%s: no license in %s", name, dir)
	}
	return nil
}

func goEnv(ctx context.Context, name string) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "env", name).Output()
	return strings.TrimSpace(string(out)), err
}
