package postgres_test

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/store/postgres"
	"github.com/attestd/attestd/store/postgres/postgrestest"
	"github.com/attestd/attestd/store/storetest"
)

// pair is a primary, its synchronous standby, and a store on both.
type pair struct {
	*testing.T
	primary, standby *postgrestest.Server
	url              string
	key              journal.LogKey
	store            *postgres.Store
}

func newPair(t *testing.T) *pair {
	t.Helper()
	p := &pair{T: t, key: newLogKey(t)}
	p.primary = postgrestest.NewServer(t, postgrestest.Settings{"fsync": "off"})
	check(t, postgres.Init(t.Context(), p.primary.URL(postgrestest.Owner), role, "secret"))
	p.standby = p.primary.Standby(t, "standby")
	p.primary.Synchronous(t, "standby")
	p.url = p.primary.RoleURL(url.UserPassword(role, "secret"), postgrestest.Owner, p.standby)
	p.store = p.open()
	return p
}

func (p *pair) open() *postgres.Store {
	p.Helper()
	o := options(p.key)
	o.Timeout = time.Second
	o.Member = postgres.Identity{Name: fmt.Sprint("member-", uuid.NewString()[:8])}
	s := open(p.T, p.url, o)
	await(p.T, "the store is ready", func() bool { return s.Journal().Ready(p.Context()) == nil })
	return s
}

// cancelCommits cancels each wait for the standby (pg_cancel_backend) and returns the number of waits.
func (p *pair) cancelCommits() string {
	p.Helper()
	return p.primary.Query(p.T, postgrestest.Owner, "SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
}

// unanswered commits a record on the primary only, and expects an error for its caller. leave ends the wait for the
// standby.
func (p *pair) unanswered(name string, leave func()) appliance.Record {
	p.Helper()
	r := withIdempotencyKey(p.T, name)
	p.fails("records", r.ID, leave, func(ctx context.Context) error {
		_, _, err := p.store.Journal().Append(ctx, r)
		return err
	})
	return r
}

// fails expects an error of change, and that its row is on the primary. leave ends the wait for the standby.
func (p *pair) fails(table string, id any, leave func(), change func(ctx context.Context) error) {
	p.Helper()
	failed := make(chan error, 1)
	go func() { failed <- change(context.WithoutCancel(p.Context())) }()
	stored := func() bool {
		return p.primary.Query(p.T, postgrestest.Owner, fmt.Sprintf("SELECT count(*) FROM %s WHERE id = '%s'", table, id)) == "1"
	}
	for deadline := time.Now().Add(patience); !stored(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			p.Fatal("nothing is committed on the primary alone")
		}
		leave()
	}
	select {
	case err := <-failed:
		if err == nil {
			p.Error("a change that the standby lacks was answered")
		}
	case <-time.After(patience):
		p.Error("the caller is not answered")
	}
}

// TestDrillNothingIsAnsweredThatTheStandbyLacks commits a record on the primary only. Two stores must then refuse each
// way to read it.
func TestDrillNothingIsAnsweredThatTheStandbyLacks(t *testing.T) {
	for name, leave := range map[string]func(p *pair){
		"the wait is cancelled": func(p *pair) { p.cancelCommits() },
		"the primary crashes": func(p *pair) {
			if n := p.primary.Query(p.T, postgrestest.Owner, "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND query LIKE '%COMMIT%'"); n != "0" {
				p.primary.Kill(p.T)
				p.primary.Start(p.T)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPair(t)
			other := p.open()
			e, _, err := p.store.Journal().Append(t.Context(), withIdempotencyKey(t, "answered"))
			check(t, err)
			p.standby.Freeze(t)
			lost := p.unanswered("lost", func() { leave(p) })

			var asked sync.WaitGroup
			for who, s := range map[string]*postgres.Store{"its appliance": p.store, "another": other} {
				j := s.Journal()
				for what, ask := range map[string]func() error{
					"a repeat": func() error {
						_, err := j.ByIdempotencyKey(t.Context(), lost.KeyID, lost.IdempotencyKey)
						return err
					},
					"a repeat that is appended": func() error {
						_, _, err := j.Append(t.Context(), withIdempotencyKey(t, "lost"))
						return err
					},
					"a reading back": func() error { _, err := j.ByID(t.Context(), lost.ID); return err },
					"the checkpoint": func() error { _, err := j.Checkpoint(t.Context()); return err },
					"the proof":      func() error { _, err := j.Prove(t.Context(), e.Index+1); return err },
					"a list":         func() error { _, err := j.List(t.Context(), journal.Query{}); return err },
				} {
					asked.Go(func() {
						err := ask()
						if code := appliance.CodeOf(err); code != appliance.CodeJournalUnavailable && code != appliance.CodeTimeout {
							t.Errorf("%s answers %s: %v", who, what, err)
						}
					})
				}
				asked.Go(func() {
					await(t, who+" says that nothing is committed", func() bool { return j.Ready(t.Context()) != nil })
				})
			}
			asked.Wait()
			p.standby.Thaw(t)
			for _, s := range []*postgres.Store{p.store, other} {
				await(t, "a repeat is answered", func() bool {
					found, err := s.Journal().ByIdempotencyKey(t.Context(), lost.KeyID, lost.IdempotencyKey)
					return err == nil && found.Record.ID == lost.ID
				})
			}
		})
	}
}

// TestDrillAfterAPromotionNothingThatWasAnsweredIsMissing promotes a standby that lacks a record. Both stores must
// continue, because neither has answered or published that record.
func TestDrillAfterAPromotionNothingThatWasAnsweredIsMissing(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	other := p.open()
	end := storetest.WatchCheckpoints(t, p.key.Verifier, member(other))
	var kept answered
	for i := range 20 {
		e, _, err := p.store.Journal().Append(t.Context(), withIdempotencyKey(t, fmt.Sprint(i)))
		check(t, err)
		kept.add(e)
	}
	p.standby.Detach(t)
	lost := p.unanswered("lost", func() { p.cancelCommits() })
	for range 5 { // a reader must not confirm it either
		_, _ = other.Journal().ByID(t.Context(), lost.ID)
		p.cancelCommits()
	}
	p.primary.Kill(t)
	p.standby.Promote(t)
	for _, s := range []*postgres.Store{p.store, other} {
		await(t, "records are appended again", func() bool {
			e, _, err := s.Journal().Append(t.Context(), storetest.Record(t, "key"))
			if err == nil {
				kept.add(e)
			}
			return err == nil
		})
	}
	server, err := p.store.Server(t.Context())
	if want := p.standby.Address(); err != nil || server.Address != want {
		t.Errorf("the server is %s, not %s: %v", server.Address, want, err)
	}
	end()
	kept.wantKept(t, p.store.Journal(), p.key)
	if _, err := other.Journal().ByID(t.Context(), lost.ID); appliance.CodeOf(err) != appliance.CodeNotFound {
		t.Errorf("the lost record: %v", err)
	}
}

// TestDrillTheNewPrimaryConfirmsNothingOfTheOldOne reads a head that the standby lacks, and promotes the standby before the read is
// confirmed: the COMMIT then succeeds, on another server.
func TestDrillTheNewPrimaryConfirmsNothingOfTheOldOne(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	_, _, err := p.store.Journal().Append(t.Context(), withIdempotencyKey(t, "answered"))
	check(t, err)
	p.standby.Detach(t)
	p.unanswered("lost", func() { p.cancelCommits() })
	err = p.store.ReadThenConfirm(t.Context(), func() {
		p.primary.Kill(t)
		p.standby.Promote(t)
		await(t, "the new primary commits", func() bool { return p.store.Journal().Ready(t.Context()) == nil })
	})
	if err == nil {
		t.Error("a head that the new primary lacks is confirmed")
	}
	_, _, err = p.store.Journal().Append(t.Context(), withIdempotencyKey(t, "next"))
	check(t, err)
	check(t, p.store.ReadThenConfirm(t.Context(), func() {}))
}

// TestDrillARevocationAfterAPromotionHoldsOnEachAppliance loses a change of the API keys that an appliance has read. The
// next change then has the same version, and that appliance must notice it.
func TestDrillARevocationAfterAPromotionHoldsOnEachAppliance(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	other := *p
	other.store = p.open()
	created, _, err := appliance.NewAPIKey(appliance.KeyRequest{Name: "revoked"}, time.Now())
	check(t, err)
	check(t, p.store.Keys().Create(t.Context(), created))
	_, _, err = other.store.Journal().Append(t.Context(), storetest.Record(t, created.ID))
	check(t, err)

	p.standby.Detach(t)
	lost, _, err := appliance.NewAPIKey(appliance.KeyRequest{Name: "lost"}, time.Now())
	check(t, err)
	cancel := func() { p.cancelCommits() }
	p.fails("api_keys", lost.ID, cancel, func(ctx context.Context) error { return p.store.Keys().Create(ctx, lost) })
	other.unanswered("lost", cancel) // reads the lost key
	p.primary.Kill(t)
	p.standby.Promote(t)
	await(t, "a key is revoked", func() bool {
		_, err := p.store.Keys().Revoke(t.Context(), created.ID, time.Now())
		return err == nil
	})
	await(t, "a revoked key is refused", func() bool {
		_, _, err := other.store.Journal().Append(t.Context(), storetest.Record(t, created.ID))
		if err == nil {
			t.Fatal("a revoked key gets a record")
		}
		return appliance.CodeOf(err) != appliance.CodeJournalUnavailable && appliance.CodeOf(err) != appliance.CodeTimeout
	})
}

// TestAnIdleApplianceIsNotReadyWithoutItsStandby sends no request: the heartbeat alone must detect the missing standby.
func TestAnIdleApplianceIsNotReadyWithoutItsStandby(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	p.standby.Freeze(t)
	await(t, "the store is not ready", func() bool {
		err := p.store.Journal().Ready(t.Context())
		return err != nil && strings.Contains(err.Error(), "check its synchronous standby")
	})
	p.standby.Thaw(t)
	await(t, "the store is ready", func() bool { return p.store.Journal().Ready(t.Context()) == nil })
}
