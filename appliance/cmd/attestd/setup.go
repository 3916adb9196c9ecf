package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/attestd/attestd/appliance/doctor"
	"github.com/attestd/attestd/appliance/setup"
	"github.com/attestd/attestd/appliance/text"
	"github.com/attestd/attestd/hsm"
)

func newSetup(a *app) *cobra.Command {
	var o setup.Options
	bundle := newBundle{app: a}
	cmd := &cobra.Command{
		Use:   "setup",
		Short: "Make this machine ready to attest: token, key, configuration, API key",
		Long: `Make this machine ready to attest: find the HSM's PKCS#11 module, make or find the token, keep its PIN where only the
service reads it, make the key, write the configuration, make the first API key, and check everything as 'attestd
doctor' does. It ends with the address that must be set as attestor on chain, and the command that starts the service.

Where a configuration is there that names the token, it is kept, and --pin-file puts the PIN where it says: so a machine
takes over from one that is lost, with its configuration, its token, and then 'attestd restore'.

With --join it makes this machine a member of a cluster: the bundle, made by --bundle on a machine that is there, brings
the log key and the settings that all members share. It is sealed with a passphrase; carry both over by hand. The token
must have the cluster's key already.

At a terminal it asks, with an answer ready for each question; with --yes it asks nothing. On a fresh machine with
SoftHSM, 'attestd setup --yes' leaves a working appliance. A second run changes nothing that is there, and does what is
missing. Run it as root; files then belong to the service's user.`,
		Example: `  attestd setup
  attestd setup --yes
  attestd setup --yes --module /opt/cloudhsm/lib/libcloudhsm_pkcs11.so --token hsm1 --pin-file /root/pin
  attestd setup --yes --pin-file /root/pin
  attestd setup --yes --listen 0.0.0.0:443 --tls-cert /etc/attestd/tls.crt --tls-key /etc/attestd/tls.key
  attestd setup --bundle member.bundle
  attestd setup --join member.bundle`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if bundle.file != "" {
				if o.Join != "" {
					return usagef(cmd, "--bundle is for a member, --join for a machine that is to become one")
				}
				bundle.passphraseFile = o.PassphraseFile
				return bundle.run(cmd)
			}
			if bundle.withPassword {
				return usagef(cmd, "--with-password goes with --bundle")
			}
			if !o.Yes && (!isTerminal(a.in) || a.json()) {
				return usagef(cmd, "there is no terminal to ask at: give --yes, and with flags what differs from the defaults")
			}
			if !slices.Contains([]string{"auto", "credential", "file"}, o.PINStore) {
				return usagef(cmd, "--pin-store must be auto, credential or file, not %q", o.PINStore)
			}
			if ignored := o.Ignored(&a.source, cmd.Flags().Changed); len(ignored) > 0 {
				return usagef(cmd, "%s is there, names the token and stays as it is: %s would be ignored; change the file, then: attestd reload",
					a.source.Path(), strings.Join(ignored, ", "))
			}
			return a.setup(cmd.Context(), o)
		},
	}
	addSetupFlags(cmd, &o)
	f := cmd.Flags()
	f.StringVar(&bundle.file, "bundle", "", "on a member of a cluster: write what another machine needs to join to this file, of mode 0600, and do nothing else")
	f.BoolVar(&bundle.withPassword, "with-password", false, "with --bundle: take the database's password along, where store.url has one")
	f.StringVar(&o.Join, "join", "", "bundle of the cluster that this machine joins")
	f.StringVar(&o.PassphraseFile, "passphrase-file", "", "with --bundle or --join: file that holds the bundle's passphrase; - for standard input")
	return cmd
}

func addSetupFlags(cmd *cobra.Command, o *setup.Options) {
	f := cmd.Flags()
	f.BoolVarP(&o.Yes, "yes", "y", false, "ask nothing")
	f.StringVar(&o.Module, "module", "", "PKCS#11 library (default: the one of an HSM that is found, else SoftHSM)")
	f.StringVar(&o.Token, "token", "attestd", "label of the token; a SoftHSM token is made where there is none")
	f.StringVar(&o.Key, "key", "attestor", "label of the key; it is made where there is none")
	f.StringVar(&o.PINFile, "pin-file", "", "file that holds the user PIN of a token that exists; - for standard input")
	f.StringVar(&o.SOPINFile, "so-pin-file", "", "file that holds the security officer's PIN, to initialise a token of an HSM")
	f.StringVar(&o.PINStore, "pin-store", "auto", "how to keep the PIN: credential (encrypted by systemd-creds), file, or auto: a credential where it works")
	f.StringVar(&o.Listen, "listen", "", "address and port of the API (server.listen)")
	f.StringVar(&o.TLSCert, "tls-cert", "", "certificate chain (server.tls.cert)")
	f.StringVar(&o.TLSKey, "tls-key", "", "the certificate's key (server.tls.key)")
	f.BoolVar(&o.AllowPlainHTTP, "allow-plain-http", false, "serve without TLS on an address that other machines reach, as behind a proxy (server.allow_plain_http)")
	f.StringVar(&o.Scheme, "scheme", "", "digest scheme (attestation.scheme): what the verifying contract expects")
	f.StringVar(&o.BackupRecipient, "backup-recipient", "", "recipient of age to whom backups encrypt the log key (backup.recipient); without it they leave the key out")
	f.StringVar(&o.DataDir, "data-dir", "", "where keys and journal are kept (data_dir)")
	f.StringVar(&o.User, "user", "", "user as whom the daemon runs (default: attestd where root runs setup, else you)")
	f.StringVar(&o.APIKeyName, "api-key-name", "first", "name of the first API key")
	f.StringVar(&o.APIKeyFile, "api-key-file", "", "file for the first API key's token; - shows it once (default: api-key beside the configuration)")
}

// setup passes the terminal, and ways to run this program again, to setup.Run.
func (a *app) setup(ctx context.Context, o setup.Options) error {
	machine := setup.Machine{
		Subject: a.subject(), In: a.in, Err: a.err, ReadPIN: a.readPIN, InitToken: a.initToken,
		OpenKeys: func(ctx context.Context) (setup.Keys, error) { return a.backend(ctx) },
	}
	r, err := setup.Run(ctx, machine, o)
	if err != nil {
		return interrupted(ctx, err, "what was made stays, and 'attestd setup' goes on with it")
	}
	if err := a.print(r, func(w io.Writer) { a.writeSetup(w, o, r) }); err != nil {
		return err
	}
	if doctor.Worst(r.Checks) == doctor.Fail {
		return silentFailure{}
	}
	return nil
}

// initToken runs 'hsm init' in a child process, which works as the service's user.
func (a *app) initToken(ctx context.Context, soPIN []byte) (result hsm.InitResult, err error) {
	machine := *a
	machine.output = "json"
	cmd, err := machine.self(ctx, "hsm", "init", "--so-pin-file", "-")
	if err != nil {
		return result, err
	}
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(soPIN), &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return result, initFailure(err, toldBy(stderr.String()))
	}
	return result, json.Unmarshal(stdout.Bytes(), &result)
}

// initFailure returns PINRefused if the child exited with exitPIN.
func initFailure(err error, said string) error {
	if exit, isExit := errors.AsType[*exec.ExitError](err); isExit && exit.ExitCode() == exitPIN {
		return &setup.PINRefused{Said: said}
	}
	if said == "" {
		return fmt.Errorf("make the token and the key: %w", err)
	}
	return errors.New(said)
}

// writeSetup writes doctor's findings to standard error, and the next steps to w as the result.
func (a *app) writeSetup(w io.Writer, o setup.Options, r setup.Result) {
	var troubles []doctor.Finding
	for _, f := range r.Checks {
		if f.State != doctor.OK {
			troubles = append(troubles, f)
		}
	}
	a.say("%d checks, %d of them without fault.", len(r.Checks), len(r.Checks)-len(troubles))
	writeFindings(a.err, troubles)
	fmt.Fprintf(w, "\nThe attestor's address is %s\n", r.Address)
	fmt.Fprintln(w, "Set it as attestor in the contract on chain.")
	if r.APIKey != "" {
		fmt.Fprintf(w, "\nThe token of the API key %q, not shown again: %s\n", o.APIKeyName, r.APIKey)
	}
	if doctor.Worst(r.Checks) == doctor.Fail {
		fmt.Fprintln(w, "\nMend what failed above, then run setup again.")
		return
	}
	if r.AwaitsJournal {
		fmt.Fprintln(w, "\nThere is no journal yet, and no API key. If this machine takes over from another, put the newest backup in place:")
		fmt.Fprintln(w, "\n  attestd restore FILE")
		fmt.Fprintf(w, "\nElse make an API key: attestd key create --name %s\n", text.ShellWord(o.APIKeyName))
	}
	fmt.Fprintf(w, "\nNext:\n\n  %s\n", r.Next)
}
