package verify

import (
	"fmt"

	"github.com/attestd/attestd/appliance"
)

// checkQuorum checks the signatures of a quorum. Only the contract on chain knows its members and their number. Here
// the members are the signers of the caller, or of the quorum in the configuration.
func (k *Known) checkQuorum(a appliance.Attestation) []Check {
	signers, err := a.Signers()
	if err != nil {
		return []Check{{"signature", Bad, err.Error()},
			{checkSigner, Unchecked, "the signatures are invalid, so their signers cannot be recovered"}}
	}
	good := Check{"signature", OK, fmt.Sprintf(
		"%d valid signatures by different signers, in ascending order of their addresses", len(signers))}
	names := anyOf(signers[:1])
	for _, s := range signers[1:] {
		names += " and " + s.String()
	}
	switch {
	case len(k.Signers) == 0:
		return []Check{good,
			{checkSigner, Unchecked,
				fmt.Sprintf(
					"signers %s not compared with the members of the contract %s: give --signer for each member",
					names, a.SignerAddress)}}
	case k.SignerFrom != FromCaller && k.Contract != nil && *k.Contract != a.SignerAddress:
		return []Check{good, {checkSigner, Bad,
			fmt.Sprintf("signerAddress is %s, and quorum.contract is %s", a.SignerAddress, k.Contract)}}
	}
	if err := a.VerifyQuorum(k.Signers, k.Threshold); err != nil {
		return []Check{good, {checkSigner, Bad, fmt.Sprintf("%s (%s)", err, k.SignerFrom)}}
	}
	return []Check{good, {checkSigner, OK, fmt.Sprintf("%s (%s)", names, k.SignerFrom)}}
}
