package daemon

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/attestd/attestd/appliance/config"
	"github.com/attestd/attestd/appliance/files"
	"github.com/attestd/attestd/appliance/policy"
)

// RulesFile is the name of the file in data_dir with the rules that were in effect last or that an operator confirmed.
const RulesFile = "rules.json"

// smallPolicy is the number of values below which a policy may lose any number of values. Small policies are written by
// hand.
const smallPolicy = 10

// rules describes the policy files. A member is nil if no such file is configured.
type rules struct {
	Policy    *ruleFile `json:"policy,omitempty"`        // attestation.policy
	Screening *ruleFile `json:"screeningList,omitempty"` // attestation.screening_list
}

// ruleFile describes a file as it was read.
type ruleFile struct {
	SHA256  string `json:"sha256"`
	Entries int    `json:"entries"` // number of values of a policy, or of addresses of a screening list
}

func rulesOf(p *policy.Policy) (r rules) {
	if p == nil {
		return r
	}
	if p.Version != "" {
		r.Policy = &ruleFile{p.Version, p.Entries}
	}
	if s := p.Screening; s != nil {
		r.Screening = &ruleFile{s.Version(), s.Len()}
	}
	return r
}

func (r rules) equal(other rules) bool {
	return r.Policy.same(other.Policy) && r.Screening.same(other.Screening)
}

func (f *ruleFile) same(other *ruleFile) bool { return f.hash() == other.hash() }

func (f *ruleFile) hash() string {
	if f == nil {
		return ""
	}
	return f.SHA256
}

// lostMost reports whether other has fewer than half of the entries.
func (f *ruleFile) lostMost(other *ruleFile) bool { return f != nil && 2*other.Entries < f.Entries }

// Confirmed are the losses of rules that an operator has confirmed.
type Confirmed struct {
	Empty   bool // a file without any rule
	Shorter bool // a file with fewer than half of its former entries
}

// ConfirmRules makes the next reload or start accept the configured files although they have lost rules.
func ConfirmRules(c *config.Config, confirmed Confirmed) error {
	last, err := readRules(c.DataDir)
	if err != nil {
		return err
	}
	p, err := ReadPolicy(c)
	if err != nil {
		return err
	}
	if err := last.check(c, p, confirmed); err != nil {
		return err
	}
	return rulesOf(p).write(c.DataDir)
}

// read reads the policy and the screening list, and refuses files that seem to have lost a part.
func (r rules) read(c *config.Config) (*policy.Policy, error) {
	p, err := ReadPolicy(c)
	if err != nil {
		return nil, err
	}
	return p, r.check(c, p, Confirmed{})
}

// check compares a policy with the rules that were in effect before.
func (r rules) check(c *config.Config, p *policy.Policy, confirmed Confirmed) error {
	var failures []error
	next := rulesOf(p)
	refuse := func(setting, path, what, flag string) {
		failures = append(failures,
			fmt.Errorf("%s: %s %s. If this is intended: attestd reload %s", setting, path, what, flag))
	}
	if n := next.Policy; n != nil && !n.same(r.Policy) {
		switch name, path := "attestation.policy", c.Attestation.Policy; {
		case p.Blank && !confirmed.Empty:
			refuse(name, path, "is empty and would refuse no request; a file with only a comment is accepted",
				"--allow-empty")
		case !p.Blank && !confirmed.Shorter && r.Policy != nil && r.Policy.Entries >= smallPolicy &&
			r.Policy.lostMost(n):
			refuse(name, path, fmt.Sprintf("has %d values, and had %d before", n.Entries, r.Policy.Entries),
				"--allow-shorter")
		}
	}
	if n := next.Screening; n != nil && !n.same(r.Screening) {
		switch name, path := "attestation.screening_list", c.Attestation.ScreeningList; {
		case n.Entries == 0 && !confirmed.Empty:
			refuse(name, path, "has no addresses and would screen none", "--allow-empty")
		case n.Entries > 0 && !confirmed.Shorter && r.Screening.lostMost(n):
			refuse(name, path, fmt.Sprintf("has %d addresses, and had %d before", n.Entries, r.Screening.Entries),
				"--allow-shorter")
		}
	}
	return errors.Join(failures...)
}

// readRules reads RulesFile. It returns zero rules if the file does not exist.
func readRules(dataDir string) (r rules, err error) {
	path := filepath.Join(dataDir, RulesFile)
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return r, nil
	}
	if err != nil {
		return r, err
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&r); err != nil {
		return rules{},
			fmt.Errorf("cannot read %s: %w. Check the policy and the screening list, then remove this file", path, err)
	}
	return r, nil
}

// write replaces RulesFile if its content differs.
func (r rules) write(dataDir string) error {
	if last, err := readRules(dataDir); err == nil && last.equal(r) {
		return nil
	}
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if err := files.Write(filepath.Join(dataDir, RulesFile), append(text, '\n'), 0o600); err != nil {
		return fmt.Errorf("save the sizes of the policy and the screening list: %w", err)
	}
	return files.HandOver(dataDir, RulesFile)
}
