package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/attestd/attestd/appliance"
)

// maxAttestation bounds a file that holds an attestation or a record; real ones have under 2 KiB.
const maxAttestation = 1 << 20

func newVerify(a *app) *cobra.Command {
	var unspendable, beneficiary, signer, scheme string
	cmd := &cobra.Command{
		Use:   "verify FILE|-",
		Short: "Check an attestation offline: digest, low s, signer",
		Long: `Check an attestation without a server: its hash and signature are well-formed, s is in the lower half of
the order (EIP-2), and the signature recovers to its signerAddress. FILE is the JSON that the API answered,
or a record of the journal.

An attestation does not hold the two addresses. Give them, or a record, which does, and the hash is computed
from them too. Give --signer, the attestor that the contract trusts, to be sure it is the one.`,
		Example: `  attestd attest --unspendable 0x… --beneficiary 0x… | attestd verify -
  attestd verify attestation.json --unspendable 0x… --beneficiary 0x… --signer 0x…
  attestd log show ID --output json | jq .record | attestd verify -`,
		Args: oneArg("FILE (or - for standard input)"),
		RunE: func(cmd *cobra.Command, args []string) error {
			v := verification{scheme: scheme}
			if err := v.expect(unspendable, beneficiary, signer); err != nil {
				return usageError{cmd.CommandPath(), err}
			}
			if err := v.configure(a); err != nil {
				return err
			}
			text, err := a.readSmall(args[0], maxAttestation)
			if err != nil {
				return err
			}
			checks, err := v.check(text)
			if err != nil {
				return fmt.Errorf("verify %s: %w", args[0], err)
			}
			return a.printChecks(checks)
		},
	}
	f := cmd.Flags()
	f.StringVar(&unspendable, "unspendable", "", "the unspendable address it must be for")
	f.StringVar(&beneficiary, "beneficiary", "", "the beneficiary it must be for")
	f.StringVar(&signer, "signer", "", "the address that must have signed it")
	f.StringVar(&scheme, "scheme", "", "digest scheme (default: the record's, else the configuration's)")
	return cmd
}

// verification is what an attestation is checked against.
type verification struct {
	request *appliance.Request // nil: not known, unless the file is a record
	signer  *appliance.Address // nil: as the file says
	scheme  string
	digests appliance.Scheme
}

func (v *verification) expect(unspendable, beneficiary, signer string) error {
	if unspendable != "" || beneficiary != "" {
		pair, err := parsePair(unspendable, beneficiary)
		if err != nil {
			return err
		}
		v.request = &pair
	}
	if signer != "" {
		address, err := appliance.ParseAddress(signer)
		if err != nil {
			return fmt.Errorf("--signer %w", err)
		}
		v.signer = &address
	}
	return nil
}

// configure finds the scheme for the given addresses. Without addresses the configuration is not read: verify
// works on any machine.
func (v *verification) configure(a *app) error {
	if v.request == nil {
		return nil
	}
	flags := make(map[string]any)
	if v.scheme != "" {
		flags["attestation.scheme"] = v.scheme
	}
	c, err := a.config(flags)
	if err != nil {
		return err
	}
	v.digests, err = c.Scheme()
	return err
}

// check is one thing that was looked at.
type check struct {
	Name   string `json:"name"`
	Result string `json:"result"` // ok, bad or skipped
	Detail string `json:"detail"`
}

const (
	checkOK      = "ok"
	checkBad     = "bad"
	checkSkipped = "skipped"
)

// attestationFile is an attestation or, where it has the addresses, a record.
type attestationFile struct {
	appliance.Attestation
	UnspendableAddress *appliance.Address      `json:"unspendableAddress"`
	Beneficiary        *appliance.Address      `json:"beneficiary"`
	Scheme             string                  `json:"scheme"`
	Domain             *appliance.EIP712Domain `json:"domain"`
}

// check looks at each property. The error says that text is not an attestation at all.
func (v *verification) check(text []byte) ([]check, error) {
	var f attestationFile
	if err := json.Unmarshal(text, &f); err != nil {
		return nil, fmt.Errorf("not an attestation: %w", err)
	}
	if f.SignerAddress == (appliance.Address{}) || f.Hash == (appliance.Digest{}) {
		return nil, errors.New("not an attestation: hash, signature and signerAddress are needed")
	}
	digest, err := v.checkDigest(f)
	if err != nil {
		return nil, err
	}
	return append([]check{digest}, v.checkSignature(f.Attestation)...), nil
}

func (v *verification) checkSignature(a appliance.Attestation) []check {
	recovered, err := a.Signature.Recover(a.Hash)
	if err != nil {
		return []check{{"signature", checkBad, err.Error()}}
	}
	return []check{
		{"signature", checkOK, "r and s in range, s in the lower half (EIP-2), v is 27 or 28"},
		v.checkSigner(recovered, a.SignerAddress),
	}
}

func (v *verification) checkDigest(f attestationFile) (check, error) {
	request, scheme := v.request, v.digests
	isRecord := f.UnspendableAddress != nil && f.Beneficiary != nil && f.Scheme != ""
	if isRecord {
		recorded := appliance.Request{UnspendableAddress: *f.UnspendableAddress, Beneficiary: *f.Beneficiary}
		if request != nil && recorded != *request {
			return check{"digest", checkBad, "the record is of " + pairText(recorded) + ", not of " + pairText(*request)}, nil
		}
		if request == nil {
			var err error
			if scheme, err = appliance.NewScheme(appliance.SchemeName(f.Scheme), f.Domain); err != nil {
				return check{}, err
			}
			request = &recorded
		}
	}
	if request == nil {
		return check{"digest", checkSkipped, "the two addresses are not known; give --unspendable and --beneficiary"}, nil
	}
	if want := scheme.Digest(*request); want != f.Hash {
		return check{"digest", checkBad, fmt.Sprintf("hash is %s, but %s of %s is %s", f.Hash, scheme.Name, pairText(*request), want)}, nil
	}
	return check{"digest", checkOK, fmt.Sprintf("hash is %s of %s", scheme.Name, pairText(*request))}, nil
}

func pairText(r appliance.Request) string {
	return fmt.Sprintf("(%s, %s)", r.UnspendableAddress, r.Beneficiary)
}

func (v *verification) checkSigner(recovered, stated appliance.Address) check {
	switch {
	case recovered != stated:
		return check{"signer", checkBad, fmt.Sprintf("recovered %s, but signerAddress is %s", recovered, stated)}
	case v.signer != nil && recovered != *v.signer:
		return check{"signer", checkBad, fmt.Sprintf("recovered %s, not the expected %s", recovered, v.signer)}
	case v.signer != nil:
		return check{"signer", checkOK, recovered.String() + ", as expected"}
	}
	return check{"signer", checkOK, recovered.String() + ", as signerAddress says (--signer makes sure it is the one you trust)"}
}

func (a *app) printChecks(checks []check) error {
	good := true
	rows := make([][2]string, len(checks))
	for i, c := range checks {
		good = good && c.Result != checkBad
		rows[i] = [2]string{c.Name, fmt.Sprintf("%-7s  %s", c.Result, c.Detail)}
	}
	err := a.print(struct {
		Good   bool    `json:"good"`
		Checks []check `json:"checks"`
	}{good, checks}, func(w io.Writer) {
		fields(w, rows)
		if good {
			fmt.Fprintln(w, "The attestation is good.")
		} else {
			fmt.Fprintln(w, "The attestation is BAD: do not use it.")
		}
	})
	if err == nil && !good {
		err = silentFailure{}
	}
	return err
}
