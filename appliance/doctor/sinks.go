package doctor

import "context"

// checkSinks reports the sinks that the daemon ships the journal to.
func checkSinks(_ context.Context, p *subject) []Finding { return p.told("sinks") }

// checkBackup reports a backup that failed or is late.
func checkBackup(_ context.Context, p *subject) []Finding { return p.told("backup") }
