package api

import (
	"context"
	"encoding/hex"
	"strconv"
	"time"

	"github.com/gofiber/fiber/v2"
	"github.com/google/uuid"

	"github.com/attestd/attestd/appliance"
)

// attest is POST /functions/v1/attest.
func (s *Server) attest(c *fiber.Ctx) error {
	idempotencyKey, err := idempotencyKey(c)
	if err != nil {
		return err
	}
	request, err := parseRequest(c.Body())
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(s.base, s.opts.RequestTimeout)
	defer cancel()
	e, replayed, err := s.attestor.Attest(ctx, appliance.Call{Key: Key(c), Request: request, IdempotencyKey: idempotencyKey})
	if err != nil {
		return err
	}
	s.metrics.attested(replayed)
	if replayed {
		c.Set("Idempotent-Replayed", "true")
	}
	return sendBytes(c, fiber.StatusOK, appendAttestation(make([]byte, 0, 512), e.Record.Attestation))
}

// appendAttestation writes what json.Marshal does, in a tenth of its time: this is every answer.
func appendAttestation(b []byte, a appliance.Attestation) []byte {
	b = append(b, `{"id":"`...)
	b = append(b, a.ID.String()...)
	b = append(b, `","hash":"0x`...)
	b = hex.AppendEncode(b, a.Hash[:])
	b = append(b, `","signature":{"r":"0x`...)
	b = hex.AppendEncode(b, a.Signature.R[:])
	b = append(b, `","s":"0x`...)
	b = hex.AppendEncode(b, a.Signature.S[:])
	b = append(b, `","v":`...)
	b = strconv.AppendUint(b, uint64(a.Signature.V), 10)
	b = append(b, `},"signerAddress":"`...)
	b = append(b, a.SignerAddress.String()...)
	return append(b, `"}`...)
}

// idempotencyKey returns the request's Idempotency-Key, "" for none
// (draft-ietf-httpapi-idempotency-key-header). It is opaque: a quoted one is another than the same unquoted.
func idempotencyKey(c *fiber.Ctx) (string, error) {
	values := c.Context().Request.Header.PeekAll("Idempotency-Key")
	if len(values) == 0 {
		return "", nil
	}
	if len(values) > 1 {
		return "", appliance.Errorf(appliance.CodeInvalidIdempotencyKey, "there must be one Idempotency-Key header")
	}
	key := string(values[0])
	return key, appliance.ValidateIdempotencyKey(key)
}

// readBack is the answer of GET /functions/v1/attest/{id}: the attestation, what it was made of, and what proves that
// it is in the log.
type readBack struct {
	appliance.Attestation
	appliance.Request
	Scheme string                   `json:"scheme"`
	Domain *appliance.EIP712Domain  `json:"domain,omitempty"`
	Time   time.Time                `json:"time"`
	Leaf   []byte                   `json:"leaf"` // base64; what Proof is about
	Proof  appliance.InclusionProof `json:"proof"`
}

func (s *Server) readBack(c *fiber.Ctx) error {
	id, err := parseID(c.Params("id"))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(s.base, s.opts.RequestTimeout)
	defer cancel()
	e, proof, err := s.attestor.ReadBack(ctx, Key(c), id)
	if err != nil {
		return err
	}
	r := e.Record
	return sendJSON(c, fiber.StatusOK, readBack{
		Attestation: r.Attestation, Request: r.Request, Scheme: r.Scheme, Domain: r.Domain, Time: r.Time,
		Leaf: e.Leaf, Proof: proof,
	})
}

// parseID reads a UUID in its one usual form; uuid.Parse alone would also take braces and urn:uuid:.
func parseID(s string) (uuid.UUID, error) {
	id, err := uuid.Parse(s)
	if err != nil || len(s) != len(uuid.UUID{}.String()) {
		return uuid.UUID{}, appliance.Errorf(appliance.CodeInvalidID, "the id must be a UUID")
	}
	return id, nil
}

// description is what anyone may know of an attestor: enough to check its attestations and its log.
type description struct {
	SignerAddress appliance.Address       `json:"signerAddress"`
	PublicKey     string                  `json:"publicKey"` // 0x and 65 bytes: SEC 1, uncompressed
	Scheme        appliance.SchemeName    `json:"scheme"`
	Domain        *appliance.EIP712Domain `json:"domain,omitempty"`
	Log           logDescription          `json:"log"`
}

type logDescription struct {
	Origin      string `json:"origin"`
	VerifierKey string `json:"verifierKey"` // C2SP signed-note
}

func (s *Server) describe(c *fiber.Ctx) error {
	a := s.attestor
	return sendJSON(c, fiber.StatusOK, description{
		SignerAddress: a.Signer.Address(), PublicKey: hexString(a.Signer.PublicKey()), Scheme: a.Scheme.Name, Domain: a.Scheme.Domain,
		Log: logDescription{Origin: s.origin, VerifierKey: s.opts.LogVerifier},
	})
}

func hexString(b []byte) string { return "0x" + hex.EncodeToString(b) }
