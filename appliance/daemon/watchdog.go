package daemon

import (
	"context"
	"errors"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
)

// watchdog notifies the service manager twice per interval (WatchdogSec=) while the daemon makes progress, until ctx
// ends. A daemon without progress is killed with SIGABRT, at which the Go runtime prints all goroutines, and is started
// again.
func (r *running) watchdog(ctx context.Context) {
	interval, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		r.logger.Warn("cannot serve the service manager's watchdog", "error", err.Error())
	}
	if err != nil || interval == 0 {
		return
	}
	watch(ctx, interval/2, r.progress, func(err error) {
		if err == nil {
			r.notify(daemon.SdNotifyWatchdog)
			return
		}
		r.logger.Error("watchdog: no progress; the service manager will kill this process", "error", err.Error(),
			"within", interval.String())
	})
}

// watch calls progress at every step and reports the result: nil, or the reason why there was no progress within the
// step.
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

// progress returns nil once the listener, the HSM signer and the journal have answered, even if with an error. An HSM
// that is away and a full disk need the operator, and a restart would not help. A part that does not answer at all may
// recover with a restart.
func (r *running) progress(ctx context.Context) error {
	if err := r.servers.public.Responds(ctx); err != nil {
		return err
	}
	return progressOf(ctx, r.signer, r.store)
}

// progressOf asks both concurrently, so that a slow HSM does not use up the journal's time.
func progressOf(ctx context.Context, signer interface{ Ready(context.Context) error },
	store interface{ Responds(context.Context) error }) error {
	hsm := make(chan error, 1)
	go func() { hsm <- answers(ctx, func() { _ = signer.Ready(ctx) }) }()
	return errors.Join(store.Responds(ctx), <-hsm)
}

// answers returns an error if f does not return in time. f gets slightly longer than ctx, because returning at the end
// of ctx is an answer, too.
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
