package hsm

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"

	"github.com/ethereum/go-ethereum/crypto"
	"github.com/miekg/pkcs11"

	"github.com/attestd/attestd/appliance"
)

// curveParams are the forms of CKA_EC_PARAMS that mean secp256k1 (PKCS#11 v2.40 mechanisms, section 2.3.3): the
// OID 1.3.132.0.10, and the curve's name as a PrintableString or UTF8String.
var curveParams = [][]byte{
	{0x06, 0x05, 0x2b, 0x81, 0x04, 0x00, 0x0a},
	append([]byte{0x13, 9}, "secp256k1"...),
	append([]byte{0x0c, 9}, "secp256k1"...),
}

const curveName = "secp256k1"

// privateKey is a private key object as the token describes it.
type privateKey struct {
	handle      pkcs11.ObjectHandle
	label       string
	id          []byte
	params      []byte // CKA_EC_PARAMS
	sensitive   bool
	extractable bool
	canSign     bool
}

func (k privateKey) String() string {
	return fmt.Sprintf("object=%q id=%s", k.label, hexOr(k.id, "none"))
}

func hexOr(b []byte, none string) string {
	if len(b) == 0 {
		return none
	}
	return hex.EncodeToString(b)
}

// findKey returns the one private EC key that has all the attributes of the URI.
//
// Errors: ErrNotFound and ErrAmbiguous, listing what is there.
func findKey(m module, h pkcs11.SessionHandle, u URI) (privateKey, error) {
	template := keyTemplate(pkcs11.CKO_PRIVATE_KEY, u.Object, u.ID)
	found, err := findObjects(m, h, template)
	if err != nil {
		return privateKey{}, err
	}
	if len(found) == 1 {
		return describeKey(m, h, found[0])
	}
	sought := "private EC key with " + u.keyAttributes()
	if len(found) > 1 {
		list, err := describeKeys(m, h, found)
		if err != nil {
			return privateKey{}, err
		}
		return privateKey{}, fmt.Errorf("%s: %w, add object or id to the URI; %s", sought, ErrAmbiguous, present("matching keys", list))
	}
	others, err := findObjects(m, h, keyTemplate(pkcs11.CKO_PRIVATE_KEY, "", nil))
	if err != nil {
		return privateKey{}, err
	}
	list, err := describeKeys(m, h, others)
	if err != nil {
		return privateKey{}, err
	}
	return privateKey{}, fmt.Errorf("%s: %w; %s", sought, ErrNotFound, present("private EC keys on the token", list))
}

// keyAttributes shows what the URI says of the key.
func (u URI) keyAttributes() string {
	switch only := (URI{Object: u.Object, ID: u.ID}).String()[len(uriScheme):]; only {
	case "":
		return "any label and id"
	default:
		return only
	}
}

func keyTemplate(class uint, label string, id []byte) []*pkcs11.Attribute {
	template := []*pkcs11.Attribute{
		pkcs11.NewAttribute(pkcs11.CKA_CLASS, class),
		pkcs11.NewAttribute(pkcs11.CKA_KEY_TYPE, pkcs11.CKK_EC),
	}
	if label != "" {
		template = append(template, pkcs11.NewAttribute(pkcs11.CKA_LABEL, label))
	}
	if len(id) > 0 {
		template = append(template, pkcs11.NewAttribute(pkcs11.CKA_ID, id))
	}
	return template
}

func findObjects(m module, h pkcs11.SessionHandle, template []*pkcs11.Attribute) ([]pkcs11.ObjectHandle, error) {
	if err := m.FindObjectsInit(h, template); err != nil {
		return nil, failed("C_FindObjectsInit", err)
	}
	var all []pkcs11.ObjectHandle
	var err error
	for {
		var some []pkcs11.ObjectHandle
		some, _, err = m.FindObjects(h, 64)
		if err != nil || len(some) == 0 {
			break
		}
		all = append(all, some...)
	}
	// Ended even after an error: a search left active refuses the session's next one.
	final := m.FindObjectsFinal(h)
	if err != nil {
		return nil, failed("C_FindObjects", err)
	}
	return all, failed("C_FindObjectsFinal", final)
}

func describeKeys(m module, h pkcs11.SessionHandle, objects []pkcs11.ObjectHandle) ([]privateKey, error) {
	list := make([]privateKey, 0, len(objects))
	for _, o := range objects {
		k, err := describeKey(m, h, o)
		if err != nil {
			return nil, err
		}
		list = append(list, k)
	}
	return list, nil
}

// describeKey reads each attribute by itself, because one that a token does not know fails the whole call. What
// cannot be read counts against the key: not sensitive, extractable, not for signing.
func describeKey(m module, h pkcs11.SessionHandle, o pkcs11.ObjectHandle) (privateKey, error) {
	r := attributeReader{m: m, h: h, o: o}
	k := privateKey{
		handle:      o,
		label:       string(r.bytes(pkcs11.CKA_LABEL)),
		id:          r.bytes(pkcs11.CKA_ID),
		params:      r.bytes(pkcs11.CKA_EC_PARAMS),
		sensitive:   r.is(pkcs11.CKA_SENSITIVE, false),
		extractable: r.is(pkcs11.CKA_EXTRACTABLE, true),
		canSign:     r.is(pkcs11.CKA_SIGN, false),
	}
	return k, r.err
}

// attributeReader reads attributes until a call fails for another reason than that the object has none to show.
type attributeReader struct {
	m   module
	h   pkcs11.SessionHandle
	o   pkcs11.ObjectHandle
	err error
}

func (r *attributeReader) bytes(attribute uint) []byte {
	if r.err != nil {
		return nil
	}
	got, err := r.m.GetAttributeValue(r.h, r.o, []*pkcs11.Attribute{pkcs11.NewAttribute(attribute, nil)})
	switch rvOf(err) {
	case pkcs11.CKR_ATTRIBUTE_TYPE_INVALID, pkcs11.CKR_ATTRIBUTE_SENSITIVE:
		return nil
	}
	if err != nil || len(got) != 1 {
		r.err = failed("C_GetAttributeValue", err)
		return nil
	}
	return got[0].Value
}

func (r *attributeReader) is(attribute uint, unknown bool) bool {
	value := r.bytes(attribute)
	if len(value) != 1 {
		return unknown
	}
	return value[0] != 0
}

func (k privateKey) isSecp256k1() bool {
	return slices.ContainsFunc(curveParams, func(p []byte) bool { return bytes.Equal(p, k.params) })
}

// check says whether the key may be an attestor key.
func (k privateKey) check(allowExtractable bool) error {
	switch {
	case !k.isSecp256k1():
		return fmt.Errorf("key %s: CKA_EC_PARAMS is %s, not secp256k1; make a key with attestd hsm keygen", k, hexOr(k.params, "unreadable"))
	case !k.canSign:
		return fmt.Errorf("key %s: CKA_SIGN is false: it may not sign", k)
	case allowExtractable:
		return nil
	case k.extractable:
		return fmt.Errorf("key %s: CKA_EXTRACTABLE is true: it could leave the token; make one with attestd hsm keygen, or set hsm.allow_extractable", k)
	case !k.sensitive:
		return fmt.Errorf("key %s: CKA_SENSITIVE is false: it can be read in plain; make one with attestd hsm keygen, or set hsm.allow_extractable", k)
	}
	return nil
}

// signRaw returns r and s of an ECDSA signature over the 32 bytes (CKM_ECDSA, PKCS#11 v2.40 mechanisms, section 2.3.6).
func signRaw(m module, h pkcs11.SessionHandle, key pkcs11.ObjectHandle, digest appliance.Digest) (rs [64]byte, err error) {
	if err := m.SignInit(h, []*pkcs11.Mechanism{pkcs11.NewMechanism(pkcs11.CKM_ECDSA, nil)}, key); err != nil {
		return rs, failed("C_SignInit", err)
	}
	signature, err := m.Sign(h, digest[:])
	if err != nil {
		return rs, failed("C_Sign", err)
	}
	if len(signature) != len(rs) {
		return rs, fmt.Errorf("C_Sign: %w: the signature has %d bytes, not %d", ErrWrongKey, len(signature), len(rs))
	}
	return [64]byte(signature), nil
}

// trialDigest makes a digest for a trial signature, one that no attestation can have. The attestor key signs
// attestations and nothing else, so a trial signature must be worth nothing to anyone who gets hold of it:
//
//   - its first byte is 0xff, so as a number it is above the order of the BN254 scalar field, where no digest of
//     the schemes keccak256-bn254 and mimc-bn254 lies and which the verifying contract refuses;
//   - the rest is SHA-256 of a tag and 32 random bytes, which meets the Keccak-256 of a chosen pair of addresses
//     (schemes keccak256 and eip712) only by a preimage found over 248 bits.
func trialDigest() appliance.Digest {
	preimage := make([]byte, 32)
	rand.Read(preimage) // never fails (Go 1.24)
	digest := sha256.Sum256(append([]byte("attestd trial signature, not an attestation\x00"), preimage...))
	digest[0] = 0xff
	return digest
}

// tryKey makes a trial signature and returns ErrWrongKey unless it verifies under the public key.
func tryKey(m module, h pkcs11.SessionHandle, key pkcs11.ObjectHandle, publicKey []byte) error {
	digest := trialDigest()
	rs, err := signRaw(m, h, key, digest)
	if err != nil {
		return fmt.Errorf("trial signature: %w", err)
	}
	if _, err := appliance.NewSignature(digest, rs, publicKey); err != nil {
		return fmt.Errorf("trial signature: %w: %w", ErrWrongKey, err)
	}
	return nil
}

// publicKeyOf returns the public half of the key as 65 bytes (SEC 1 uncompressed), proved by a trial signature:
// from a public key object where the token has one that fits, else from trial signatures alone.
func publicKeyOf(m module, h pkcs11.SessionHandle, k privateKey) ([]byte, error) {
	points, err := publicPoints(m, h, k)
	if err != nil {
		return nil, fmt.Errorf("read the public key: %w", err)
	}
	if len(points) == 0 {
		return recoverPublicKey(m, h, k.handle)
	}
	for _, point := range points {
		err = tryKey(m, h, k.handle, point)
		if !errors.Is(err, ErrWrongKey) {
			return point, err
		}
	}
	return nil, fmt.Errorf("the public key object of key %s is not its own: %w", k, err)
}

// publicPoints returns the points of the public key objects that belong to k by id, or by label where it has no
// id. Some tokens show CKA_EC_POINT on the private key too.
func publicPoints(m module, h pkcs11.SessionHandle, k privateKey) ([][]byte, error) {
	var objects []pkcs11.ObjectHandle
	if len(k.id) > 0 || k.label != "" {
		label := k.label
		if len(k.id) > 0 {
			label = ""
		}
		var err error
		if objects, err = findObjects(m, h, keyTemplate(pkcs11.CKO_PUBLIC_KEY, label, k.id)); err != nil {
			return nil, err
		}
	}
	var points [][]byte
	for _, o := range append(objects, k.handle) {
		r := attributeReader{m: m, h: h, o: o}
		value := r.bytes(pkcs11.CKA_EC_POINT)
		if r.err != nil {
			return nil, r.err
		}
		if len(value) == 0 {
			continue
		}
		point, err := parsePoint(value)
		if err != nil {
			return nil, fmt.Errorf("CKA_EC_POINT %x: %w", value, err)
		}
		points = append(points, point)
	}
	return points, nil
}

// parsePoint reads CKA_EC_POINT. PKCS#11 v2.40 wants a DER OCTET STRING around the point; some tokens give a
// BIT STRING or the bare point, and some compress it. The length tells them apart, as the first byte cannot: an
// OCTET STRING and an uncompressed point both begin with 4.
func parsePoint(value []byte) ([]byte, error) {
	point := value
	switch {
	case len(value) == 67 || len(value) == 35:
		if value[0] != 0x04 || int(value[1]) != len(value)-2 {
			return nil, errors.New("not a DER OCTET STRING")
		}
		point = value[2:]
	case len(value) == 68 || len(value) == 36:
		if value[0] != 0x03 || int(value[1]) != len(value)-2 || value[2] != 0 {
			return nil, errors.New("not a DER BIT STRING")
		}
		point = value[3:]
	}
	if len(point) == 33 {
		key, err := crypto.DecompressPubkey(point)
		if err != nil {
			return nil, errors.New("not a point of secp256k1")
		}
		return crypto.FromECDSAPub(key), nil
	}
	if _, err := crypto.UnmarshalPubkey(point); err != nil {
		return nil, errors.New("not a point of secp256k1")
	}
	return slices.Clone(point), nil
}

// recoverPublicKey finds the public key that all of several trial signatures have in common. Each signature by
// itself fits two keys.
func recoverPublicKey(m module, h pkcs11.SessionHandle, key pkcs11.ObjectHandle) ([]byte, error) {
	var common [][]byte
	for round := range 3 {
		digest := trialDigest()
		rs, err := signRaw(m, h, key, digest)
		if err != nil {
			return nil, fmt.Errorf("recover the public key: %w", err)
		}
		fits := recoverCandidates(digest, rs)
		if round == 0 {
			common = fits
			continue
		}
		common = slices.DeleteFunc(common, func(c []byte) bool {
			return !slices.ContainsFunc(fits, func(f []byte) bool { return bytes.Equal(c, f) })
		})
	}
	if len(common) != 1 {
		return nil, fmt.Errorf("recover the public key: %w: %d keys fit all trial signatures", ErrWrongKey, len(common))
	}
	return common[0], nil
}

func recoverCandidates(digest appliance.Digest, rs [64]byte) [][]byte {
	var fits [][]byte
	for v := range byte(2) {
		if point, err := crypto.Ecrecover(digest[:], append(slices.Clone(rs[:]), v)); err == nil {
			fits = append(fits, point)
		}
	}
	return fits
}
