package api

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"strconv"
	"time"
	"unicode/utf8"

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

// parseRequest reads a Request from exactly one JSON object with exactly its two members, named exactly so:
// encoding/json alone would also take other cases, duplicates and trailing data.
func parseRequest(body []byte) (appliance.Request, error) {
	var r appliance.Request
	if !utf8.Valid(body) || !json.Valid(body) {
		return r, appliance.Errorf(appliance.CodeInvalidJSON, "the body must be one JSON object in UTF-8")
	}
	members, err := stringMembers(body, "unspendableAddress", "beneficiary")
	if err != nil {
		return r, err
	}
	if r.UnspendableAddress, err = parseMember(members, "unspendableAddress"); err != nil {
		return r, err
	}
	r.Beneficiary, err = parseMember(members, "beneficiary")
	return r, err
}

func parseMember(members map[string]string, name string) (appliance.Address, error) {
	text, has := members[name]
	if !has {
		return appliance.Address{}, appliance.Errorf(appliance.CodeMissingField, "%s is required", name).In(name)
	}
	address, err := appliance.ParseAddress(text)
	if err != nil {
		e := asError(err)
		return address, appliance.Errorf(e.Code, "%s %s", name, e.Detail).In(name)
	}
	return address, nil
}

// stringMembers returns the members of a valid JSON object that has no others than those allowed, all strings.
func stringMembers(object []byte, allowed ...string) (map[string]string, error) {
	decoder := json.NewDecoder(bytes.NewReader(object))
	if open, err := decoder.Token(); err != nil || open != json.Delim('{') {
		return nil, appliance.Errorf(appliance.CodeInvalidJSON, "the body must be one JSON object in UTF-8")
	}
	members := make(map[string]string, len(allowed))
	for decoder.More() {
		name, _ := stringToken(decoder) // a member's name is always a string
		if err := checkMember(name, members, allowed); err != nil {
			return nil, err
		}
		value, ok := stringToken(decoder)
		if !ok {
			return nil, appliance.Errorf(appliance.CodeInvalidField, "%s must be a string", name).In(name)
		}
		members[name] = value
	}
	return members, nil
}

func stringToken(decoder *json.Decoder) (string, bool) {
	token, err := decoder.Token()
	s, ok := token.(string)
	return s, ok && err == nil
}

func checkMember(name string, seen map[string]string, allowed []string) error {
	if _, twice := seen[name]; twice {
		return appliance.Errorf(appliance.CodeDuplicateField, "%s is there twice", name).In(name)
	}
	for _, a := range allowed {
		if name == a {
			return nil
		}
	}
	shown := shorten(name)
	return appliance.Errorf(appliance.CodeUnknownField, "there is no field %s", strconv.Quote(shown)).In(shown)
}

// shorten bounds what of a client's own text is repeated to it.
func shorten(s string) string {
	const most = 64
	if len(s) <= most {
		return s
	}
	cut := most
	for !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + "…"
}
