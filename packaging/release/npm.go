package main

import (
	"compress/gzip"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// npmPackage is an npm package that is bundled into the program. The build.mjs of api/graphiql and of api/console list
// these packages in packages.json.
type npmPackage struct {
	Name      string `json:"name"`
	Version   string `json:"version"`
	License   string `json:"license"`   // SPDX
	Integrity string `json:"integrity"` // hash of the archive in the registry: sha512- and base64
}

// bundledPackages returns the packages of all bundles. A bundle that was not built is empty.
func bundledPackages(bundles []string) (packages []npmPackage, err error) {
	for _, dist := range bundles {
		some, err := packagesOf(dist)
		if err != nil {
			return nil, err
		}
		packages = append(packages, some...)
	}
	return packages, nil
}

func packagesOf(dist string) (packages []npmPackage, err error) {
	if built, err := filepath.Glob(filepath.Join(dist, "assets", "*")); err != nil || len(built) == 0 {
		return nil, err
	}
	file := filepath.Join(dist, "packages.json")
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("it was built by an older build.mjs, build it again: %w", err)
	}
	if err := json.Unmarshal(text, &packages); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	for _, p := range packages {
		if p.Name == "" || p.Version == "" || p.License == "" {
			return nil, fmt.Errorf("%s: a package without name, version or license: %+v", file, p)
		}
	}
	return packages, nil
}

func (p npmPackage) component() cdx.Component {
	c := library("pkg:npm/"+strings.Replace(p.Name, "@", "%40", 1)+"@"+p.Version, p.Name, p.Version, p.License)
	if sum, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(p.Integrity, "sha512-")); err == nil &&
		len(sum) == sha512.Size {
		c.Hashes = hashed(cdx.HashAlgoSHA512, sum)
	}
	return c
}

// writeBundledNotices writes the licenses of the bundled packages. Each bundle has one text with all of them.
func writeBundledNotices(w io.Writer, bundles []string) error {
	for _, dist := range bundles {
		if err := writeNoticesOf(w, dist); err != nil {
			return err
		}
	}
	return nil
}

func writeNoticesOf(w io.Writer, dist string) error {
	files, err := filepath.Glob(filepath.Join(dist, "assets", "licenses-*.txt.gz"))
	if err != nil || len(files) == 0 {
		return err
	}
	if len(files) > 1 {
		return fmt.Errorf("%s: licenses of more than one bundle: %v", dist, files)
	}
	f, err := os.Open(files[0])
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // opened for reading only
	text, err := gzip.NewReader(f)
	if err != nil {
		return fmt.Errorf("%s: %w", files[0], err)
	}
	rule := strings.Repeat("=", 100)
	if _, err := fmt.Fprintf(w,
		"\n%s\nWhat is served to browsers is bundled from these packages of npm, too, each under its own terms.\n%s\n\n", rule, rule); err != nil {
		return err
	}
	_, err = io.Copy(w, text)
	return err
}
