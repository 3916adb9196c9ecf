package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"
	"golang.org/x/mod/sumdb/note"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/audit"
	"github.com/attestd/attestd/appliance/daemon"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/appliance/text"
	"github.com/attestd/attestd/appliance/witness"
)

// policy reads the file of --policy. It returns nil if path is empty.
func (a *app) policy(path string) (*witness.Policy, error) {
	if path == "" {
		return nil, nil
	}
	p, err := daemon.ReadWitnessPolicy(path)
	if err != nil {
		return nil, fmt.Errorf("--policy: %w", err)
	}
	return p, nil
}

// witnessedCheckpoint is the JSON form of a checkpoint that satisfied a policy.
type witnessedCheckpoint struct {
	Log  string                `json:"log"` // name and hash of its key
	Size int64                 `json:"size"`
	Time time.Time             `json:"time,omitzero"` // at this time, a quorum of witnesses had seen no other history
	By   []witness.Cosignature `json:"by"`

	text string
}

func newWitnessedCheckpoint(c witness.Checkpoint) *witnessedCheckpoint {
	by := c.By
	if by == nil {
		by = []witness.Cosignature{}
	}
	return &witnessedCheckpoint{journal.LogName(c.Log), c.Tree.N, c.Time, by, c.String()}
}

// witnessCheck checks checkpoints of a log against --policy.
type witnessCheck struct {
	file      string
	notBefore time.Time            // the quorum's cosignatures must not be older; zero means any age
	policy    *witness.Policy      // nil without --policy
	found     *witnessedCheckpoint // nil until a checkpoint was checked
}

// open checks a checkpoint, and returns the verifier of its log.
func (w *witnessCheck) open(signed []byte) (note.Verifier, error) {
	c, err := w.policy.Open(signed, time.Now())
	if err != nil {
		return nil, err
	}
	switch {
	case w.notBefore.IsZero():
	case c.Time.IsZero():
		return nil,
			errors.New("--not-older-than needs a policy with a quorum of witnesses, whose cosignatures have the time")
	case c.Time.Before(w.notBefore):
		return nil, fmt.Errorf(
			"the checkpoint of %d records was cosigned at %s, before %s (--not-older-than): get a newer checkpoint",
			c.Tree.N, text.Time(c.Time), text.Time(w.notBefore))
	}
	w.found = newWitnessedCheckpoint(c)
	return c.Log, nil
}

// since checks the checkpoint with which the journal must still be consistent. Without --since-checkpoint, it takes the
// newest checkpoint that the appliance publishes, and sets opts.Earlier to it.
func (w *witnessCheck) since(ctx context.Context, o backend, opts *audit.Options) error {
	if w.policy == nil {
		return nil
	}
	if opts.Earlier == nil {
		published, err := o.Published(ctx)
		if err != nil {
			return err
		}
		opts.Earlier = published
	}
	_, err := w.open(opts.Earlier)
	return err
}

func newLogProve(a *app) *cobra.Command {
	var witnessed bool
	cmd := &cobra.Command{
		Use:   "prove ID",
		Short: "Print the proof that an attestation is in the journal (C2SP tlog-proof)",
		Long: `Print the proof that an attestation is in the tree of the newest checkpoint (C2SP tlog-proof). With --output
json: the record's leaf, the hashes and the checkpoint.

With --witnessed, the checkpoint is cosigned by a quorum of witnesses (journal.witnesses), and the proof
includes the record's leaf: 'attestd verify FILE --policy P' checks it anywhere. If no witnessed checkpoint
covers the record yet, the command asks the witnesses and waits; after a while it reports their progress. The
leaf links the address to the beneficiary.`,
		Example: `  attestd log prove 0198c1f2-7a3b-7def-8123-456789abcdef > attestation.tlog-proof
  attestd log prove 0198c1f2-7a3b-7def-8123-456789abcdef --witnessed > attestation.tlog-proof`,
		Args: oneArg("attestation ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := attestationID(cmd, args[0])
			if err != nil {
				return err
			}
			return a.withBackend(cmd, func(o backend) error { return a.prove(cmd.Context(), o, id, witnessed) })
		},
	}
	cmd.Flags().BoolVar(&witnessed, "witnessed", false,
		"with the leaf, under a checkpoint cosigned by a quorum of witnesses")
	return cmd
}

func (a *app) prove(ctx context.Context, o backend, id uuid.UUID, witnessed bool) error {
	prove := o.Prove
	if witnessed {
		prove = o.ProveWitnessed
	}
	e, proof, err := prove(ctx, id)
	if err != nil {
		return err
	}
	return a.print(struct {
		Leaf  []byte    `json:"leaf"` // base64
		Proof proofView `json:"proof"`
	}{e.Leaf, viewProof(proof)}, func(w io.Writer) {
		if witnessed {
			io.WriteString(w, proof.WithLeaf(e.Leaf))
			return
		}
		io.WriteString(w, proof.String())
	})
}

// proofView is the JSON form of a proof, with hexadecimal hashes as in all --output json. The API's answers have
// another form.
type proofView struct {
	Index      int64              `json:"index"`
	TreeSize   int64              `json:"treeSize"`
	LeafHash   journal.HexBytes   `json:"leafHash"`
	Hashes     []journal.HexBytes `json:"hashes"`
	Checkpoint string             `json:"checkpoint"`
}

func viewProof(p journal.InclusionProof) proofView {
	view := proofView{p.Index, p.TreeSize, p.LeafHash, make([]journal.HexBytes, len(p.Hashes)), p.Checkpoint}
	for i, h := range p.Hashes {
		view.Hashes[i] = h
	}
	return view
}

func newLogCheckpoint(a *app) *cobra.Command {
	var newest bool
	cmd := &cobra.Command{
		Use:   "checkpoint",
		Short: "Print the published signed checkpoint (C2SP tlog-checkpoint)",
		Long: `Print the signed checkpoint that GET /log/checkpoint returns: the log's origin, the number of records, the
root hash and the signatures. With journal.witnesses, it is the newest checkpoint cosigned by a quorum of
witnesses; otherwise, and with --newest, the newest of all. A stored checkpoint can later prove that no
earlier record was changed: attestd log verify --since-checkpoint FILE.`,
		Example: "  attestd log checkpoint > 2026-11.checkpoint",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withBackend(cmd, func(o backend) error {
				read := o.Published
				if newest {
					read = o.Checkpoint
				}
				checkpoint, err := read(cmd.Context())
				if err != nil {
					return err
				}
				if a.json() {
					return a.printJSON(map[string]string{"checkpoint": string(checkpoint)})
				}
				_, err = a.out.Write(checkpoint)
				return err
			})
		},
	}
	cmd.Flags().BoolVar(&newest, "newest", false, "the newest checkpoint, even if no witness has cosigned it yet")
	return cmd
}

// witnesses opens the cosignatures that the daemon gathered. It asks no witness.
func (f offline) witnesses() (*witness.Gatherer, error) {
	return daemon.OpenWitnesses(f.config, f.store, daemon.WitnessOptions{})
}

func (f offline) Published(ctx context.Context) ([]byte, error) {
	w, err := f.witnesses()
	if err != nil {
		return nil, err
	}
	return w.Published(ctx)
}

func (f offline) ProveWitnessed(ctx context.Context, id uuid.UUID) (journal.Entry, journal.InclusionProof, error) {
	w, err := f.witnesses()
	if err != nil {
		return journal.Entry{}, journal.InclusionProof{}, err
	}
	e, err := f.store.Journal.ByID(ctx, id)
	if err != nil {
		return journal.Entry{}, journal.InclusionProof{}, err
	}
	ended, end := context.WithCancel(ctx)
	end()
	proof, err := w.Prove(ended, e.Index)
	if appliance.CodeOf(err) == appliance.CodeTimeout {
		err = fmt.Errorf("%w; start attestd, which asks the witnesses: systemctl start attestd", err)
	}
	return e, proof, err
}
