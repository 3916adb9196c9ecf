package doctor

import (
	"context"

	"github.com/attestd/attestd/api/client"
	"github.com/attestd/attestd/appliance/index/indexer"
	"github.com/attestd/attestd/appliance/text"
)

// checkIndexer reports chains that the running daemon cannot read, and RPCs that fail or disagree. Attestations do not
// need the indexer, so it warns at most.
func checkIndexer(ctx context.Context, p *subject) []Finding {
	if !p.config.Indexes() || !p.running() {
		return nil
	}
	admin := client.NewAdmin(p.config.Admin.Socket)
	defer func() { _ = admin.Close() }()
	status, err := admin.IndexerStatus(ctx)
	if err != nil {
		return []Finding{warn("if graphql.source was set after the daemon started: systemctl restart attestd",
			"the daemon reads no chains: %s", err)}
	}
	var all []Finding
	for _, c := range status.Chains {
		all = append(all, judgeIndexed(c)...)
	}
	return all
}

func judgeIndexed(c indexer.Status) (all []Finding) {
	if c.Error != "" {
		all = append(all, warn("check rpcs and core in indexer.chains; the log names the remedy: journalctl -u attestd",
			"%s: cannot be read since block %d: %s", c.ID, c.Indexed, text.OneLine(c.Error)))
	}
	for _, rpc := range c.RPCs {
		switch {
		case rpc.Disagreements > 0:
			all = append(all,
				warn("compare its blocks with a block explorer, and remove a wrong RPC from indexer.chains",
					"%s: %s has disagreed with the other RPCs %d times", c.ID, rpc.URL, rpc.Disagreements))
		case rpc.Error != "":
			all = append(all,
				warn("check the URL in indexer.chains, and ask the RPC's provider; attestd retries automatically",
					"%s: %s: %s", c.ID, rpc.URL, text.OneLine(rpc.Error)))
		}
	}
	if len(all) > 0 {
		return all
	}
	return []Finding{ok("%s: indexed to block %d, %d blocks behind the head; %d events", c.ID, c.Indexed, c.Lag,
		c.Events)}
}
