package main

import (
	"compress/gzip"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// npmPackage is one that the playground's bundle contains, as api/graphiql/build.mjs lists it in packages.json.
type npmPackage struct {
	Name      string `json:"name"`
	Version   string `json:"version"`
	License   string `json:"license"`   // SPDX
	Integrity string `json:"integrity"` // of the archive in the registry: sha512- and base64
}

// bundledPackages returns none where the playground was not built.
func bundledPackages(dist string) (packages []npmPackage, err error) {
	if _, err := os.Stat(filepath.Join(dist, "index.html")); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	file := filepath.Join(dist, "packages.json")
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("the playground was built by an older build.mjs, build it again: %w", err)
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
	if sum, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(p.Integrity, "sha512-")); err == nil && len(sum) == sha512.Size {
		c.Hashes = hashed(cdx.HashAlgoSHA512, sum)
	}
	return c
}

// writeBundledNotices writes the licenses of the packages in the playground, which its bundle has in one text.
func writeBundledNotices(w io.Writer, dist string) error {
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
	defer func() { _ = f.Close() }() // it is only read
	text, err := gzip.NewReader(f)
	if err != nil {
		return fmt.Errorf("%s: %w", files[0], err)
	}
	rule := strings.Repeat("=", 100)
	if _, err := fmt.Fprintf(w, "\n%s\nThe playground is bundled from these packages of npm, each under its own terms.\n%s\n\n", rule, rule); err != nil {
		return err
	}
	_, err = io.Copy(w, text)
	return err
}
