package api_test

import (
	"context"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/attestd/attestd/api"
	"github.com/attestd/attestd/api/client"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/audit"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/appliance/witness"
)

// witnesses publishes the checkpoint that a test sets.
type witnesses struct {
	journal   audit.Journal
	published string
}

func (w witnesses) Published(context.Context) ([]byte, error) { return []byte(w.published), nil }

func (w witnesses) Prove(ctx context.Context, index int64) (journal.InclusionProof, error) {
	proof, err := w.journal.Prove(ctx, index)
	proof.Checkpoint = w.published
	return proof, err
}

func (witnesses) Status() witness.Status {
	return witness.Status{Policy: true, Witnesses: []witness.WitnessNews{{Name: "w1", Contradicts: true}}}
}

func TestWhatWitnessesHaveCosignedIsPublished(t *testing.T) {
	t.Parallel()
	const cosigned = "example.com/log\n1\n\n\n— w1 x\n"
	r := newRig(t, func(o *api.Options) { o.Witnesses = witnesses{published: cosigned} })
	if a := r.do("GET", "/log/checkpoint", ""); a.status != 200 || string(a.body) != cosigned ||
		a.header.Get("Content-Type") != "text/plain; charset=utf-8" {
		t.Errorf("%s", a)
	}
}

func TestTheAdminSocketTellsOfWitnesses(t *testing.T) {
	t.Parallel()
	const cosigned = "example.com/log\n1\n\n\n— w1 x\n"
	none := newAdminRig(t)
	if s, err := none.client.Witnesses(t.Context()); err != nil || s.Policy {
		t.Errorf("none: %v, %+v", err, s)
	}
	if _, _, err := none.client.ProveWitnessed(t.Context(), uuid.New()); client.CodeOf(err) != appliance.CodeNotFound {
		t.Errorf("none: %v", err)
	}
	newest, err := none.client.Checkpoint(t.Context())
	if published, publishedErr := none.client.Published(t.Context()); err != nil || publishedErr != nil ||
		string(published) != string(newest) {
		t.Errorf("none: %v, %v, %s", err, publishedErr, published)
	}

	o := &adminRig{rig: newRig(t), path: t.TempDir() + "/admin.sock", served: make(chan error, 1)}
	o.open(api.AdminOptions{Attestor: o.attestor, Witnesses: witnesses{o.attestor.Journal, cosigned}})
	if a := o.attest(); a.status != 200 {
		t.Fatal(a)
	}
	first := o.entry(0)
	if e, proof, err := o.client.ProveWitnessed(t.Context(), first.ID()); err != nil || proof.Checkpoint != cosigned ||
		e.Index != 0 || len(e.Leaf) == 0 {
		t.Errorf("%v, %+v", err, proof)
	}
	if published, err := o.client.Published(t.Context()); err != nil || string(published) != cosigned {
		t.Errorf("%v, %s", err, published)
	}
	if newest, err := o.client.Checkpoint(t.Context()); err != nil || strings.Contains(string(newest), "— w1 ") {
		t.Errorf("%v, %s", err, newest)
	}
	if s, err := o.client.Witnesses(t.Context()); err != nil || !s.Policy || !s.Witnesses[0].Contradicts {
		t.Errorf("%v, %+v", err, s)
	}
	if _, _, err := o.client.ProveWitnessed(t.Context(), uuid.New()); client.CodeOf(err) != appliance.CodeNotFound {
		t.Errorf("an unknown one: %v", err)
	}
}
