package main

import (
	"cmp"
	"crypto/sha256"
	"debug/buildinfo"
	"debug/elf"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
)

// The part of CycloneDX 1.6 that a linked Go program needs (ECMA-424).
type (
	bom struct {
		Schema       string       `json:"$schema"`
		Format       string       `json:"bomFormat"`
		SpecVersion  string       `json:"specVersion"`
		SerialNumber string       `json:"serialNumber"`
		Version      int          `json:"version"`
		Metadata     metadata     `json:"metadata"`
		Components   []component  `json:"components"`
		Dependencies []dependency `json:"dependencies"`
	}
	metadata struct {
		Timestamp string    `json:"timestamp"`
		Component component `json:"component"`
	}
	component struct {
		Ref        string     `json:"bom-ref"`
		Type       string     `json:"type"`
		Name       string     `json:"name"`
		Version    string     `json:"version,omitempty"`
		Scope      string     `json:"scope,omitempty"`
		Hashes     []hash     `json:"hashes,omitempty"`
		Licenses   []license  `json:"licenses,omitempty"`
		PURL       string     `json:"purl,omitempty"`
		Properties []property `json:"properties,omitempty"`
	}
	hash struct {
		Algorithm string `json:"alg"`
		Content   string `json:"content"`
	}
	license struct {
		Expression string `json:"expression"`
	}
	property struct {
		Name  string `json:"name"`
		Value string `json:"value"`
	}
	dependency struct {
		Ref       string   `json:"ref"`
		DependsOn []string `json:"dependsOn,omitempty"`
	}
)

// writeSBOM lists what is linked into a program, as the Go linker recorded it in the program itself: what is listed is
// what was shipped, not what go.mod would allow.
func writeSBOM(w io.Writer, program, version string, date time.Time) error {
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		return err
	}
	content, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	libraries, err := sharedLibraries(program)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(content)
	self := component{
		Type: "application", Name: info.Main.Path, Version: version, Licenses: []license{{"Apache-2.0"}},
		PURL:   "pkg:golang/" + info.Main.Path + "@" + version,
		Hashes: []hash{{"SHA-256", hex.EncodeToString(sum[:])}},
	}
	for _, s := range info.Settings {
		if strings.HasPrefix(s.Key, "GO") || strings.HasPrefix(s.Key, "-") || strings.HasPrefix(s.Key, "CGO_") {
			self.Properties = append(self.Properties, property{"go:build:" + s.Key, s.Value})
		}
	}
	self.Ref = self.PURL
	parts := []component{standardLibrary(info.GoVersion)}
	for _, m := range info.Deps {
		parts = append(parts, moduleComponent(m))
	}
	parts = append(parts, libraries...)
	slices.SortFunc(parts, func(a, b component) int { return cmp.Compare(a.Ref, b.Ref) })
	document := bom{
		Schema: "http://cyclonedx.org/schema/bom-1.6.schema.json", Format: "CycloneDX", SpecVersion: "1.6", Version: 1,
		SerialNumber: "urn:uuid:" + uuid.NewHash(sha256.New(), uuid.NameSpaceURL, append([]byte(self.PURL), sum[:]...), 8).String(),
		Metadata:     metadata{date.Format(time.RFC3339), self},
		Components:   parts,
		Dependencies: []dependency{{Ref: self.Ref}},
	}
	for _, p := range parts {
		document.Dependencies[0].DependsOn = append(document.Dependencies[0].DependsOn, p.Ref)
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(document)
}

func standardLibrary(goVersion string) component {
	version := strings.TrimPrefix(goVersion, "go")
	purl := "pkg:golang/std@" + version
	return component{Ref: purl, Type: "library", Name: "std", Version: version, Licenses: []license{{"BSD-3-Clause"}}, PURL: purl}
}

func moduleComponent(m *debug.Module) component {
	if m.Replace != nil {
		m = m.Replace
	}
	purl := "pkg:golang/" + m.Path + "@" + strings.ReplaceAll(m.Version, "+", "%2B")
	c := component{Ref: purl, Type: "library", Name: m.Path, Version: m.Version, PURL: purl}
	// go.sum's hash: SHA-256 over the hashes of the module's files (golang.org/x/mod/sumdb/dirhash).
	if sum, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(m.Sum, "h1:")); err == nil && len(sum) == sha256.Size {
		c.Hashes = []hash{{"SHA-256", hex.EncodeToString(sum)}}
	}
	return c
}

// sharedLibraries are those that the program asks of the machine it runs on.
func sharedLibraries(program string) ([]component, error) {
	f, err := elf.Open(program)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // it was only read
	names, err := f.ImportedLibraries()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", program, err)
	}
	all := make([]component, len(names))
	for i, name := range names {
		all[i] = component{Ref: "lib:" + name, Type: "library", Name: name, Properties: []property{{"attestd:provided-by", "the operating system"}}}
	}
	return all, nil
}
