package secp256k1_test

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ethereum/go-ethereum/crypto"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/appliance/secp256k1"
)

// wycheproofGroup has the vectors of one public key; see testdata/wycheproof.
type wycheproofGroup struct {
	Key   hexText `json:"key"` // SEC 1 uncompressed, or Ed25519
	Tests []wycheproofVector
}

type wycheproofVector struct {
	ID      int     `json:"tcId"`
	Comment string  `json:"comment"`
	Msg     hexText `json:"msg"`
	Sig     hexText `json:"sig"`
	Valid   bool    `json:"valid"`
}

type hexText []byte

func (h *hexText) UnmarshalText(text []byte) (err error) {
	*h, err = hex.AppendDecode(nil, text)
	return err
}

// readWycheproof returns the vectors of a file and checks their number.
func readWycheproof(t *testing.T, name string, vectors int) (groups []wycheproofGroup) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", "wycheproof", name+".json"))
	if err == nil {
		err = json.Unmarshal(text, &groups)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range groups {
		vectors -= len(g.Tests)
	}
	if vectors != 0 {
		t.Fatalf("%s lacks %d vectors", name, vectors)
	}
	return groups
}

// largeX matches valid vectors with an x coordinate of R of n or more. ecrecover would need a v of 29 or 30,
// which no contract accepts.
func largeX(v wycheproofVector) bool {
	return v.Comment == "k*G has a large x-coordinate" ||
		strings.HasPrefix(v.Comment, "r = 2, x = n + 2 is the smallest possible x")
}

func TestWycheproofsECDSAVectors(t *testing.T) {
	t.Parallel()
	order := crypto.S256().Params().N
	// by key: the files share most keys, and making the tables is slow
	verifiers := make(map[string]*secp256k1.Verifier)
	for name, vectors := range map[string]int{"ecdsa_secp256k1_sha256": 242, "ecdsa_secp256k1_sha256_p1363": 234,
		"ecdsa_secp256k1_sha256_bitcoin": 231} {
		t.Run(name, func(t *testing.T) {
			for _, group := range readWycheproof(t, name, vectors) {
				verifier, err := verifiers[string(group.Key)], error(nil)
				if verifier == nil {
					verifier, err = secp256k1.NewVerifier(group.Key)
					verifiers[string(group.Key)] = verifier
				}
				if err != nil {
					t.Fatalf("key %x: %v", group.Key, err)
				}
				for _, v := range group.Tests {
					s := new(big.Int).SetBytes(v.Sig[32:])
					high := s.Cmp(new(big.Int).Rsh(order, 1)) > 0 && s.Cmp(order) < 0
					wycheproofECDSA{t, group.Key, verifier, v, high}.check(name == "ecdsa_secp256k1_sha256_bitcoin")
				}
			}
		})
	}
}

// wycheproofECDSA is a vector with the verifiers of its key.
type wycheproofECDSA struct {
	*testing.T
	key      []byte
	verifier *secp256k1.Verifier
	wycheproofVector
	high bool // s is in the upper half of the order
}

// check runs each verifier on the vector. A high s is accepted only from an HSM, and is moved to the lower half.
func (w wycheproofECDSA) check(bitcoin bool) {
	w.Helper()
	digest := appliance.Digest(sha256.Sum256(w.Msg))
	signs := w.Valid && !largeX(w.wycheproofVector)
	fromHSM := signs || bitcoin && w.high && strings.Contains(strings.ToLower(w.Comment), "malleability")
	slow, err := secp256k1.NewSignature(digest, [64]byte(w.Sig), w.key)
	if (err == nil) != fromHSM {
		w.Errorf("%d, %s: NewSignature: %v, valid %t", w.ID, w.Comment, err, w.Valid)
	}
	fast, fastErr := w.verifier.Signature(digest, [64]byte(w.Sig))
	if (fastErr == nil) != fromHSM || err == nil && fast != slow {
		w.Errorf("%d, %s: Verifier.Signature: %v, valid %t; %v, %v", w.ID, w.Comment, fastErr, w.Valid, fast, slow)
	}
	recovers := false
	for _, v := range []byte{27, 28} {
		address, err := appliance.Signature{R: [32]byte(w.Sig[:32]), S: [32]byte(w.Sig[32:]), V: v}.Recover(digest)
		recovers = recovers || err == nil && address == addressOfKey(w.key)
	}
	if recovers != (signs && !w.high) {
		w.Errorf("%d, %s: Recover finds the key: %t, valid %t", w.ID, w.Comment, recovers, w.Valid)
	}
}

// addressOfKey returns the address of a public key (SEC 1 uncompressed).
func addressOfKey(key []byte) appliance.Address {
	return appliance.Address(crypto.Keccak256(key[1:])[12:])
}

func TestWycheproofsEd25519Vectors(t *testing.T) {
	t.Parallel()
	for _, group := range readWycheproof(t, "ed25519", 151) {
		typed := append([]byte{0x01}, group.Key...)
		hash := sha256.Sum256(append([]byte("example.com/log\n"), typed...))
		verifier, err := journal.ParseVerifier(
			fmt.Sprintf("example.com/log+%x+%s", hash[:4], base64.StdEncoding.EncodeToString(typed)))
		for _, v := range group.Tests {
			if got := err == nil && verifier.Verify(v.Msg, v.Sig); got != v.Valid {
				t.Errorf("%d, %s: %t, %v, valid %t", v.ID, v.Comment, got, err, v.Valid)
			}
		}
	}
}
