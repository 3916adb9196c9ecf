package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"
	"golang.org/x/mod/sumdb/note"

	"github.com/attestd/attestd/api/client"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/config"
	"github.com/attestd/attestd/appliance/daemon"
	"github.com/attestd/attestd/appliance/files"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/appliance/verify"
)

const (
	maxAttestation = 1 << 20          // bytes of a file with an attestation or a record; real ones have under 2 KiB
	askAppliance   = 10 * time.Second // bounds the questions to this machine's appliance
)

const verifyHelp = `Check an attestation without a server. It is good, with exit status 0, if

    digest     its hash is the digest of the two addresses
    signature  r and s are in range, s in the lower half of the order (EIP-2), v is 27 or 28
    signer     the signature recovers to signerAddress, and you trust that address

FILE is the output of 'attestd attest', a record of the journal, the answer of the API, or the proof that
'attestd log prove ID --witnessed' writes.

With --policy, a C2SP tlog-policy file, also:

    witnessed  FILE proves that it is in a log of the policy, under a checkpoint cosigned by a quorum of its witnesses

With --verifier-key, the log's key, instead:

    log        FILE proves that it is in the log of that key; witnesses are not checked

You trust each --signer. Without it, you trust this machine's appliance: hsm.address or hsm.keys of the
configuration, otherwise the daemon's keys. The signer in FILE proves nothing, because anyone can sign. The
log proves nothing about the signer either: a holder of the log key can append an attestation of any signer.
Give --signer with the attestor's address from a trusted source, such as the contract's attestor().

The answer of the API does not include the two addresses: give them, unless this machine's journal has them.
FILE must not contradict the given addresses, nor the digest scheme, which comes from --scheme, the journal or
the configuration, in this order.

If a check could not be made, the attestation is self-consistent only: the output lists the missing checks and
the flags for them, and the exit status is 1, or 0 with --allow-partial. With --require-digest it stays 1 if
the digest was not checked. If a check fails, it is always 1.`

func newVerify(a *app) *cobra.Command {
	var unspendable, beneficiary, scheme string
	var trusted logTrust
	var signers []string
	var allow allowance
	cmd := &cobra.Command{
		Use:   "verify FILE|-",
		Short: "Check an attestation offline: digest, signature, signer",
		Long:  verifyHelp,
		Example: `  attestd attest --unspendable 0x… --beneficiary 0x… | attestd verify -
  attestd verify attestation.json --unspendable 0x… --beneficiary 0x… --signer 0x…
  attestd log show ID --output json | jq .record | attestd verify -
  attestd log prove ID --witnessed | attestd verify - --policy witnesses.policy --signer 0x…`,
		Args: oneArg("FILE (or - for standard input)"),
		RunE: func(cmd *cobra.Command, args []string) error {
			k := known{verify.Known{Scheme: appliance.SchemeName(scheme)}}
			if err := k.trust(cmd, a, trusted); err != nil {
				return err
			}
			if err := k.expect(unspendable, beneficiary, signers); err != nil {
				return usageError{cmd.CommandPath(), err}
			}
			text, err := a.readSmall(args[0], maxAttestation)
			if err != nil {
				return err
			}
			f, err := k.read(text)
			if err != nil {
				return fmt.Errorf("verify %s: %w", args[0], err)
			}
			if err := k.ask(cmd.Context(), a, f); err != nil {
				return err
			}
			return a.printChecks(k.Check(f), allow)
		},
	}
	f := cmd.Flags()
	f.StringVar(&unspendable, "unspendable", "", "expected unspendable address")
	f.StringVar(&beneficiary, "beneficiary", "", "expected beneficiary")
	f.StringArrayVar(&signers, "signer", nil,
		"trusted signer address; may be repeated (default: the addresses of this machine's appliance)")
	f.StringVar(&scheme, "scheme", "",
		"digest scheme (default: from the journal, the configuration or the file, in this order)")
	f.StringVar(&trusted.policy, "policy", "",
		"policy file (C2SP tlog-policy) with the log that must include the attestation, and the witnesses that must have cosigned it")
	f.StringVar(&trusted.verifierKey, "verifier-key", "",
		"without --policy: verifier key, name+hash+key, of the log that must include the attestation")
	f.BoolVar(&allow.partial, "allow-partial", false, "exit with 0 if no check fails, even if some could not be made")
	f.BoolVar(&allow.requireDigest, "require-digest", false,
		"with --allow-partial: still exit with 1 if the digest of the two addresses was not checked")
	cmd.AddCommand(newVerifyPacket(a), newVerifyReport(a))
	return cmd
}

// allowance says which missing checks still give the exit status 0 to an attestation that is self-consistent only.
type allowance struct{ partial, requireDigest bool }

func (a allowance) allows(unchecked []string) bool {
	return a.partial && (!a.requireDigest || !slices.Contains(unchecked, verify.CheckDigest))
}

// known collects the facts to verify against, from the command line and this machine's appliance.
type known struct{ verify.Known }

// logTrust identifies the log that must have the attestation.
type logTrust struct{ policy, verifierKey string }

func (k *known) trust(cmd *cobra.Command, a *app, by logTrust) (err error) {
	if by.policy != "" && by.verifierKey != "" {
		return usagef(cmd, "--policy includes the log's key: omit --verifier-key")
	}
	if by.verifierKey != "" {
		if k.Verifier, err = note.NewVerifier(by.verifierKey); err != nil {
			return notVerifierKey(cmd)
		}
	}
	k.Policy, err = a.policy(by.policy)
	return err
}

// read parses the file, and keeps the proof that it may hold.
func (k *known) read(text []byte) (f verify.File, err error) {
	f, k.Proven, err = verify.ParseProven(text)
	trimmed := bytes.TrimSpace(text)
	switch {
	case err == nil:
		return f, nil
	case len(trimmed) == 0:
		err = errors.New("the file is empty")
	case !journal.IsProof(text) && !bytes.HasPrefix(trimmed, []byte("{")):
		err = errors.New("must be one JSON object, or a C2SP tlog-proof, whose first line is c2sp.org/tlog-proof@v1")
	}
	return f, fmt.Errorf("not an attestation: %w", err)
}

// expect takes the expected values from the command line.
func (k *known) expect(unspendable, beneficiary string, signers []string) (err error) {
	if unspendable != "" || beneficiary != "" {
		pair, err := parsePair(unspendable, beneficiary)
		if err != nil {
			return err
		}
		k.Request = &pair
	}
	if k.Signers, err = parseSigners(signers); err != nil {
		return err
	}
	if len(k.Signers) > 0 {
		k.SignerFrom = verify.FromCaller
	}
	if k.Scheme != "" && !slices.Contains(appliance.SchemeNames, k.Scheme) {
		_, err := appliance.NewScheme(k.Scheme, nil)
		return fmt.Errorf("--scheme: %w", err)
	}
	return nil
}

// ask adds facts from this machine's appliance. Verify works on any machine, so it is no error if there is no
// appliance or this user may not ask it. An invalid configuration is an error: it might hold a value that must be
// checked.
func (k *known) ask(ctx context.Context, a *app, f verify.File) error {
	c, err := a.config(nil)
	if errors.Is(err, fs.ErrPermission) {
		k.Unknown = err
		return nil
	}
	if err != nil {
		return err
	}
	if isSetUp := daemon.RequireSetup(&a.source, c) == nil; !isSetUp {
		k.Unknown = errors.New("this machine has no appliance")
		return nil
	}
	scheme, err := c.Scheme()
	if err != nil {
		return err
	}
	k.Configured = &scheme
	pinned, err := c.SignerAddresses()
	if err != nil {
		return err
	}
	if len(k.Signers) == 0 && len(pinned) > 0 {
		k.Signers, k.SignerFrom = pinned, "this appliance's, hsm.address"
		if len(c.HSM.Keys) > 0 {
			k.SignerFrom = "this appliance's, hsm.keys"
		}
	}
	k.Unknown = k.askJournal(ctx, a, c, f.ID)
	if c.HasQuorum() && len(k.Signers) > 0 && k.SignerFrom != verify.FromCaller && f.Signature.Joined != "" {
		k.expectQuorum(c)
	}
	return nil
}

// expectQuorum adds the other members of the quorum to this appliance's keys.
func (k *known) expectQuorum(c *config.Config) {
	contract, _ := appliance.ParseAddress(c.Quorum.Contract) // the configuration is validated
	k.Contract, k.Threshold = &contract, c.Quorum.Threshold
	for _, m := range c.Quorum.Members {
		signer, _ := appliance.ParseAddress(m.Signer)
		k.Signers = append(k.Signers, signer)
	}
	k.SignerFrom = "the members of this appliance's quorum"
}

// askJournal finds the attestation through the daemon or in the files, and learns the daemon's keys.
func (k *known) askJournal(ctx context.Context, a *app, c *config.Config, id uuid.UUID) (err error) {
	ctx, cancel := context.WithTimeout(ctx, askAppliance)
	defer cancel()
	if !files.Exists(c.Admin.Socket) && !daemon.StoreExists(c) { // a backend would create the journal
		return fmt.Errorf("no daemon is running, and %s has no journal", c.DataDir)
	}
	journal, err := a.backend(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, journal.Close()) }()
	if running, ok := journal.(*client.Admin); ok && len(k.Signers) == 0 {
		status, err := running.Status(ctx)
		if err != nil {
			return err
		}
		k.SignerFrom = "this appliance's, from its daemon"
		for _, one := range status.Keys { // they include the default key
			k.Signers = append(k.Signers, one.SignerAddress)
		}
	}
	e, err := journal.Record(ctx, id)
	if err == nil && e.Event == nil {
		k.Recorded = &e
	}
	if isNotFound(err) {
		return nil
	}
	return err
}

// isNotFound reports whether a backend has no such record.
func isNotFound(err error) bool {
	return client.CodeOf(err) == appliance.CodeNotFound || appliance.CodeOf(err) == appliance.CodeNotFound
}

// isInLog reports whether a check has proven that the log has the attestation.
func isInLog(c verify.Check) bool {
	return c.Result == verify.OK && (c.Name == "witnessed" || c.Name == "log")
}

func (a *app) printChecks(checks []verify.Check, allow allowance) error {
	word, notChecked := verify.Verdict(checks)
	rows := make([][]string, len(checks))
	for i, c := range checks {
		rows[i] = []string{c.Name, c.Result, c.Detail}
	}
	err := a.print(struct {
		Good      bool           `json:"good"`
		Verdict   string         `json:"verdict"`
		Checks    []verify.Check `json:"checks"`
		Unchecked []string       `json:"unchecked,omitempty"`
	}{word == verify.Good, word, checks, notChecked}, func(w io.Writer) {
		outline(w, rows)
		switch word {
		case verify.Good:
			fmt.Fprintln(w, "The attestation is good.")
		case verify.SelfConsistent:
			if slices.ContainsFunc(checks, isInLog) && slices.Contains(notChecked, "signer") {
				fmt.Fprintln(w, "The log has the attestation, but its signer was not checked: give --signer ADDRESS.")
			}
			fmt.Fprintf(w, "The attestation is self-consistent only; not checked: %s.\n",
				strings.Join(notChecked, ", "))
		default:
			fmt.Fprintln(w, "The attestation is BAD: do not use it.")
		}
	})
	if err != nil || word == verify.Good || word == verify.SelfConsistent && allow.allows(notChecked) {
		return err
	}
	return silentFailure{}
}
