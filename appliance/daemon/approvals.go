package daemon

import (
	"context"
	"math"
	"time"

	"github.com/attestd/attestd/appliance/approval"
)

// openApprovals keeps the requests that wait for people. It reads the journal only if a policy demands approvals, or an
// operator asks for them.
func (r *running) openApprovals() {
	r.attestor.Approvals = approval.New(approval.Options{
		Journal: r.attestor.Journal, Events: r.events, Origin: r.store.LogKey.Verifier.Name(),
	})
}

// loadApprovals reads the journal in the background, so that the first request need not wait for that.
func (r *running) loadApprovals(ctx context.Context) {
	if !r.demandsApprovals.Load() {
		return
	}
	if err := r.attestor.Approvals.Load(ctx); err != nil && ctx.Err() == nil {
		r.logger.Warn("approvals: the journal cannot be read; requests that need an approval are refused until it can",
			"error", err.Error())
	}
}

// expireEvery is how often the daemon looks for approvals that have expired.
const expireEvery = time.Minute

// expireApprovals records approvals that expire. It first reads the journal, see loadApprovals.
func (r *running) expireApprovals(ctx context.Context) {
	r.loadApprovals(ctx)
	tick := time.NewTicker(expireEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		if !r.demandsApprovals.Load() {
			continue
		}
		if err := r.attestor.Approvals.Expire(ctx); err != nil && ctx.Err() == nil {
			r.logger.Warn("approvals: that one has expired cannot be recorded; the next try is in a minute",
				"error", err.Error())
		}
	}
}

// waitingApprovals returns how many approvals wait: 0 without rules of approvals, NaN if the journal cannot be read.
func (r *running) waitingApprovals() float64 {
	if !r.demandsApprovals.Load() {
		return 0
	}
	ctx, cancel := context.WithTimeout(context.Background(), collectTimeout)
	defer cancel()
	n, err := r.attestor.Approvals.Waiting(ctx)
	if err != nil {
		return math.NaN()
	}
	return float64(n)
}
