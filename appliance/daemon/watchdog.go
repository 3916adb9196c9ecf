package daemon

import (
	"context"
	"errors"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
)

// watchdog tells the service manager that the daemon makes progress, twice in the interval that it asks for
// (WatchdogSec=), until ctx ends. A daemon that does not is killed and started again: with SIGABRT, at which the Go
// runtime prints where each goroutine stands.
func (r *running) watchdog(ctx context.Context) {
	interval, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		r.logger.Warn("the service manager's watchdog is not served", "error", err.Error())
	}
	if err != nil || interval == 0 {
		return
	}
	watch(ctx, interval/2, r.progress, func(err error) {
		if err == nil {
			r.notify(daemon.SdNotifyWatchdog)
			return
		}
		r.logger.Error("watchdog: no progress; the service manager will end this process", "error", err.Error(), "within", interval.String())
	})
}

// watch asks for progress at every step and reports what came out, nil or why there was none within the step.
func watch(ctx context.Context, step time.Duration, progress func(context.Context) error, report func(error)) {
	tick := time.NewTicker(step)
	defer tick.Stop()
	for {
		limit, cancel := context.WithTimeout(ctx, step)
		err := progress(limit)
		cancel()
		if ctx.Err() != nil {
			return
		}
		report(err)
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// progress returns nil when the parts through which every attestation goes, from the listener on, have answered, be it that they
// cannot do their work: an HSM that is away and a disk that is full are for the operator, and no restart brings them back. What
// does not answer at all, a restart may cure.
func (r *running) progress(ctx context.Context) error {
	if err := r.public.Responds(ctx); err != nil {
		return err
	}
	return progressOf(ctx, r.signer, r.store)
}

// progressOf asks both at the same time: an HSM that takes all of the time must not take the journal's.
func progressOf(ctx context.Context, signer interface{ Ready(context.Context) error }, store interface{ Responds(context.Context) error }) error {
	hsm := make(chan error, 1)
	go func() { hsm <- answers(ctx, func() { _ = signer.Ready(ctx) }) }()
	return errors.Join(store.Responds(ctx), <-hsm)
}

// answers returns an error when f does not return in time. It gives f a little longer than ctx: to return because ctx
// ended is an answer too.
func answers(ctx context.Context, f func()) error {
	done := make(chan struct{})
	go func() { defer close(done); f() }()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
	}
	const grace = 100 * time.Millisecond
	select {
	case <-done:
		return nil
	case <-time.After(grace):
		return ctx.Err()
	}
}
