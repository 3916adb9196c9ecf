package hsm

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"slices"

	"github.com/agnivade/levenshtein"
	"github.com/miekg/pkcs11"

	"github.com/attestd/attestd/appliance"
)

// curveParams are the values of CKA_EC_PARAMS for secp256k1 (PKCS#11 v2.40 mechanisms, section 2.3.3): the OID
// 1.3.132.0.10, and the name of the curve as a PrintableString or UTF8String.
var curveParams = [][]byte{
	{0x06, 0x05, 0x2b, 0x81, 0x04, 0x00, 0x0a},
	append([]byte{0x13, 9}, "secp256k1"...),
	append([]byte{0x0c, 9}, "secp256k1"...),
}

const curveName = "secp256k1"

// privateKey is a private key object as the token describes it.
type privateKey struct {
	algorithm   Algorithm
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

// findKey returns the one private EC key that has all attributes of the URI.
//
// Errors, which list the existing keys: ErrNotFound, ErrAmbiguous.
func findKey(m module, h pkcs11.SessionHandle, o Options) (privateKey, error) {
	u, a := o.URI, o.Algorithm
	found, err := findObjects(m, h, a.template(pkcs11.CKO_PRIVATE_KEY, u.Object, u.ID))
	if err != nil {
		return privateKey{}, err
	}
	if len(found) == 1 {
		return describeKey(m, h, a, found[0])
	}
	sought := "private EC key with " + u.keyAttributes()
	if a == Ed25519 {
		sought = "private Ed25519 key with " + u.keyAttributes()
	}
	if len(found) > 1 {
		list, err := describeKeys(m, h, a, found)
		if err != nil {
			return privateKey{}, err
		}
		return privateKey{},
			fmt.Errorf("%s: %w, add object or id to the URI; %s", sought, ErrAmbiguous, present("matching keys", list))
	}
	others, err := findObjects(m, h, a.template(pkcs11.CKO_PRIVATE_KEY, "", nil))
	if err != nil {
		return privateKey{}, err
	}
	list, err := describeKeys(m, h, a, others)
	if err != nil {
		return privateKey{}, err
	}
	return privateKey{}, fmt.Errorf("%s: %w; %s", sought, notFoundAmong(u, list),
		present("private keys of this type on the token", list))
}

// notFoundAmong returns ErrNotFound, with ErrOtherKeys and the most similar label if the token has keys.
func notFoundAmong(u URI, keys []privateKey) error {
	if len(keys) == 0 {
		return ErrNotFound
	}
	nearest := slices.MinFunc(keys, func(a, b privateKey) int {
		return levenshtein.ComputeDistance(u.Object, a.label) - levenshtein.ComputeDistance(u.Object, b.label)
	}).label
	if u.Object == "" || nearest == u.Object || nearest == "" {
		return fmt.Errorf("%w: %w", ErrNotFound, ErrOtherKeys)
	}
	return fmt.Errorf("%w: %w; did you mean object=%s?", ErrNotFound, ErrOtherKeys, nearest)
}

// keyAttributes returns the part of the URI that names the key.
func (u URI) keyAttributes() string {
	switch only := (URI{Object: u.Object, ID: u.ID}).String()[len(uriScheme):]; only {
	case "":
		return "any label and id"
	default:
		return only
	}
}

func (a Algorithm) template(class uint, label string, id []byte) []*pkcs11.Attribute {
	template := []*pkcs11.Attribute{
		pkcs11.NewAttribute(pkcs11.CKA_CLASS, class),
		pkcs11.NewAttribute(pkcs11.CKA_KEY_TYPE, a.keyType()),
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
	// Also after an error: while a search is active, the session refuses another.
	final := m.FindObjectsFinal(h)
	if err != nil {
		return nil, failed("C_FindObjects", err)
	}
	return all, failed("C_FindObjectsFinal", final)
}

func describeKeys(m module, h pkcs11.SessionHandle, a Algorithm, objects []pkcs11.ObjectHandle) ([]privateKey, error) {
	list := make([]privateKey, 0, len(objects))
	for _, o := range objects {
		k, err := describeKey(m, h, a, o)
		if err != nil {
			return nil, err
		}
		list = append(list, k)
	}
	return list, nil
}

// describeKey reads the attributes one by one, because a single unknown attribute fails a whole call. An attribute that
// cannot be read counts against the key: not sensitive, extractable, unable to sign.
func describeKey(m module, h pkcs11.SessionHandle, a Algorithm, o pkcs11.ObjectHandle) (privateKey, error) {
	r := attributeReader{m: m, h: h, o: o}
	k := privateKey{
		algorithm:   a,
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

// attributeReader reads attributes of an object. Attributes that the object lacks or hides are empty. After any other
// error, all further attributes are empty.
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

func (k privateKey) isOnCurve() bool {
	return slices.ContainsFunc(k.algorithm.params(), func(p []byte) bool { return bytes.Equal(p, k.params) })
}

// check returns an error unless the key may be used: as an attestor key, or as a log key if it is an Ed25519 key.
func (k privateKey) check(allowExtractable bool) error {
	switch {
	case !k.isOnCurve():
		return fmt.Errorf("key %s: CKA_EC_PARAMS is %s, not %s; generate a key with attestd hsm keygen", k,
			hexOr(k.params, "unreadable"), k.algorithm.name())
	case !k.canSign:
		return fmt.Errorf("key %s: CKA_SIGN is false: the key must be allowed to sign", k)
	case allowExtractable:
		return nil
	case k.extractable:
		return fmt.Errorf("key %s: CKA_EXTRACTABLE is true: the key could leave the token; generate one with attestd "+
			"hsm keygen, or set hsm.allow_extractable", k)
	case !k.sensitive:
		return fmt.Errorf("key %s: CKA_SENSITIVE is false: the key can be read in plain text; generate one with "+
			"attestd hsm keygen, or set hsm.allow_extractable", k)
	}
	return nil
}

// signRaw returns r and s of an ECDSA signature over the 32 bytes (CKM_ECDSA, PKCS#11 v2.40 mechanisms, section 2.3.6).
func signRaw(m module, h pkcs11.SessionHandle, key pkcs11.ObjectHandle,
	digest appliance.Digest) (rs [64]byte, err error) {
	if err := m.SignInit(h, []*pkcs11.Mechanism{pkcs11.NewMechanism(pkcs11.CKM_ECDSA, nil)}, key); err != nil {
		return rs, failed("C_SignInit", err)
	}
	signature, err := m.Sign(h, digest[:])
	if err != nil {
		return rs, failed("C_Sign", err)
	}
	if len(signature) != len(rs) {
		return rs, wrongLength(len(signature))
	}
	return [64]byte(signature), nil
}

func wrongLength(n int) error {
	return fmt.Errorf("C_Sign: %w: the signature has %d bytes, not 64", ErrWrongKey, n)
}
