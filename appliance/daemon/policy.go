package daemon

import (
	"fmt"
	"maps"
	"os"

	"golang.org/x/sys/unix"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/config"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/appliance/policy"
	"github.com/attestd/attestd/store/postgres"
)

// ReadPolicy reads the configured policy and screening list as one policy, nil if there is neither.
func ReadPolicy(c *config.Config) (*policy.Policy, error) {
	screening, err := readScreening(c.Attestation.ScreeningList)
	if err != nil {
		return nil, fmt.Errorf("attestation.screening_list: %w", err)
	}
	if c.Attestation.Policy == "" {
		if screening == nil {
			return nil, nil
		}
		return &policy.Policy{Screening: screening}, nil
	}
	p, err := ReadPolicyFile(c.Attestation.Policy)
	if err != nil {
		return nil, fmt.Errorf("attestation.policy: %w", err)
	}
	p.Screening = screening
	return p, nil
}

// ReadPolicyFile reads a policy, without a screening list.
func ReadPolicyFile(path string) (*policy.Policy, error) {
	f, err := openRules(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	p, err := policy.Read(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return p, nil
}

// readScreening reads the list of screened addresses, nil for an empty path.
func readScreening(path string) (*policy.Screening, error) {
	if path == "" {
		return nil, nil
	}
	f, err := openRules(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	list, err := policy.ParseScreening(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return list, nil
}

// openRules opens a regular file. It does not block on a named pipe.
func openRules(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	found, err := f.Stat()
	if err == nil && !found.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file", path)
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// govern puts a policy into effect.
func (r *running) govern(p *policy.Policy) {
	r.attestor.Govern(p)
	next := rulesOf(p)
	r.governed.Store(&next)
	r.demandsApprovals.Store(p != nil && len(p.Approvals) > 0)
}

// settingsInEffect returns the settings that the members of a cluster compare.
func (r *running) settingsInEffect() postgres.Settings {
	signer, _ := r.signs.Load().(string)
	governed := r.governed.Load()
	if governed == nil { // during the start
		return postgres.Settings{Signer: signer}
	}
	return postgres.Settings{Signer: signer, Scheme: r.attestor.Scheme.String(), Policy: governed.Policy.hash(),
		Screening: governed.Screening.hash()}
}

// governFirst puts the first policy of a start into effect. If the configuration no longer names a policy, the journal
// gets an event for that, too.
func (r *running) governFirst(before rules, p *policy.Policy) {
	r.govern(p)
	governed := *r.governed.Load()
	if none := (rules{}); governed != none || before != none {
		r.logger.Info("policy: loaded", "policy", governed.Policy.hash(), "screening_list", governed.Screening.hash())
		r.events.Record(policyEvent(before, governed, p, ""))
	}
	if err := governed.write(r.config.DataDir); err != nil { // the next start compares with older rules
		r.logger.Warn("policy: cannot save the policy's size, so the next start cannot detect a shortened policy",
			"error", err.Error())
	}
}

// policyEvent returns the event of a policy that replaces another one. It has the hash of each file in effect. by is
// empty at the start of the daemon.
func policyEvent(before, next rules, p *policy.Policy, by string) journal.Event {
	approvals, text := p.ApprovalsDetail()
	details := map[string]string{
		"policy": next.Policy.hash(), "policyBefore": before.Policy.hash(),
		"screeningList": next.Screening.hash(), "screeningListBefore": before.Screening.hash(), approvals: text,
	}
	maps.DeleteFunc(details, func(_, hash string) bool { return hash == "" })
	return journal.Event{Kind: journal.EventPolicy, By: by, Details: details}
}

// second logs an attestation for a second beneficiary, without the addresses.
func (r *running) second(e journal.Entry, first appliance.Record) {
	r.seconds.Add(1)
	r.logger.Warn("policy: an unspendable address was attested for a second beneficiary", "id", e.Record.ID.String(),
		"first", first.ID.String(), "api_key", e.Record.KeyID)
	r.events.Record(journal.Event{Kind: journal.EventSecond, Details: map[string]string{
		"id": e.Record.ID.String(), "firstId": first.ID.String(), "keyId": e.Record.KeyID,
	}})
}
