package main

import (
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"time"
)

// Names in an in-toto statement with SLSA provenance (slsa.dev/spec/v1.0/provenance).
const (
	statementType  = "https://in-toto.io/Statement/v1"
	provenanceType = "https://slsa.dev/provenance/v1"
	repository     = "https://github.com/attestd/attestd"
	buildType      = repository + "/blob/main/packaging/build.sh"
)

// resource is a ResourceDescriptor of in-toto.
type resource struct {
	Name   string            `json:"name,omitempty"`
	URI    string            `json:"uri,omitempty"`
	Digest map[string]string `json:"digest,omitempty"`
}

// statement is an in-toto statement. It is not signed: whoever signs the release signs it, too.
type statement struct {
	Type          string     `json:"_type"`
	Subject       []resource `json:"subject"`
	PredicateType string     `json:"predicateType"`
	Predicate     provenance `json:"predicate"`
}

type provenance struct {
	BuildDefinition struct {
		BuildType            string            `json:"buildType"`
		ExternalParameters   map[string]string `json:"externalParameters"`
		InternalParameters   map[string]string `json:"internalParameters"` // the settings of the Go toolchain
		ResolvedDependencies []resource        `json:"resolvedDependencies"`
	} `json:"buildDefinition"`
	RunDetails struct {
		Builder struct {
			ID string `json:"id"`
		} `json:"builder"`
		Metadata struct {
			FinishedOn time.Time `json:"finishedOn"`
		} `json:"metadata"`
	} `json:"runDetails"`
}

// writeProvenance says from which commit and with which toolchain a program, and the files made from it, were built.
// date is the commit's, so that the same commit gives the same bytes.
func writeProvenance(w io.Writer, program string, files []string, version, commit string, date time.Time) error {
	if raw, err := hex.DecodeString(commit); err != nil || len(raw) != 20 {
		return errors.New("provenance: -commit must be 40 hex digits")
	}
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		return err
	}
	s := statement{Type: statementType, PredicateType: provenanceType}
	for _, file := range append([]string{program}, files...) {
		content, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		sum := sha256.Sum256(content)
		s.Subject = append(s.Subject, resource{Name: filepath.Base(file),
			Digest: map[string]string{"sha256": hex.EncodeToString(sum[:])}})
	}
	d := &s.Predicate.BuildDefinition
	d.BuildType = buildType
	d.ExternalParameters = map[string]string{"repository": repository, "commit": commit, "version": version}
	d.InternalParameters = map[string]string{"go": info.GoVersion}
	for _, setting := range info.Settings {
		d.InternalParameters[setting.Key] = setting.Value
	}
	d.ResolvedDependencies = []resource{{URI: "git+" + repository, Digest: map[string]string{"gitCommit": commit}},
		{URI: "https://go.dev/dl/#" + info.GoVersion}}
	s.Predicate.RunDetails.Builder.ID = buildType
	s.Predicate.RunDetails.Metadata.FinishedOn = date
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(s)
}
