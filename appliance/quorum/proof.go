package quorum

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/journal"
)

// Prove implements chain.Members: GET /functions/v1/cosign/{hash} at each member.
func (q *Quorum) Prove(ctx context.Context, hash appliance.Digest, until time.Time, enough int,
	skip []string) (proven, lacking, silent []string) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type result struct {
		member *member
		has    bool
		err    error
	}
	results := make(chan result, len(q.members))
	asked := 0
	for _, m := range q.members {
		if m.Log == nil || slices.Contains(skip, m.Name) {
			silent = append(silent, m.Name)
			continue
		}
		asked++
		go func() {
			has, err := m.proves(ctx, hash, until)
			results <- result{m, has, err}
		}()
	}
	for ; asked > 0 && len(proven) < enough; asked-- {
		switch r := <-results; {
		case r.err != nil:
			silent = append(silent, r.member.Name)
			r.member.log.Warn("quorum: a member does not say whether its journal has a redeemed attestation",
				"hash", hash.String(), "why", r.err.Error())
		case r.has:
			proven = append(proven, r.member.Name)
		default:
			lacking = append(lacking, r.member.Name)
		}
	}
	return proven, lacking, silent
}

// proves reports whether the member's journal has an attestation of the hash that was made before until.
//
// The record may be signed by another key than Member.Signer: the member's key before it was replaced.
func (m *member) proves(ctx context.Context, hash appliance.Digest, until time.Time) (bool, error) {
	path := "/" + hash.String() + "?until=" + url.QueryEscape(until.UTC().Format(time.RFC3339Nano))
	text, err := m.fetch(ctx, http.MethodGet, path, "", nil)
	if f, ok := errors.AsType[*failure](err); ok && f.code == appliance.CodeNotFound {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	proof, leaf, err := journal.ParseProof(text)
	if err != nil {
		return false, err
	}
	if err := proof.Verify(leaf, m.Log); err != nil {
		return false, fmt.Errorf("its proof does not verify with verifier_key: %w", err)
	}
	e, err := journal.DecodeEntry(proof.Index, leaf)
	switch {
	case err != nil:
		return false, err
	case e.Event != nil || e.Record.Hash != hash:
		return false, fmt.Errorf("it proves another leaf, %d", proof.Index)
	case !e.Record.Time.Before(until):
		return false, fmt.Errorf("it proves an attestation of %s, which is too late", e.Record.Time.Format(time.RFC3339))
	}
	return true, e.Verify()
}
