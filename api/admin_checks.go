package api

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/attestd/attestd/api/wire"
	"github.com/attestd/attestd/appliance/approval"
	"github.com/attestd/attestd/appliance/health"
	"github.com/attestd/attestd/appliance/quorum"
)

// checks rates each part of the appliance. Parts that are not configured have no finding. s must be complete except for
// Checks.
func (a *Admin) checks(ctx context.Context, s wire.Status) []health.Finding {
	return slices.Concat(a.signingChecks(s), a.readChecks(s), a.watchChecks(), a.memberChecks(ctx), a.approverChecks(ctx),
		a.machineChecks(s))
}

// signingChecks rates the parts that an attestation needs.
func (a *Admin) signingChecks(s wire.Status) (all []health.Finding) {
	if a.opts.Stop != nil {
		all = append(all, health.Named("stop", health.Stop(a.opts.Stop.State())...)...)
	}
	keys := []health.Finding{health.Part(failure(s, "hsm"), "the HSM is ready")}
	for _, k := range s.Keys {
		if err := failure(s, "key "+k.Name); err != nil {
			keys = append(keys, health.Part(errors.New(k.Name+": "+err.Error()), ""))
		}
	}
	all = append(all, health.Named("hsm", keys...)...)
	journal := []health.Finding{health.Part(failure(s, "journal"), "the journal can record")}
	if audit := s.Journal.LastAudit; audit != nil {
		journal = append(journal, health.Audit(audit.Time, audit.Records, audit.Damages))
	}
	return append(all, health.Named("journal", journal...)...)
}

// failure returns the error of a part in a status, nil if the part is ready.
func failure(s wire.Status, part string) error {
	if why := s.Failing[part]; why != "" {
		return errors.New(why)
	}
	return nil
}

// readChecks rates the replica and what fills it.
func (a *Admin) readChecks(s wire.Status) (all []health.Finding) {
	if a.opts.Replica != nil {
		all = append(all, health.Named("replica", health.Part(failure(s, "replica"), "the replica answers queries"))...)
	}
	if a.opts.Follower != nil {
		all = append(all, health.Named("upstream", health.Follower(a.opts.Follower.Status()))...)
	}
	if a.opts.Indexer != nil {
		for _, c := range a.opts.Indexer.Status() {
			all = append(all, health.Named("indexer", health.IndexedChain(c)...)...)
		}
	}
	return all
}

// watchChecks rates the parts that watch over the appliance, or carry its journal elsewhere.
func (a *Admin) watchChecks() (all []health.Finding) {
	if a.opts.Chain != nil {
		status, err := a.opts.Chain.Status()
		if err != nil {
			all = append(all, health.Named("chain", health.Part(err, ""))...)
		} else {
			all = append(all,
				health.Named("chain", health.Chain(status, a.attestor.DefaultKey().Signer.Address())...)...)
		}
	}
	if a.opts.Witnesses != nil {
		all = append(all, health.Named("witnesses", health.Witnesses(a.opts.Witnesses.Status(), a.now())...)...)
	}
	if a.opts.Sinks != nil {
		for _, s := range a.opts.Sinks() {
			all = append(all, health.Named("sinks", health.Sink(s))...)
		}
	}
	backups := health.Backup(a.backups.state(a.started), a.opts.BackupMaxAge, a.now())
	return append(all, health.Named("backup", backups...)...)
}

// memberChecks rates the other members of a quorum and of a cluster.
func (a *Admin) memberChecks(ctx context.Context) (all []health.Finding) {
	if a.opts.Quorum != nil {
		if status, known := a.quorumSeen.get(ctx, a.now, func(ctx context.Context) quorum.Status {
			return a.opts.Quorum.Status(ctx)
		}); known {
			all = append(all, health.Named("quorum", health.Quorum(status, a.opts.Chain != nil)...)...)
		}
	}
	if a.opts.Cluster == nil {
		return all
	}
	found, known := a.clusterSeen.get(ctx, a.now, func(ctx context.Context) []health.Finding {
		cluster, err := a.opts.Cluster(ctx)
		if err != nil {
			return []health.Finding{health.Part(err, "")}
		}
		return clusterFindings(cluster, a.now())
	})
	if known {
		all = append(all, health.Named("cluster", slices.Clone(found)...)...)
	}
	return all
}

// approverChecks rates the rules of approvals. It has no finding until the journal's approvals are read.
func (a *Admin) approverChecks(ctx context.Context) []health.Finding {
	rules := a.attestor.ApprovalRules()
	if len(rules) == 0 || a.attestor.Approvals == nil {
		return nil
	}
	enrolled, _ := a.peopleSeen.get(ctx, a.now, func(ctx context.Context) []approval.Approver {
		all, err := a.attestor.Approvals.Approvers(ctx)
		if err != nil {
			return nil
		}
		return all
	})
	if enrolled == nil {
		return nil
	}
	return health.Named("approvers", health.Approvers(rules, enrolled)...)
}

func clusterFindings(c wire.Cluster, now time.Time) []health.Finding {
	members, differences := make([]health.Member, len(c.Members)), make(map[string]string)
	for i, m := range c.Members {
		members[i] = health.Member{Name: m.Name, LastSeen: m.LastSeen}
	}
	for _, d := range c.Differences {
		differences[d.String()] = d.Remedy()
	}
	return health.Cluster(members, differences, now)
}

// machineChecks rates the disk and the certificate. Only doctor reports on the clock, because it compares the clock with
// the journal.
func (a *Admin) machineChecks(s wire.Status) (all []health.Finding) {
	if s.Machine == nil {
		return nil
	}
	if d := s.Machine.Disk; d != nil {
		all = append(all, health.Named("disk space", health.Disk(d.Path, d.Free, d.Total, d.Least))...)
	}
	if c := s.Machine.Certificate; c != nil {
		all = append(all, health.Named("certificate", health.Certificate(c.Ends, a.now()))...)
	}
	return all
}

const (
	// seenFor is how long the state of other machines is reused. Each console page and each scrape asks for it.
	seenFor = 10 * time.Second
	// seeTimeout bounds how long other machines are asked for their state.
	seeTimeout = 10 * time.Second
)

// seen keeps a value that other machines have to be asked for. At most one goroutine asks.
type seen[T any] struct {
	mu     sync.Mutex
	value  T
	at     time.Time     // zero before the first value
	asking chan struct{} // closed when the running request ends; nil if none runs
}

// get returns a value that is at most seenFor older than the last request for it. Before the first value, it waits for
// it until ctx ends; known is false then.
func (s *seen[T]) get(ctx context.Context, now func() time.Time, ask func(context.Context) T) (value T, known bool) {
	s.mu.Lock()
	if s.asking == nil && (s.at.IsZero() || now().Sub(s.at) >= seenFor) {
		s.asking = make(chan struct{})
		go s.refresh(context.WithoutCancel(ctx), s.asking, now, ask)
	}
	asking, first := s.asking, s.at.IsZero()
	s.mu.Unlock()
	if first {
		select {
		case <-asking:
		case <-ctx.Done():
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.value, !s.at.IsZero()
}

func (s *seen[T]) refresh(ctx context.Context, done chan struct{}, now func() time.Time,
	ask func(context.Context) T) {
	ctx, cancel := context.WithTimeout(ctx, seeTimeout)
	defer cancel()
	value := ask(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.value, s.at, s.asking = value, now(), nil
	close(done)
}
