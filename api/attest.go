package api

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"slices"

	"github.com/gofiber/fiber/v2"
	"github.com/google/uuid"

	"github.com/attestd/attestd/api/wire"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/attest"
	"github.com/attestd/attestd/appliance/journal"
)

// attest is POST /functions/v1/attest.
func (s *Server) attest(c *fiber.Ctx) (err error) {
	idempotencyKey, err := idempotencyKey(c)
	if err != nil {
		return err
	}
	request, err := parseRequest(Body(c))
	if err != nil {
		return err
	}
	ctx := s.deadlines.context()
	if s.opts.Trace != nil {
		var traced func(error)
		ctx, traced = s.opts.Trace(ctx, tracedOf(c))
		defer func() { traced(err) }()
	}
	e, replayed, err := s.attestor.Attest(ctx,
		appliance.Call{Key: Key(c), Request: request, IdempotencyKey: idempotencyKey})
	if err != nil {
		return err
	}
	s.metrics.attested(replayed)
	if replayed {
		c.Set("Idempotent-Replayed", "true")
	} else {
		exchangeOf(c.Context()).charge.account.attested.Add(1)
	}
	return sendBytes(c, fiber.StatusOK, attestationOf(e))
}

// attestationOf returns the JSON of an entry's attestation. It copies the JSON from the start of the entry's leaf
// (journal.EncodeLeaf) and adds the signature's bytes, which the leaf lacks. An attestation of a quorum has more in
// the answer.
func attestationOf(e journal.Entry) []byte {
	attestation, _, isRecord := bytes.Cut(e.Leaf, []byte(`,"unspendableAddress":`))
	signed, signer, hasSigner := bytes.Cut(attestation, []byte(`},"signerAddress":`))
	if !isRecord || !hasSigner || e.Record.Quorum != nil {
		attestation, _ := json.Marshal(wire.NewAttestation(e.Record)) // hex strings and a number: cannot fail
		return attestation
	}
	signature := e.Record.Signature.Bytes()
	b := make([]byte, 0, 512)
	b = append(append(b, signed...), `,"bytes":"0x`...)
	b = hex.AppendEncode(b, signature[:])
	b = append(append(b, `"},"signerAddress":`...), signer...)
	return append(b, '}')
}

// idempotencyKey returns the request's Idempotency-Key (draft-ietf-httpapi-idempotency-key-header), or "" if the header
// is missing. The key is opaque: quotes are part of it.
func idempotencyKey(c *fiber.Ctx) (string, error) {
	values := c.Context().Request.Header.PeekAll("Idempotency-Key")
	if len(values) == 0 {
		return "", nil
	}
	if len(values) > 1 {
		return "", appliance.Errorf(appliance.CodeInvalidIdempotencyKey, "only one Idempotency-Key header is allowed")
	}
	key := string(values[0])
	return key, appliance.ValidateIdempotencyKey(key)
}

// readBack is GET /functions/v1/attest/{id}.
func (s *Server) readBack(c *fiber.Ctx) error {
	id, err := parseID(c.Params("id"))
	if err != nil {
		return err
	}
	ctx := s.deadlines.context()
	e, proof, err := s.attestor.ReadBack(ctx, Key(c), id)
	if err != nil {
		return err
	}
	r := e.Record
	made := wire.NewAttestation(r)
	return sendJSON(c, fiber.StatusOK, wire.ReadBack{
		Attestation: made.Attestation, Signatures: made.Signatures, Request: r.Request, Scheme: r.Scheme,
		Domain: r.Domain, Time: r.Time,
		Leaf: e.Leaf, Proof: proof,
	})
}

// parseID reads a UUID in its usual form. Unlike uuid.Parse it refuses braces and urn:uuid:.
func parseID(s string) (uuid.UUID, error) {
	id, err := uuid.Parse(s)
	if err != nil || len(s) != len(uuid.UUID{}.String()) {
		return uuid.UUID{}, appliance.Errorf(appliance.CodeInvalidID, "the id must be a UUID")
	}
	return id, nil
}

// describe is GET /functions/v1/attestor.
func (s *Server) describe(c *fiber.Ctx) error {
	a := s.attestor
	keys := attestorKeys(a)
	standard := a.DefaultKey().Signer
	return sendJSON(c, fiber.StatusOK, wire.Attestor{
		SignerAddress: standard.Address(), PublicKey: hexString(standard.PublicKey()), Scheme: a.Scheme.Name,
		Domain: a.Scheme.Domain,
		Keys:   keys, Log: wire.Log{Origin: s.origin, VerifierKey: s.opts.LogVerifier},
	})
}

// attestorKeys returns the attestor keys in their wire form. The first active key is the default.
func attestorKeys(a *attest.Attestor) []wire.AttestorKey {
	all := a.AttestorKeys()
	standard := slices.IndexFunc(all, func(k attest.AttestorKey) bool {
		return k.State == attest.AttestorKeyActive
	})
	keys := make([]wire.AttestorKey, len(all))
	for i, k := range all {
		keys[i] = wire.AttestorKey{Name: k.Name, State: k.State, Default: i == standard,
			SignerAddress: k.Signer.Address()}
		if public := k.Signer.PublicKey(); public != nil {
			keys[i].PublicKey = hexString(public)
		}
	}
	return keys
}

func hexString(b []byte) string { return "0x" + hex.EncodeToString(b) }
