package doctor

import (
	"context"
	"time"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/attest"
)

// checkAttestorKeys reports keys of hsm.keys that do not sign or are to be retired, and API keys that are bound to
// unknown keys.
func checkAttestorKeys(_ context.Context, p *subject) (all []Finding) {
	keys := make(map[string]attest.AttestorKeyState)
	for _, k := range p.config.HSM.Keys {
		keys[k.Name] = k.State
	}
	bound := make(map[string]int)
	for _, k := range p.apiKeys {
		if k.State(time.Now()) != appliance.KeyActive || k.Attestor == "" {
			continue
		}
		bound[k.Attestor]++
		if keys[k.Attestor] == "" {
			all = append(all, fail("attestd key bind "+k.ID+" --attestor NAME",
				"API key %s, %s, cannot attest: it is bound to %s, which is not in hsm.keys", k.ID, k.Name, k.Attestor))
		}
	}
	unopened := make(map[string]string)
	for _, t := range p.tokens {
		if s := t.standing; s != nil && s.KeyName == t.key.Name && t.hsm.Module.Path == "" && t.hsmErr == nil {
			unopened[s.KeyName] = s.Reason
		}
	}
	for _, k := range p.config.HSM.Keys {
		why := unopened[k.Name]
		switch standard := p.config.DefaultKey().Name == k.Name; {
		case why == notLoaded:
			all = append(all, warn("attestd reload", "%s: %s", k.Name, why))
		case why != "":
			all = append(all,
				fail(
					"check its token; attestd opens it again within a minute. After a refused PIN: systemctl restart attestd", "%s cannot be opened: %s", k.Name, why))
		case k.State == attest.AttestorKeyRetiring && p.running():
			all = append(all,
				warn(
					"once its attestations are redeemed and no API key is bound to it, remove it from hsm.keys, then: attestd reload (docs/rotation.md)",
					"%s, %s, is retiring; %d API keys are bound to it", k.Name, k.Address, bound[k.Name]))
		case standard:
			all = append(all, ok("%s, %s, is the default, for API keys without a binding", k.Name, k.Address))
		default:
			all = append(all, ok("%s, %s, is %s", k.Name, k.Address, k.State))
		}
	}
	return all
}
