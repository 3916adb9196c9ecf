package api_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/attestd/attestd/api"
)

func TestDoctorEndsWhenItsClientLeaves(t *testing.T) {
	t.Parallel()
	o := &adminRig{rig: newRig(t), path: t.TempDir() + "/admin.sock", served: make(chan error, 1)}
	began, ended := make(chan struct{}), make(chan error, 1)
	o.open(api.AdminOptions{Attestor: o.attestor, Doctor: func(ctx context.Context) any {
		if until, bounded := ctx.Deadline(); !bounded || time.Until(until) > 2*time.Minute {
			t.Errorf("the deadline is %v (%v)", until, bounded)
		}
		close(began)
		<-ctx.Done()
		ended <- ctx.Err()
		return nil
	}})
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	failed := make(chan error, 1)
	go func() { failed <- o.client.Doctor(ctx, new(any)) }()
	within(t, began)
	leave()
	if err := within(t, ended); !errors.Is(err, context.Canceled) {
		t.Errorf("doctor ended with %v", err)
	}
	if err := within(t, failed); !errors.Is(err, context.Canceled) {
		t.Errorf("the client: %v", err)
	}
}

func TestAPanicOfDoctorIsAnError(t *testing.T) {
	t.Parallel()
	o := &adminRig{rig: newRig(t), path: t.TempDir() + "/admin.sock", served: make(chan error, 1)}
	var well atomic.Bool
	o.open(api.AdminOptions{Attestor: o.attestor, Doctor: func(context.Context) any {
		if !well.Load() {
			panic("a fault")
		}
		return []string{"found"}
	}})
	var found []string
	if err := o.client.Doctor(t.Context(), &found); err == nil {
		t.Errorf("found %q", found)
	}
	well.Store(true)
	if err := o.client.Doctor(t.Context(), &found); err != nil || len(found) != 1 || found[0] != "found" {
		t.Errorf("found %q, %v", found, err)
	}
}
