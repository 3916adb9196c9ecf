package health

import (
	"cmp"

	"github.com/attestd/attestd/appliance/index/follower"
	"github.com/attestd/attestd/appliance/index/indexer"
	"github.com/attestd/attestd/appliance/text"
)

// IndexedChain rates a chain of indexer.chains. Attestations do not need the indexer, so it warns at most.
func IndexedChain(c indexer.Status) (all []Finding) {
	if c.Error != "" {
		all = append(all, Warning(cmp.Or(c.Remedy,
			"check rpcs and core in indexer.chains; the log names the remedy: journalctl -u attestd"),
			"%s: cannot be read since block %d: %s", c.ID, c.Indexed, text.OneLine(c.Error)))
	}
	for _, rpc := range c.RPCs {
		switch {
		case rpc.Disagreements > 0:
			all = append(all,
				Warning("compare its blocks with a block explorer, and remove a wrong RPC from indexer.chains",
					"%s: %s has disagreed with the other RPCs %d times", c.ID, rpc.URL, rpc.Disagreements))
		case rpc.Error != "":
			all = append(all,
				Warning("check the URL in indexer.chains, and ask the RPC's provider; attestd retries automatically",
					"%s: %s: %s", c.ID, rpc.URL, text.OneLine(rpc.Error)))
		}
	}
	if len(all) > 0 {
		return all
	}
	return []Finding{Good("%s: indexed to block %d, %s blocks behind the head; %s events", c.ID, c.Indexed, text.Count(c.Lag),
		text.Count(c.Events))}
}

// Follower rates the follower of the upstream.
func Follower(f follower.Status) Finding {
	switch {
	case f.Failing:
		return Warning("check the upstream and the network; the follower retries automatically",
			"the follower fails, lag %s: %s", text.Lag(f), text.OneLine(f.LastError))
	case f.UnlistedRows > 0:
		return Warning(
			"compare with another upstream: attestd replica verify; the follower searches for missing rows every hour, or now with: attestd replica sync",
			"the follower is %s, lag %s", text.Follower(f), text.Lag(f))
	}
	return Good("the follower is %s, lag %s", text.Follower(f), text.Lag(f))
}
