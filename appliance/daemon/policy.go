package daemon

import (
	"fmt"
	"maps"
	"os"

	"golang.org/x/sys/unix"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/config"
	"github.com/attestd/attestd/appliance/policy"
	"github.com/attestd/attestd/store/postgres"
)

// ReadPolicy reads the policy and the screening list that are configured, which are one policy; nil where there is neither.
func ReadPolicy(c *config.Config) (*appliance.Policy, error) {
	screening, err := readScreening(c.Attestation.ScreeningList)
	if err != nil {
		return nil, fmt.Errorf("attestation.screening_list: %w", err)
	}
	if c.Attestation.Policy == "" {
		if screening == nil {
			return nil, nil
		}
		return &appliance.Policy{Screening: screening}, nil
	}
	p, err := ReadPolicyFile(c.Attestation.Policy)
	if err != nil {
		return nil, fmt.Errorf("attestation.policy: %w", err)
	}
	p.Screening = screening
	return p, nil
}

// ReadPolicyFile reads a policy, without a screening list.
func ReadPolicyFile(path string) (*appliance.Policy, error) {
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

// readScreening reads the list of addresses for which nothing is attested; nil for no path.
func readScreening(path string) (*appliance.Screening, error) {
	if path == "" {
		return nil, nil
	}
	f, err := openRules(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	list, err := appliance.ParseScreening(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return list, nil
}

// openRules opens a regular file. It does not wait for the writer of a named pipe.
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
func (r *running) govern(p *appliance.Policy) {
	r.attestor.Govern(p)
	next := rulesOf(p)
	r.governed.Store(&next)
}

// settingsInEffect are those that other members of a cluster compare with their own.
func (r *running) settingsInEffect() postgres.Settings {
	signer, _ := r.signs.Load().(string)
	governed := r.governed.Load()
	if governed == nil { // while the daemon starts
		return postgres.Settings{Signer: signer}
	}
	return postgres.Settings{Signer: signer, Scheme: r.attestor.Scheme.String(), Policy: governed.Policy.hash(), Screening: governed.Screening.hash()}
}

// governFirst puts the first policy of a start into effect. An appliance whose policy was taken out of its configuration has that in its
// journal, too.
func (r *running) governFirst(before rules, p *appliance.Policy) {
	r.govern(p)
	governed := *r.governed.Load()
	if none := (rules{}); governed != none || before != none {
		r.logger.Info("policy: loaded", "policy", governed.Policy.hash(), "screening_list", governed.Screening.hash())
		r.events.Record(policyEvent(before, governed, ""))
	}
	if err := governed.write(r.config.DataDir); err != nil { // the next start compares with an older one
		r.logger.Warn("policy: the next start cannot compare with it", "error", err.Error())
	}
}

// policyEvent is the event of a policy that takes another one's place. It has the hash of each file that governs. by is empty where the
// daemon starts.
func policyEvent(before, next rules, by string) appliance.Event {
	details := map[string]string{
		"policy": next.Policy.hash(), "policyBefore": before.Policy.hash(),
		"screeningList": next.Screening.hash(), "screeningListBefore": before.Screening.hash(),
	}
	maps.DeleteFunc(details, func(_, hash string) bool { return hash == "" })
	return appliance.Event{Kind: appliance.EventPolicy, By: by, Details: details}
}

// second tells of an attestation for a second beneficiary, without the addresses.
func (r *running) second(e appliance.Entry, first appliance.Record) {
	r.seconds.Add(1)
	r.logger.Warn("policy: an unspendable address was attested for another beneficiary than before", "id", e.Record.ID.String(),
		"first", first.ID.String(), "api_key", e.Record.KeyID)
	r.events.Record(appliance.Event{Kind: appliance.EventSecond, Details: map[string]string{
		"id": e.Record.ID.String(), "firstId": first.ID.String(), "keyId": e.Record.KeyID,
	}})
}
