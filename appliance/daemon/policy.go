package daemon

import (
	"fmt"
	"os"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/config"
	"github.com/attestd/attestd/appliance/policy"
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
	f, err := os.Open(path)
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
	f, err := os.Open(path)
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

// govern puts a policy into effect, and records it where it is another than before.
func (r *running) govern(p *appliance.Policy) {
	before := r.governed
	r.attestor.Govern(p)
	r.governed = ""
	if p != nil {
		r.governed = p.Version
	}
	if r.governed == before {
		return
	}
	r.logger.Info("policy: loaded", "version", r.governed, "before", before)
	r.events.Record(appliance.Event{Kind: appliance.EventPolicy, Details: map[string]string{"version": r.governed, "before": before}})
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
