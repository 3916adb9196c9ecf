package doctor

import "context"

// checkIndexer reports chains that the running daemon cannot read, and RPCs that fail or disagree.
func checkIndexer(_ context.Context, p *subject) []Finding {
	if !p.config.Indexes() || !p.running() {
		return nil
	}
	if found := p.told("indexer"); len(found) > 0 {
		return found
	}
	return []Finding{warn("if graphql.source was set after the daemon started: systemctl restart attestd",
		"the daemon reads no chains")}
}
