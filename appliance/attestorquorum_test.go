package appliance_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math/big"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/crypto"

	"github.com/attestd/attestd/appliance"
)

func quorumDigest(t testing.TB) appliance.Digest {
	return scheme(t, appliance.SchemeKeccak256BN254, nil).Digest(request)
}

var quorums = []struct{ m, n int }{{1, 1}, {2, 3}, {5, 9}}

func TestAQuorumOfMembersRedeems(t *testing.T) {
	t.Parallel()
	digest := quorumDigest(t)
	for _, size := range quorums {
		keys := quorumKeys(t, size.n)
		q, signatures := deployQuorum(t, size.m, keys...), allSignedBy(t, keys, digest)
		for k := size.m; k <= size.n; k++ {
			choose(size.n, k, func(chosen []int) {
				if !q.accepts(digest, selected(signatures, chosen)...) {
					t.Errorf("%d of %d: refused the signatures of %v", size.m, size.n, chosen)
				}
			})
		}
	}
}

func selected[E any](all []E, chosen []int) []E {
	some := make([]E, len(chosen))
	for i, c := range chosen {
		some[i] = all[c]
	}
	return some
}

// A thief has m − 1 keys, and tries all that can be derived from their signatures as the missing one. For large
// quorums, each attempt is made at one position only.
func TestNoMMinusOneKeysRedeem(t *testing.T) {
	t.Parallel()
	digest := quorumDigest(t)
	other := digest
	other[31] ^= 1
	for _, size := range quorums {
		keys := quorumKeys(t, size.n+1)
		keys, outsider := keys[:size.n], keys[size.n]
		q := deployQuorum(t, size.m, keys...)
		tried := 0
		choose(size.n, size.m-1, func(chosen []int) {
			stolen := selected(keys, chosen)
			have := allSignedBy(t, stolen, digest)
			extras := [][]byte{nil, make([]byte, 65), signedBy(t, outsider, digest)}
			for i, key := range stolen {
				extras = append(extras, have[i], malleable(have[i]), signedBy(t, key, other))
			}
			for _, extra := range extras {
				for at := range len(have) + 1 {
					if size.n > 3 && at != tried%(len(have)+1) {
						continue
					}
					if q.accepts(digest, slices.Insert(slices.Clone(have), at, extra)...) {
						t.Errorf("%d of %d: the keys %v redeem with %x at %d", size.m, size.n, chosen, extra, at)
					}
				}
				tried++
			}
		})
		t.Logf("%d of %d: %d signatures tried as the missing one", size.m, size.n, tried)
	}
}

func TestTheAttestorContractRefusesMalformedSignatures(t *testing.T) {
	t.Parallel()
	digest := quorumDigest(t)
	keys := quorumKeys(t, 4)
	keys, outsider := keys[:3], keys[3]
	q := deployQuorum(t, 2, keys...)
	s := allSignedBy(t, keys, digest)
	recovered, err := crypto.SigToPub(digest[:], unshifted(malleable(s[0])))
	if err != nil || !recovered.Equal(&keys[0].PublicKey) {
		t.Fatalf("the malleable form is no signature: %v", err)
	}
	other := digest
	other[31] ^= 1
	compact := slices.Clone(s[0][:64]) // EIP-2098
	compact[32] |= (s[0][64] - 27) << 7
	changed := func(change func(b []byte)) []byte { b := slices.Clone(s[0]); change(b); return b }
	for name, signatures := range map[string][][]byte{
		"no bytes":                        {},
		"one signature":                   {s[0]},
		"a duplicate":                     {s[0], s[0]},
		"a duplicate after enough":        {s[0], s[1], s[1]},
		"a duplicate, malleable":          {s[0], malleable(s[0])},
		"descending order":                {s[1], s[0]},
		"wrong order after enough":        {s[1], s[2], s[0]},
		"s in the upper half":             {malleable(s[0]), s[1]},
		"s of zero":                       {changed(func(b []byte) { clear(b[32:64]) }), s[1]},
		"r of zero: recovery fails":       {changed(func(b []byte) { clear(b[:32]) }), s[1]},
		"r above the field":               {changed(func(b []byte) { copy(b, bytes.Repeat([]byte{0xff}, 32)) }), s[1]},
		"zeros":                           {make([]byte, 130)},
		"v 27 with zeros":                 {changed(func(b []byte) { clear(b[:64]) }), s[1]},
		"the other v":                     {changed(func(b []byte) { b[64] = 27 + 28 - b[64] }), s[1]},
		"v 0 or 1":                        {changed(func(b []byte) { b[64] -= 27 }), s[1]},
		"v 29":                            {changed(func(b []byte) { b[64] = 29 }), s[1]},
		"v 0, the last":                   {s[0], append(slices.Clone(s[1][:64]), 0)},
		"a trailing byte":                 {s[0], s[1], {0}},
		"64 trailing bytes":               {s[0], s[1], s[2][:64]},
		"a byte in front":                 {{0}, s[0], s[1]},
		"a missing byte":                  {s[0], s[1][:64]},
		"two compact signatures":          {compact, compact},
		"65 compact signatures":           slices.Repeat([][]byte{compact}, 65),
		"ABI padding":                     {s[0], s[1], make([]byte, 30)},
		"another key's":                   {s[0], s[1], signedBy(t, outsider, digest)},
		"another key's instead":           {s[0], signedBy(t, outsider, digest)},
		"of another hash":                 {signedBy(t, keys[0], other), s[1]},
		"of the hash with EIP-191 prefix": {signedBy(t, keys[0], prefixed(digest)), s[1]},
		"a bad signature after enough":    {s[0], s[1], changed(func(b []byte) { b[0] ^= 1 })},
	} {
		if q.accepts(digest, signatures...) {
			t.Errorf("%s: accepted", name)
		}
	}
	if !q.accepts(digest, s[0], s[1]) || !q.accepts(other, signedBy(t, keys[1], other), signedBy(t, keys[2], other)) {
		t.Error("good signatures are refused")
	}
}

// unshifted returns the signature with v of 0 or 1, as go-ethereum has it.
func unshifted(signature []byte) []byte {
	return append(slices.Clone(signature[:64]), signature[64]-27)
}

func prefixed(d appliance.Digest) appliance.Digest {
	return appliance.Digest(crypto.Keccak256([]byte("\x19Ethereum Signed Message:\n32"), d[:]))
}

func TestTheAttestorContractRefusesCutCallData(t *testing.T) {
	t.Parallel()
	digest, keys := quorumDigest(t), quorumKeys(t, 3)
	q := deployQuorum(t, 2, keys...)
	whole := q.isValidCall(digest, slices.Concat(allSignedBy(t, keys, digest)[:2]...))
	const padding = 30 // of 130 bytes
	for length := range len(whole) - padding {
		if _, _, err := q.call(stranger, transferContract, whole[:length], false); err == nil {
			t.Errorf("accepted with %d of %d bytes", length, len(whole))
		}
	}
	if _, _, err := q.call(stranger, transferContract, whole, false); err != nil {
		t.Error("the whole call is refused: ", err)
	}
}

func TestTheAttestorContractRefusesDeploymentsThatNobodyCanSignFor(t *testing.T) {
	t.Parallel()
	keys := quorumKeys(t, 2)
	a, b := memberAddress(keys[0]), memberAddress(keys[1])
	for _, test := range []struct {
		name      string
		owner     common.Address
		threshold int
		members   []common.Address
		deploys   bool
	}{
		{"1 of 1", owner, 1, []common.Address{a}, true},
		{"2 of 2, in any order", owner, 2, []common.Address{b, a}, true},
		{"threshold 0", owner, 0, []common.Address{a}, false},
		{"threshold above the members", owner, 2, []common.Address{a}, false},
		{"no members", owner, 1, nil, false},
		{"no members, threshold 0", owner, 0, nil, false},
		{"a member twice", owner, 1, []common.Address{a, a}, false},
		{"address zero as a member", owner, 1, []common.Address{a, {}}, false},
		{"address zero as the owner", common.Address{}, 1, []common.Address{a}, false},
	} {
		_, err := newAttestorQuorum(t, test.owner, test.threshold, test.members...)
		if (err == nil) != test.deploys {
			t.Errorf("%s: %v", test.name, err)
		}
	}
}

func TestTheAttestorContractIsChangedByItsOwnerAlone(t *testing.T) {
	t.Parallel()
	keys := quorumKeys(t, 3)
	a, b, c := memberAddress(keys[0]), memberAddress(keys[1]), memberAddress(keys[2])
	q := deployQuorum(t, 2, keys[:2]...)
	number := func(n int64) any { return big.NewInt(n) }
	for _, step := range []struct {
		name     string
		by       common.Address
		function string
		argument any
		emits    string // "" if the contract refuses
	}{
		{"a stranger adds", stranger, "addMember", c, ""},
		{"a stranger removes", stranger, "removeMember", a, ""},
		{"a stranger lowers the threshold", stranger, "setThreshold", number(1), ""},
		{"a stranger hands over", stranger, "transferOwnership", stranger, ""},
		{"a stranger takes over", stranger, "acceptOwnership", nil, ""},
		{"a member adds", a, "addMember", c, ""},
		{"address zero is added", owner, "addMember", common.Address{}, ""},
		{"a member is added twice", owner, "addMember", a, ""},
		{"an unknown member is removed", owner, "removeMember", c, ""},
		{"fewer members than the threshold", owner, "removeMember", a, ""},
		{"a threshold of 0", owner, "setThreshold", number(0), ""},
		{"a threshold above the members", owner, "setThreshold", number(3), ""},
		{"the owner adds", owner, "addMember", c, "MemberAdded"},
		{"the owner raises the threshold", owner, "setThreshold", number(3), "ThresholdChanged"},
		{"the owner lowers the threshold", owner, "setThreshold", number(1), "ThresholdChanged"},
		{"the owner removes", owner, "removeMember", a, "MemberRemoved"},
		{"twice", owner, "removeMember", a, ""},
		{"the owner hands over", owner, "transferOwnership", stranger, "OwnerProposed"},
		{"until then, the owner stays", owner, "removeMember", b, "MemberRemoved"},
		{"the last member", owner, "removeMember", c, ""},
		{"the next owner must accept first", stranger, "addMember", a, ""},
		{"another accepts", a, "acceptOwnership", nil, ""},
		{"the next owner accepts", stranger, "acceptOwnership", nil, "OwnerChanged"},
		{"twice", stranger, "acceptOwnership", nil, ""},
		{"the former owner adds", owner, "addMember", a, ""},
		{"the new owner adds", stranger, "addMember", a, "MemberAdded"},
	} {
		var arguments []any
		if step.argument != nil {
			arguments = append(arguments, step.argument)
		}
		events, accepted := q.does(step.by, step.function, arguments...)
		if accepted != (step.emits != "") || strings.Join(events, " ") != step.emits {
			t.Errorf("%s: accepted %v, events %q", step.name, accepted, events)
		}
	}
	if members := q.members(); !slices.Equal(members, []common.Address{c, a}) {
		t.Errorf("members are %v", members)
	}
}

// members asks the contract for its members.
func (q *attestorQuorum) members() []common.Address {
	q.Helper()
	input, err := q.abi.Pack("members")
	if err != nil {
		q.Fatal(err)
	}
	answer, _, err := q.call(stranger, q.address, input, false)
	if err != nil {
		q.Fatal(err)
	}
	values, err := q.abi.Unpack("members", answer)
	if err != nil {
		q.Fatal(err)
	}
	return values[0].([]common.Address)
}

func TestTheAttestorContractAcceptsBothKeysWhileOneReplacesTheOther(t *testing.T) {
	t.Parallel()
	digest, keys := quorumDigest(t), quorumKeys(t, 2)
	old, next := keys[0], keys[1]
	q := deployQuorum(t, 1, old)
	expect := func(when string, oldIsGood, nextIsGood bool) {
		t.Helper()
		byOld, byNext := q.accepts(digest, signedBy(t, old, digest)), q.accepts(digest, signedBy(t, next, digest))
		if byOld != oldIsGood || byNext != nextIsGood {
			t.Errorf("%s: old accepted %v, new accepted %v", when, !oldIsGood, !nextIsGood)
		}
	}
	change := func(function string, key *ecdsa.PrivateKey) {
		t.Helper()
		if _, accepted := q.does(owner, function, memberAddress(key)); !accepted {
			t.Fatalf("the owner's %s is refused", function)
		}
	}
	expect("before", true, false)
	change("addMember", next)
	expect("during the change", true, true)
	change("removeMember", old)
	expect("after", false, true)
}

// docs/rotation.md has the gas in a table, rounded up to hundreds.
func TestTheGasOfTheAttestorContractIsDocumented(t *testing.T) {
	t.Parallel()
	manual, err := os.ReadFile("../docs/rotation.md")
	if err != nil {
		t.Fatal(err)
	}
	digest := quorumDigest(t)
	for _, size := range quorums {
		keys := quorumKeys(t, size.n)
		q := deployQuorum(t, size.m, keys...)
		input := q.isValidCall(digest, slices.Concat(allSignedBy(t, keys[:size.m], digest)...))
		_, gas, err := q.call(stranger, q.address, input, false)
		if err != nil {
			t.Fatal(err)
		}
		gas = (gas + 99) / 100 * 100
		row := fmt.Sprintf("| %d of %d | %d,%03d |", size.m, size.n, gas/1000, gas%1000)
		if !strings.Contains(string(manual), row) {
			t.Errorf("docs/rotation.md lacks the row %s", row)
		}
	}
}

// The compiled contract that these tests run belongs to the source.
func TestTheAttestorContractIsCompiledFromItsSource(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile("../docs/contracts/AttestorQuorum.sol")
	if err != nil {
		t.Fatal(err)
	}
	compiled, err := os.ReadFile("../docs/contracts/AttestorQuorum.json")
	sum := sha256.Sum256(source)
	if err != nil || !strings.Contains(string(compiled), `"`+hex.EncodeToString(sum[:])+`"`) {
		t.Errorf("AttestorQuorum.json is of another source, %v: compile it again, with the settings in it", err)
	}
}
