package doctor

import (
	"context"
	"slices"

	"github.com/attestd/attestd/api/client"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/daemon"
	"github.com/attestd/attestd/appliance/health"
	"github.com/attestd/attestd/appliance/stop"
)

// checkStop reports a pause or a halt, with its reason.
func checkStop(ctx context.Context, p *subject) []Finding {
	state, err := stopped(ctx, p)
	if err != nil {
		if p.config.Store.URL != "" {
			return nil // checkDatabase reports it
		}
		return []Finding{fail("correct the file, or remove it to attest", "%s", err)}
	}
	return health.Stop(state)
}

func stopped(ctx context.Context, p *subject) (stop.State, error) {
	if !p.running() {
		return daemon.ReadStop(ctx, p.config)
	}
	admin := client.NewAdmin(p.config.Admin.Socket)
	defer func() { _ = admin.Close() }()
	return admin.Stopped(ctx)
}

// checkPolicy reports rules for API keys that do not exist. The configuration check validates the policy itself.
func checkPolicy(ctx context.Context, p *subject) []Finding {
	path := p.config.Attestation.Policy
	policy, err := daemon.ReadPolicy(p.config)
	if path == "" || err != nil {
		return nil
	}
	keys, err := apiKeys(ctx, p)
	if err != nil {
		return []Finding{ok("%s, version %.12s", path, policy.Version)}
	}
	known := func(id string) bool {
		return slices.ContainsFunc(keys, func(k appliance.APIKey) bool { return k.ID == id })
	}
	var findings []Finding
	for id := range policy.Keys {
		if !known(id) {
			findings = append(findings, warn("list the keys: attestd key list; correct "+path+", then: attestd reload",
				"the policy has rules for API key %s, which does not exist", id))
		}
	}
	if len(findings) == 0 {
		findings = []Finding{ok("%s, version %.12s", path, policy.Version)}
	}
	return findings
}

// checkApprovers reports rules that the enrolled approvers cannot satisfy, as the daemon sees them.
func checkApprovers(_ context.Context, p *subject) []Finding { return p.told("approvers") }

func apiKeys(ctx context.Context, p *subject) ([]appliance.APIKey, error) {
	if _, err := p.commit(ctx); err != nil {
		return nil, err
	}
	if p.running() {
		admin := client.NewAdmin(p.config.Admin.Socket)
		defer func() { _ = admin.Close() }()
		return admin.ListKeys(ctx)
	}
	if !daemon.StoreExists(p.config) {
		return nil, nil
	}
	store, err := daemon.ReadStore(p.config)
	if err != nil {
		return nil, err
	}
	defer func() { _ = store.Close() }()
	return store.Keys.List(ctx)
}
