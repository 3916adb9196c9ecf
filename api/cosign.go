package api

import (
	"strings"
	"time"

	"github.com/gofiber/fiber/v2"

	"github.com/attestd/attestd/api/wire"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/appliance/quorum"
)

// cosign is POST /functions/v1/cosign: another member of the quorum asks for this appliance's signature.
func (s *Server) cosign(c *fiber.Ctx) error {
	id, err := idempotencyKey(c)
	if err != nil {
		return err
	}
	var r quorum.Cosign
	if err := wire.ReadObject(Body(c), &r); err != nil {
		return err
	}
	ctx := s.deadlines.context()
	if r.Trial {
		trial, err := s.attestor.Trial(ctx, Key(c))
		if err != nil {
			return err
		}
		return sendJSON(c, fiber.StatusOK, trial)
	}
	if err := s.checkCosign(r, id, Key(c)); err != nil {
		return err
	}
	e, _, err := s.attestor.Attest(ctx, appliance.Call{
		Key: Key(c), Request: r.Request(), IdempotencyKey: id, Coordinator: r.Coordinator,
	})
	if err != nil {
		return err
	}
	return sendBytes(c, fiber.StatusOK, attestationOf(e))
}

// maxOrigin bounds the name of a coordinator's log, in bytes.
const maxOrigin = 1024

// checkCosign checks that the request is complete, that the API key may name this coordinator, and that the hash is the
// digest that this appliance would sign.
func (s *Server) checkCosign(r quorum.Cosign, id string, key appliance.APIKey) error {
	missing := func(name string) error {
		return appliance.Errorf(appliance.CodeMissingField, "%s is required", name).In(name)
	}
	switch {
	case r.UnspendableAddress == nil:
		return missing("unspendableAddress")
	case r.Beneficiary == nil:
		return missing("beneficiary")
	case r.Hash == nil:
		return missing("hash")
	case r.Coordinator == "":
		return missing("coordinator")
	case len(r.Coordinator) > maxOrigin:
		return appliance.Errorf(appliance.CodeInvalidField, "coordinator has more than %d bytes",
			maxOrigin).In("coordinator")
	case !s.mayName(key, r.Coordinator):
		return appliance.Errorf(appliance.CodeInvalidField,
			"coordinator is not the log of the member whose API key this is: "+
				"an API key of scope cosign is named like its member").In("coordinator")
	case id == "":
		return appliance.Errorf(appliance.CodeInvalidIdempotencyKey,
			"Idempotency-Key is required: the id of the coordinator's request")
	}
	if want := s.attestor.Scheme.Digest(r.Request()); want != *r.Hash {
		return appliance.Errorf(appliance.CodeInvalidField,
			"hash is not the digest of these addresses by this member's scheme, %s: "+
				"attestation.scheme must be the same at all members", s.attestor.Scheme.Name).In("hash")
	}
	return nil
}

// mayName reports whether an API key may name a coordinator. The answer to a coordinator's repeat has the recorded
// signature, which another member must not get in its name. The key of a member is named like the member. A suffix
// after a dot, which no member's name has, is for its next key.
func (s *Server) mayName(key appliance.APIKey, coordinator string) bool {
	member, known := s.opts.Coordinators[coordinator]
	name, _, _ := strings.Cut(key.Name, ".")
	return coordinator != s.origin && (!known || name == member)
}

// cosigner is GET /functions/v1/cosign.
func (s *Server) cosigner(c *fiber.Ctx) error {
	address, err := s.attestor.SignerOf(Key(c))
	if err != nil {
		return err
	}
	return sendJSON(c, fiber.StatusOK, quorum.State{
		SignerAddress: address, Scheme: s.attestor.Scheme.Name, Version: s.opts.Version, Origin: s.origin,
		VerifierKey: s.opts.LogVerifier,
	})
}

// proveToMember is GET /functions/v1/cosign/{hash}: the proof that this journal has an attestation of a redeemed hash
// that was made before ?until=TIME. It is a C2SP tlog-proof with the leaf. The leaf has the addresses and
// the signatures. The member must know the hash, which is on chain after a redemption.
func (s *Server) proveToMember(c *fiber.Ctx) error {
	var hash appliance.Digest
	if err := hash.UnmarshalText([]byte(c.Params("hash"))); err != nil {
		return appliance.Errorf(appliance.CodeInvalidField, "hash %s", err).In("hash")
	}
	until, err := time.Parse(time.RFC3339Nano, c.Query("until"))
	if err != nil {
		return appliance.Errorf(appliance.CodeInvalidField,
			"until must be a time like 2026-01-31T12:00:00Z").In("until")
	}
	ctx := s.deadlines.context()
	q := journal.Query{Hash: &hash, Until: until, Limit: 1, AttestationsOnly: true}
	found, err := s.attestor.Journal.List(ctx, q)
	if err != nil {
		return err
	}
	if len(found) == 0 {
		return appliance.Errorf(appliance.CodeNotFound, "the journal had no attestation of %s then", hash)
	}
	proof, err := s.attestor.Journal.Prove(ctx, found[0].Index)
	if err != nil {
		return err
	}
	c.Context().Response.Header.SetContentType("text/plain; charset=utf-8")
	return c.SendString(proof.WithLeaf(found[0].Leaf))
}
