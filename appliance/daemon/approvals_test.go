package daemon

import (
	"context"
	"log/slog"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/approval"
	"github.com/attestd/attestd/appliance/attest"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/appliance/policy"
	"github.com/attestd/attestd/store/bolt"
)

func TestTheDaemonRecordsOnceThatAnApprovalHasExpired(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		log, _, err := journal.NewLogKey("test.example/log")
		if err != nil {
			t.Fatal(err)
		}
		store, err := bolt.Open(filepath.Join(dir, "attestd.db"), bolt.Options{Signer: log.Signer, Verifier: log.Verifier})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = store.Close() }()
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		r := &running{logger: slog.New(slog.DiscardHandler), attestor: &attest.Attestor{Journal: store.Journal(),
			Approvals: approval.New(approval.Options{Journal: store.Journal(), Origin: log.Verifier.Name()})}}
		r.demandsApprovals.Store(true)
		_, _, err = r.attestor.Approvals.Admit(ctx, appliance.Call{Key: appliance.APIKey{ID: "one"}, IdempotencyKey: "one",
			Request: appliance.Request{UnspendableAddress: appliance.Address{1}, Beneficiary: appliance.Address{2}}},
			[]policy.ApprovalRule{{When: policy.ApproveAlways, Approvers: []string{"alice"}, Required: 1, WithinSeconds: 600}})
		if appliance.CodeOf(err) != appliance.CodeApprovalRequired {
			t.Fatal(err)
		}
		ended := make(chan struct{})
		go func() {
			r.expireApprovals(ctx)
			close(ended)
		}()
		for _, c := range []struct {
			after time.Duration
			want  int
		}{{9 * time.Minute, 0}, {2 * time.Minute, 1}, {10 * time.Minute, 1}} {
			time.Sleep(c.after)
			synctest.Wait()
			recorded := 0
			err := store.Journal().Entries(ctx, 0, func(e journal.Entry) error {
				if e.Event != nil && e.Event.Kind == journal.EventApprovalExpired {
					recorded++
				}
				return nil
			})
			if err != nil || recorded != c.want {
				t.Errorf("%s later: %v, recorded %d times, want %d", c.after, err, recorded, c.want)
			}
		}
		stop()
		<-ended
	})
}
