package appliance_test

import (
	"encoding/hex"
	"math/big"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/ethereum/go-ethereum/common/math"
	"github.com/ethereum/go-ethereum/signer/core/apitypes"
	"golang.org/x/crypto/sha3"

	"github.com/attestd/attestd/appliance"
)

var request = appliance.Request{
	UnspendableAddress: mustAddress("0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed"),
	Beneficiary:        mustAddress("0xfB6916095ca1df60bB79Ce92cE3Ea74c37c5d359"),
}

var domain = &appliance.EIP712Domain{Name: "ZAsset", Version: "1", ChainID: 1, VerifyingContract: &request.Beneficiary}

// The hashes were computed in JavaScript with ethers 6 (solidityPackedKeccak256, TypedDataEncoder) and, for MiMC, from
// its definition over BigInt.
func TestDigestsAreThoseWorkedOutIndependently(t *testing.T) {
	for _, c := range []struct {
		scheme appliance.SchemeName
		domain *appliance.EIP712Domain
		want   string
	}{
		{appliance.SchemeKeccak256, nil, "0xcda3b81d73982a597ba9ab30d099f2266917f79d69441e97ff23c15143f08d3d"},
		{appliance.SchemeKeccak256BN254, nil, "0x00a3b81d73982a597ba9ab30d099f2266917f79d69441e97ff23c15143f08d3d"},
		{appliance.SchemeMiMCBN254, nil, "0x00ad0832155f65e56ca75406f9295a5c0c34d7ed4dc0c49a81f5ed649b7eb198"},
		{appliance.SchemeEIP712, domain, "0x4ae450467d0c595f17e90356bbdc575bf8c0c9781439f84ae36e6dd452e83930"},
	} {
		if got := scheme(t, c.scheme, c.domain).Digest(request).String(); got != c.want {
			t.Errorf("%s: %s, want %s", c.scheme, got, c.want)
		}
	}
}

func TestKeccakIsOfThe40BytesAndTheBN254FormClearsTheFirst(t *testing.T) {
	forRandomRequests(func(r appliance.Request) {
		h := sha3.NewLegacyKeccak256() // of x/crypto, not of go-ethereum
		h.Write(r.UnspendableAddress[:])
		h.Write(r.Beneficiary[:])
		want := hex.EncodeToString(h.Sum(nil))
		if got := scheme(t, appliance.SchemeKeccak256, nil).Digest(r).String(); got != "0x"+want {
			t.Fatalf("keccak256: %s, want 0x%s", got, want)
		}
		if got := scheme(t, appliance.SchemeKeccak256BN254, nil).Digest(r).String(); got != "0x00"+want[2:] {
			t.Fatalf("keccak256-bn254: %s, want 0x00%s", got, want[2:])
		}
	})
}

func TestMiMCIsThatOfItsDefinition(t *testing.T) {
	forRandomRequests(func(r appliance.Request) {
		want := mimcByDefinition(r.UnspendableAddress[:], r.Beneficiary[:])
		if got := scheme(t, appliance.SchemeMiMCBN254, nil).Digest(r); new(big.Int).SetBytes(got[:]).Cmp(want) != 0 {
			t.Fatalf("%s, want %x", got, want)
		}
	})
}

// mimcByDefinition computes MiMC from its authors' definition in big integers: x -> (x + k + c)^5 for 110 rounds, in
// Miyaguchi-Preneel mode, with gnark's constants (a chain of keccak-256 that begins with "seed").
func mimcByDefinition(blocks ...[]byte) *big.Int {
	r := appliance.BN254R()
	keccak := func(b []byte) []byte {
		h := sha3.NewLegacyKeccak256()
		h.Write(b)
		return h.Sum(nil)
	}
	var constants []*big.Int
	for c := keccak(keccak([]byte("seed"))); len(constants) < 110; c = keccak(c) {
		constants = append(constants, new(big.Int).Mod(new(big.Int).SetBytes(c), r))
	}
	state := new(big.Int)
	for _, block := range blocks {
		message := new(big.Int).SetBytes(block)
		x := new(big.Int).Set(message)
		for _, c := range constants {
			x.Add(x, state).Add(x, c)
			x.Exp(x, big.NewInt(5), r)
		}
		x.Add(x, state) // the cipher's last key addition
		state.Add(state, x).Add(state, message).Mod(state, r)
	}
	return state
}

func TestEIP712IsThatOfGoEthereumForEveryShapeOfDomain(t *testing.T) {
	contract := request.UnspendableAddress
	for _, d := range []appliance.EIP712Domain{
		*domain, {Name: "ZAsset"}, {Version: "2"}, {ChainID: 8453}, {VerifyingContract: &contract},
		{Name: "ZAsset", ChainID: 1 << 63},
	} {
		forRandomRequests(func(r appliance.Request) {
			want, _, err := apitypes.TypedDataAndHash(typedData(d, r))
			if err != nil {
				t.Fatal(err)
			}
			if got := scheme(t, appliance.SchemeEIP712, &d).Digest(r); got != appliance.Digest(want) {
				t.Fatalf("%+v: %s, want %x", d, got, want)
			}
		})
	}
}

func typedData(d appliance.EIP712Domain, r appliance.Request) apitypes.TypedData {
	typed := apitypes.TypedData{
		PrimaryType: "Attestation",
		Types: apitypes.Types{"Attestation": {{Name: "unspendableAddress", Type: "address"},
			{Name: "beneficiary", Type: "address"}}},
		Message: apitypes.TypedDataMessage{"unspendableAddress": r.UnspendableAddress.String(),
			"beneficiary": r.Beneficiary.String()},
	}
	member := func(present bool, name, kind string) {
		if present {
			typed.Types["EIP712Domain"] = append(typed.Types["EIP712Domain"], apitypes.Type{Name: name, Type: kind})
		}
	}
	typed.Domain = apitypes.TypedDataDomain{Name: d.Name, Version: d.Version}
	member(d.Name != "", "name", "string")
	member(d.Version != "", "version", "string")
	if d.ChainID != 0 {
		typed.Domain.ChainId = (*math.HexOrDecimal256)(new(big.Int).SetUint64(d.ChainID))
		member(true, "chainId", "uint256")
	}
	if d.VerifyingContract != nil {
		typed.Domain.VerifyingContract = d.VerifyingContract.String()
		member(true, "verifyingContract", "address")
	}
	return typed
}

func TestBN254DigestsAreCanonicalScalars(t *testing.T) {
	for _, name := range []appliance.SchemeName{appliance.SchemeKeccak256BN254, appliance.SchemeMiMCBN254} {
		forRandomRequests(func(r appliance.Request) {
			if d := scheme(t, name, nil).Digest(r); new(big.Int).SetBytes(d[:]).Cmp(appliance.BN254R()) >= 0 {
				t.Fatalf("%s: %s is not below r", name, d)
			}
		})
	}
}

func TestSchemesWithoutWhatTheyNeedAreRefused(t *testing.T) {
	for name, c := range map[string]struct {
		scheme appliance.SchemeName
		domain *appliance.EIP712Domain
		want   string
	}{
		"unknown":             {"sha256", nil, "use one of keccak256-bn254"},
		"empty":               {"", nil, "unknown digest scheme"},
		"eip712, no domain":   {appliance.SchemeEIP712, nil, "needs an EIP-712 domain"},
		"eip712, empty":       {appliance.SchemeEIP712, &appliance.EIP712Domain{}, "needs an EIP-712 domain"},
		"keccak, with domain": {appliance.SchemeKeccak256, domain, "has no EIP-712 domain"},
	} {
		if _, err := appliance.NewScheme(c.scheme, c.domain); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want an error with %q", name, err, c.want)
		}
	}
}

func forRandomRequests(do func(appliance.Request)) {
	random := rand.NewChaCha8([32]byte{1})
	for range 20 {
		var r appliance.Request
		random.Read(r.UnspendableAddress[:])
		random.Read(r.Beneficiary[:])
		do(r)
	}
}

func scheme(t testing.TB, name appliance.SchemeName, domain *appliance.EIP712Domain) appliance.Scheme {
	t.Helper()
	s, err := appliance.NewScheme(name, domain)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func mustAddress(s string) appliance.Address {
	a, err := appliance.ParseAddress(s)
	if err != nil {
		panic(err)
	}
	return a
}
