package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"math/big"
	"os"
	"strings"
	"testing"

	"github.com/ethereum/go-ethereum/accounts/abi"
	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/core/state"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/core/vm/runtime"
	"github.com/ethereum/go-ethereum/crypto"

	"github.com/attestd/attestd/api/client"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/daemontest"
)

const attestedABI = `[
	{"type":"constructor","inputs":[{"name":"attestor_","type":"address"}]},
	{"type":"function","name":"hashOf","inputs":[{"name":"unspendable","type":"address"},{"name":"beneficiary","type":"address"}],
	 "outputs":[{"name":"","type":"bytes32"}]},
	{"type":"function","name":"isAttested","inputs":[{"name":"unspendable","type":"address"},{"name":"beneficiary","type":"address"},
	 {"name":"r","type":"bytes32"},{"name":"s","type":"bytes32"},{"name":"v","type":"uint8"}],"outputs":[{"name":"","type":"bool"}]}]`

// attestedContract is the compiled contract of docs/integrating.md, in go-ethereum's EVM.
type attestedContract struct {
	abi     abi.ABI
	state   *state.StateDB
	address common.Address
}

func deployAttested(t *testing.T, attestor common.Address) (*attestedContract, error) {
	t.Helper()
	var compiled struct{ SourceSHA256, Bytecode string }
	text, err := os.ReadFile("testdata/integrating/Attested.json")
	if err == nil {
		err = json.Unmarshal(text, &compiled)
	}
	if err != nil {
		t.Fatal(err)
	}
	source := exampleIn(t, "integrating.md", "## The examples", "solidity")
	if sum := sha256.Sum256([]byte(source)); compiled.SourceSHA256 != hex.EncodeToString(sum[:]) {
		t.Fatal("Attested.json is of another source: compile the document's again, with the settings that stand there")
	}
	a := &attestedContract{}
	a.state, err = state.New(types.EmptyRootHash, state.NewDatabaseForTesting())
	if err == nil {
		a.abi, err = abi.JSON(strings.NewReader(attestedABI))
	}
	if err != nil {
		t.Fatal(err)
	}
	argument, err := a.abi.Pack("", attestor)
	if err != nil {
		t.Fatal(err)
	}
	_, a.address, _, err = runtime.Create(append(hexutil.MustDecode(compiled.Bytecode), argument...),
		&runtime.Config{State: a.state})
	return a, err
}

// asks calls a function that returns one word.
func (a *attestedContract) asks(t *testing.T, function string, arguments ...any) (word common.Hash) {
	t.Helper()
	input, err := a.abi.Pack(function, arguments...)
	if err != nil {
		t.Fatal(err)
	}
	answer, _, err := runtime.Call(a.address, input, &runtime.Config{State: a.state})
	if err != nil || len(answer) != len(word) {
		t.Fatalf("%s: %x, %v", function, answer, err)
	}
	return common.Hash(answer)
}

// The contract in docs/integrating.md accepts the signatures of a real appliance, and refuses all others.
func TestIntegratorsContractAcceptsTheAppliancesAttestations(t *testing.T) {
	t.Parallel()
	d := daemontest.New(t)
	d.Start(t)
	t.Cleanup(func() { d.Kill(t) })
	request := appliance.Request{
		UnspendableAddress: appliance.Address(common.HexToAddress(unspendableExample)),
		Beneficiary:        appliance.Address(common.HexToAddress(beneficiaryExample)),
	}
	c, err := client.New(d.URL, d.Token, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	made, err := c.Attest(t.Context(), request, client.AttestOptions{})
	if err != nil {
		t.Fatal(err)
	}
	a, err := deployAttested(t, common.Address(made.SignerAddress))
	if err != nil {
		t.Fatal(err)
	}
	unspendable, beneficiary := common.Address(request.UnspendableAddress), common.Address(request.Beneficiary)
	if hash := a.asks(t, "hashOf", unspendable, beneficiary); hash != common.Hash(made.Hash) {
		t.Errorf("the contract hashes to %s, the appliance to %s", hash, made.Hash)
	}
	signature := made.Signature.Bytes()
	r, s, v := [32]byte(signature[:32]), [32]byte(signature[32:64]), signature[64]
	upper := [32]byte(new(big.Int).Sub(crypto.S256().Params().N,
		new(big.Int).SetBytes(s[:])).FillBytes(make([]byte, 32)))
	yes := common.Hash{31: 1}
	for name, test := range map[string]struct {
		beneficiary common.Address
		r, s        [32]byte
		v           uint8
		good        bool
	}{
		"as it was answered":        {beneficiary, r, s, v, true},
		"of another beneficiary":    {unspendable, r, s, v, false},
		"s in the upper half":       {beneficiary, r, upper, 55 - v, false},
		"the other v":               {beneficiary, r, s, 55 - v, false},
		"v 0 or 1":                  {beneficiary, r, s, v - 27, false},
		"no r: ecrecover says zero": {beneficiary, [32]byte{}, s, v, false},
	} {
		if good := a.asks(t, "isAttested", unspendable, test.beneficiary, test.r, test.s,
			test.v) == yes; good != test.good {
			t.Errorf("%s: accepted %v", name, good)
		}
	}
	if _, err := deployAttested(t, common.Address{}); err == nil {
		t.Error("a contract without an attestor accepts whatever recovers nobody")
	}
}
