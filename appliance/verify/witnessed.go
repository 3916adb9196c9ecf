package verify

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/attestd/attestd/api/wire"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/appliance/witness"
)

// Proven is a file's leaf in the log, and the proof of its inclusion. Neither is verified yet.
type Proven struct {
	Leaf  []byte                 `json:"leaf"`
	Proof journal.InclusionProof `json:"proof"`

	IsProof bool `json:"-"` // the file has no other members
}

// ParseProven reads a file as Parse does, with its proof of inclusion. The file is a C2SP tlog-proof with its leaf
// ('attestd log prove ID --witnessed'), the same in JSON, or the answer of GET /functions/v1/attest/{id}. proven is nil
// if the file has no proof.
func ParseProven(text []byte) (f File, proven *Proven, err error) {
	if proven, err = provenIn(text); err != nil || proven == nil {
		if err == nil {
			f, err = Parse(text)
		}
		return f, nil, err
	}
	e, err := journal.DecodeEntry(proven.Proof.Index, proven.Leaf)
	if err != nil {
		return f, nil, fmt.Errorf("leaf: %w", err)
	}
	if e.Event != nil {
		return f, nil, fmt.Errorf("it proves an event, %s. To check events, run: attestd log verify", e.Event.Kind)
	}
	inLeaf, err := Parse(proven.Leaf)
	if err != nil || proven.IsProof {
		return inLeaf, proven, err
	}
	if f, err = Parse(text); err != nil {
		return f, nil, err
	}
	if f.Attestation != inLeaf.Attestation {
		return f, nil, errors.New("the leaf belongs to another attestation")
	}
	return f, proven, nil
}

// provenIn returns nil if the text has no proof.
func provenIn(text []byte) (*Proven, error) {
	if journal.IsProof(text) {
		proof, leaf, err := journal.ParseProof(text)
		if err == nil && leaf == nil {
			err = errors.New("the proof lacks its leaf (extra). To make a complete one, run: attestd log prove ID " +
				"--witnessed")
		}
		return &Proven{Leaf: leaf, Proof: proof, IsProof: true}, err
	}
	var p Proven
	if err := wire.ReadSome(text, &p); err != nil {
		return nil, err
	}
	if p.Leaf == nil || p.Proof.Checkpoint == "" {
		return nil, nil
	}
	var only map[string]json.RawMessage
	if err := json.Unmarshal(text, &only); err != nil {
		return nil, err
	}
	p.IsProof = only["signature"] == nil
	return &p, nil
}

// checkLogged checks that the log has the attestation, under a checkpoint that the policy accepts or that the log's key
// signed.
func (k *Known) checkLogged() Check {
	name, missing := "witnessed", "no witnessed log entry checked"
	if k.Policy == nil && k.Verifier != nil {
		name, missing = "log", "no log entry checked"
	}
	switch {
	case k.Policy == nil && k.Verifier == nil:
		return Check{name, Unchecked, missing + ": give --policy, or --verifier-key for the log's signature alone"}
	case k.Proven == nil:
		return Check{name, Unchecked, missing + ": the file lacks a proof. To make one, run: attestd log prove ID " +
			"--witnessed"}
	}
	c, err := k.logged()
	if err != nil {
		return Check{name, Bad, err.Error()}
	}
	if k.Policy == nil {
		return Check{name, OK,
			fmt.Sprintf("record %d of the %d records of %s", k.Proven.Proof.Index, c.Tree.N, journal.LogName(c.Log))}
	}
	return Check{name, OK, fmt.Sprintf("record %d of the %s", k.Proven.Proof.Index, c)}
}

// logged verifies the proof, and returns its checkpoint.
func (k *Known) logged() (c witness.Checkpoint, err error) {
	signed := []byte(k.Proven.Proof.Checkpoint)
	if k.Policy != nil {
		c, err = k.Policy.Open(signed, time.Now())
	} else {
		c.Log = k.Verifier
		c.Tree, err = journal.OpenCheckpoint(signed, k.Verifier)
	}
	if err != nil {
		return c, err
	}
	if err := k.Proven.Proof.Verify(k.Proven.Leaf, c.Log); err != nil {
		return c, fmt.Errorf("the leaf is not in the tree of the checkpoint: %w", err)
	}
	return c, nil
}
