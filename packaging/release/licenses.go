package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"
)

// allowed are the licenses allowed for the dependencies of programs and tests. They are permissive licenses, which
// require their notice to be passed on (see writeNotices), and weak copyleft, which requires only the source of the
// dependency itself. A new license needs a decision and a line here.
var allowed = []string{
	"0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-2-Clause-Views", "BSD-3-Clause", "BlueOak-1.0.0", "CC0-1.0", "ISC", "MIT", "Unlicense", "Zlib",
	"LGPL-3.0-or-later", "MPL-2.0",
	"OFL-1.1", // fonts
}

// checkLicenses writes the license of each Go module of the packages and their tests, and of each npm package in the
// bundles. Its error names each license that is not allowed.
func checkLicenses(ctx context.Context, w io.Writer, packages string, bundles []string) error {
	modules, err := modulesOf(ctx, packages)
	if err != nil {
		return err
	}
	var failures []error
	judge := func(name, license string, err error) {
		if err == nil {
			_, err = fmt.Fprintf(w, "%s\t%s\n", name, license)
		}
		if err == nil {
			err = judgeLicense(name, license)
		}
		failures = append(failures, err)
	}
	for _, m := range modules {
		license, err := moduleLicense(m.Path, m.Dir)
		judge(m.Path+" "+m.Version, license, err)
	}
	bundled, err := bundledPackages(bundles)
	failures = append(failures, err)
	for _, p := range bundled {
		judge(p.Name+" "+p.Version, p.License, nil)
	}
	return errors.Join(failures...)
}

func judgeLicense(name, expression string) error {
	for _, id := range strings.Split(expression, " AND ") {
		if !slices.Contains(allowed, strings.Trim(id, "()")) {
			return fmt.Errorf(
				"%s: its license is %s, which packaging/release/licenses.go does not allow: use another, or decide to allow it there", name, expression)
		}
	}
	return nil
}

// listedModule is a module in the output of 'go list'.
type listedModule struct {
	Path, Version, Dir string
	Main               bool
	Replace            *listedModule
}

// modulesOf returns the modules of the packages and their tests, without this module.
func modulesOf(ctx context.Context, packages string) (modules []listedModule, err error) {
	cmd := exec.CommandContext(ctx, "go", "list", "-deps", "-test", "-json=Module", packages)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w: %s", err, stderr.Bytes())
	}
	seen := make(map[string]bool)
	for list := json.NewDecoder(bytes.NewReader(out)); ; {
		var p struct{ Module *listedModule }
		if err := list.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, err
		}
		if m := p.Module; m != nil && !m.Main && !seen[m.Path] {
			seen[m.Path] = true
			if m.Replace != nil {
				m = m.Replace
			}
			modules = append(modules, *m)
		}
	}
	slices.SortFunc(modules, func(a, b listedModule) int { return strings.Compare(a.Path, b.Path) })
	return modules, nil
}
