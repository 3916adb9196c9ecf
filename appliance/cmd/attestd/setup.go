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

const setupLong = `Set up this machine for attesting: find the HSM's PKCS#11 module, create or find the token, store its PIN
where only the service can read it, create the key, write the configuration, create the first API key, and run
the checks of 'attestd doctor'. The output ends with the address to set as attestor on chain, and the command
that starts the service.

If a configuration exists and names the token, it is kept, and --pin-file puts the PIN at its pin-source. In
this way a machine replaces a lost one, with its configuration and token, followed by 'attestd restore'.

With --join, this machine becomes a member of a cluster. The bundle, written with --bundle on an existing
member, has the log key and the shared settings, and is encrypted with a passphrase; copy the bundle and the
passphrase separately. The token must have the cluster's key already.

At a terminal, setup asks questions with default answers; with --yes it uses the defaults. On a fresh machine
with SoftHSM, 'attestd setup --yes' gives a working appliance. A second run keeps what exists and adds what is
missing. Run it as root; the files then belong to the service's user.`

func newSetup(a *app) *cobra.Command {
	var o setup.Options
	bundle := newBundle{app: a}
	cmd := &cobra.Command{
		Use:   "setup",
		Short: "Set up this machine for attesting: token, key, configuration, API key",
		Long:  setupLong,
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
					return usagef(cmd, "give --bundle on a member, or --join on a new machine, not both")
				}
				bundle.passphraseFile = o.PassphraseFile
				return bundle.run(cmd)
			}
			if bundle.withPassword {
				return usagef(cmd, "--with-password needs --bundle")
			}
			if !o.Yes && (!isTerminal(a.in) || a.json()) {
				return usagef(cmd,
					"no terminal for questions: give --yes, and flags for values that differ from the defaults")
			}
			if !slices.Contains([]string{"auto", "credential", "file"}, o.PINStore) {
				return usagef(cmd, "--pin-store must be auto, credential or file, not %q", o.PINStore)
			}
			if ignored := o.Ignored(&a.source, cmd.Flags().Changed); len(ignored) > 0 {
				return usagef(cmd,
					"%s exists and has a token, so setup would ignore %s; change the file, then run: attestd reload",
					a.source.Path(), strings.Join(ignored, ", "))
			}
			return a.setup(cmd.Context(), o)
		},
	}
	addSetupFlags(cmd, &o)
	f := cmd.Flags()
	f.StringVar(&bundle.file, "bundle", "",
		"on a member of a cluster: only write a bundle for a new member to this file, with mode 0600")
	f.BoolVar(&bundle.withPassword, "with-password", false,
		"with --bundle: include the database's password of store.url")
	f.StringVar(&o.Join, "join", "", "bundle of the cluster to join")
	f.StringVar(&o.PassphraseFile, "passphrase-file", "",
		"with --bundle or --join: file with the bundle's passphrase; - for standard input")
	return cmd
}

func addSetupFlags(cmd *cobra.Command, o *setup.Options) {
	f := cmd.Flags()
	f.BoolVarP(&o.Yes, "yes", "y", false, "use the defaults without questions")
	f.StringVar(&o.Module, "module", "", "PKCS#11 library (default: the library of the HSM found, or SoftHSM)")
	f.StringVar(&o.Token, "token", "attestd", "label of the token; a missing SoftHSM token is created")
	f.StringVar(&o.Key, "key", "attestor", "label of the key; a missing key is created")
	f.StringVar(&o.PINFile, "pin-file", "", "file with the user PIN of an existing token; - for standard input")
	f.StringVar(&o.SOPINFile, "so-pin-file", "",
		"file with the security officer's PIN, to initialise a token of an HSM")
	f.StringVar(&o.PINStore, "pin-store",
		"auto", "storage of the PIN: credential (encrypted by systemd-creds), file, or auto: a credential if possible")
	f.StringVar(&o.Listen, "listen", "", "address and port of the API (server.listen)")
	f.StringVar(&o.TLSCert, "tls-cert", "", "certificate chain (server.tls.cert)")
	f.StringVar(&o.TLSKey, "tls-key", "", "the certificate's key (server.tls.key)")
	f.BoolVar(&o.AllowPlainHTTP, "allow-plain-http", false,
		"serve without TLS on an address that other machines can reach, such as behind a proxy (server.allow_plain_http)")
	f.StringVar(&o.Scheme, "scheme", "", "digest scheme that the verifying contract expects (attestation.scheme)")
	f.StringVar(&o.BackupRecipient, "backup-recipient", "",
		"age recipient of the log key in backups (backup.recipient); without it, backups omit the key")
	f.StringVar(&o.DataDir, "data-dir", "", "folder of API keys and journal (data_dir)")
	f.StringVar(&o.User, "user", "", "user of the daemon (default: attestd if root runs setup, otherwise you)")
	f.StringVar(&o.APIKeyName, "api-key-name", "first", "name of the first API key")
	f.StringVar(&o.APIKeyFile, "api-key-file", "",
		"file for the first API key's token; - shows it once (default: api-key in the folder of the configuration)")
}

// setup passes the terminal, and ways to run this program again, to setup.Run.
func (a *app) setup(ctx context.Context, o setup.Options) error {
	machine := setup.Machine{
		Subject: a.subject(), In: a.in, Err: a.err, ReadPIN: a.readPIN, InitToken: a.initToken,
		OpenKeys: func(ctx context.Context) (setup.Keys, error) { return a.backend(ctx) },
	}
	r, err := setup.Run(ctx, machine, o)
	if err != nil {
		return interrupted(ctx, err, "the created files remain, and the next 'attestd setup' continues with them")
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
		return fmt.Errorf("create the token and the key: %w", err)
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
	a.say("%d checks, %d ok.", len(r.Checks), len(r.Checks)-len(troubles))
	writeFindings(a.err, troubles)
	fmt.Fprintf(w, "\nThe attestor's address is %s\n", r.Address)
	fmt.Fprintln(w, "Set it as attestor in the contract on chain.")
	if r.APIKey != "" {
		fmt.Fprintf(w, "\nThe token of the API key %q, not shown again: %s\n", o.APIKeyName, r.APIKey)
	}
	if doctor.Worst(r.Checks) == doctor.Fail {
		fmt.Fprintln(w, "\nCorrect the failed checks above, then run setup again.")
		return
	}
	if r.AwaitsJournal {
		fmt.Fprintln(w,
			"\nThere is no journal yet, and no API key. If this machine replaces another, restore the newest backup:")
		fmt.Fprintln(w, "\n  attestd restore FILE")
		fmt.Fprintf(w, "\nOtherwise create an API key: attestd key create --name %s\n", text.ShellWord(o.APIKeyName))
	}
	fmt.Fprintf(w, "\nNext:\n\n  %s\n", r.Next)
}
