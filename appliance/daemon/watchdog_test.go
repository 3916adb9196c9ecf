package daemon

import (
	"context"
	"errors"
	"testing"
	"time"
)

// Whatever holds the way of an attestation up must not be reported as life; what merely fails must.
func TestTheWatchdogIsFedByProgressOnly(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stuck := make(chan struct{})
	reports := make(chan error)
	asked := 0
	go watch(ctx, 50*time.Millisecond, func(ctx context.Context) error {
		asked++
		second := asked == 2
		return answers(ctx, func() {
			if second {
				<-stuck
			}
		})
	}, func(err error) { reports <- err })
	if err := <-reports; err != nil {
		t.Errorf("progress: %v", err)
	}
	if err := <-reports; !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("no progress: %v", err)
	}
	close(stuck)
	if err := <-reports; err != nil {
		t.Errorf("progress again: %v", err)
	}
}
