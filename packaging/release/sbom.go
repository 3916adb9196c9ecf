package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"debug/buildinfo"
	"debug/elf"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
	"github.com/google/uuid"
)

// writeSBOM writes the components of a program. The Go linker recorded the modules in the program, and the bundler
// recorded the npm packages in the bundles' folders. So the list has the shipped versions, not the ones that go.mod and
// package.json would allow.
func writeSBOM(ctx context.Context, w io.Writer, program string, bundles []string, version string,
	date time.Time) error {
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		return err
	}
	content, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	parts, err := components(ctx, program, info, bundles)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(content)
	self := subject(info, version, sum)
	refs := make([]string, len(parts))
	for i, p := range parts {
		refs[i] = p.BOMRef
	}
	document := cdx.NewBOM()
	document.SerialNumber = "urn:uuid:" +
		uuid.NewHash(sha256.New(), uuid.NameSpaceURL, append([]byte(self.PackageURL), sum[:]...), 8).String()
	document.Metadata = &cdx.Metadata{Timestamp: date.Format(time.RFC3339), Component: self}
	document.Components = &parts
	document.Dependencies = &[]cdx.Dependency{{Ref: self.BOMRef, Dependencies: &refs}}
	var out bytes.Buffer
	if err := cdx.NewBOMEncoder(&out, cdx.BOMFileFormatJSON).SetPretty(true).SetEscapeHTML(false).EncodeVersion(
		document, cdx.SpecVersion1_6); err != nil {
		return err
	}
	_, err = out.WriteTo(w)
	return err
}

// subject returns the component of the program itself.
func subject(info *debug.BuildInfo, version string, sum [sha256.Size]byte) *cdx.Component {
	purl := "pkg:golang/" + info.Main.Path + "@" + strings.ReplaceAll(version, "+", "%2B")
	var settings []cdx.Property
	for _, s := range info.Settings {
		if strings.HasPrefix(s.Key, "GO") || strings.HasPrefix(s.Key, "-") || strings.HasPrefix(s.Key, "CGO_") {
			settings = append(settings, cdx.Property{Name: "go:build:" + s.Key, Value: s.Value})
		}
	}
	return &cdx.Component{
		BOMRef: purl, Type: cdx.ComponentTypeApplication, Name: info.Main.Path, Version: version, PackageURL: purl,
		Licenses: licensed("Apache-2.0"), Hashes: hashed(cdx.HashAlgoSHA256, sum[:]), Properties: &settings,
	}
}

// components returns the components of a program, sorted by name and without duplicates.
func components(ctx context.Context, program string, info *debug.BuildInfo, bundles []string) ([]cdx.Component, error) {
	parts := []cdx.Component{library("pkg:golang/std@"+strings.TrimPrefix(info.GoVersion, "go"),
		"std", strings.TrimPrefix(info.GoVersion, "go"), "BSD-3-Clause")}
	cache, err := goEnv(ctx, "GOMODCACHE")
	if err != nil {
		return nil, err
	}
	for _, m := range info.Deps {
		c, err := moduleComponent(cache, m)
		if err != nil {
			return nil, err
		}
		parts = append(parts, c)
	}
	bundled, err := bundledPackages(bundles)
	if err != nil {
		return nil, err
	}
	for _, p := range bundled {
		parts = append(parts, p.component())
	}
	libraries, err := sharedLibraries(program)
	if err != nil {
		return nil, err
	}
	parts = append(parts, libraries...)
	slices.SortFunc(parts, func(a, b cdx.Component) int { return cmp.Compare(a.BOMRef, b.BOMRef) })
	return parts, nil
}

func library(purl, name, version, license string) cdx.Component {
	return cdx.Component{BOMRef: purl, Type: cdx.ComponentTypeLibrary, Name: name, Version: version, PackageURL: purl,
		Licenses: licensed(license)}
}

// licensed converts an SPDX identifier or expression.
func licensed(spdx string) *cdx.Licenses {
	if strings.Contains(spdx, " ") {
		return &cdx.Licenses{{Expression: spdx}}
	}
	return &cdx.Licenses{{License: &cdx.License{ID: spdx}}}
}

func hashed(algorithm cdx.HashAlgorithm, sum []byte) *[]cdx.Hash {
	return &[]cdx.Hash{{Algorithm: algorithm, Value: hex.EncodeToString(sum)}}
}

func moduleComponent(cache string, m *debug.Module) (cdx.Component, error) {
	if m.Replace != nil {
		m = m.Replace
	}
	dir, err := moduleDir(cache, m)
	if err != nil {
		return cdx.Component{}, err
	}
	license, err := moduleLicense(m.Path, dir)
	if err != nil {
		return cdx.Component{}, err
	}
	c := library("pkg:golang/"+m.Path+"@"+strings.ReplaceAll(m.Version, "+", "%2B"), m.Path, m.Version, license)
	// go.sum's hash: SHA-256 over the hashes of the module's files (golang.org/x/mod/sumdb/dirhash).
	if sum, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(m.Sum, "h1:")); err == nil &&
		len(sum) == sha256.Size {
		c.Hashes = hashed(cdx.HashAlgoSHA256, sum)
	}
	return c, nil
}

// sharedLibraries returns the shared libraries that the program needs from the operating system.
func sharedLibraries(program string) ([]cdx.Component, error) {
	f, err := elf.Open(program)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // opened for reading only
	names, err := f.ImportedLibraries()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", program, err)
	}
	all := make([]cdx.Component, len(names))
	for i, name := range names {
		all[i] = cdx.Component{
			BOMRef: "lib:" + name, Type: cdx.ComponentTypeLibrary, Name: name,
			Properties: &[]cdx.Property{{Name: "attestd:provided-by", Value: "the operating system"}},
		}
	}
	return all, nil
}
