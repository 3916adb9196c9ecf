package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/attestd/attestd/api/client"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/config"
	"github.com/attestd/attestd/appliance/files"
	"github.com/attestd/attestd/appliance/service"
	"github.com/attestd/attestd/appliance/setup"
	"github.com/attestd/attestd/appliance/text"
)

// newBundle is one run of 'setup --bundle'.
type newBundle struct {
	*app
	file, passphraseFile string
	withPassword         bool
}

func (n newBundle) run(cmd *cobra.Command) error {
	ctx := cmd.Context()
	if n.passphraseFile == "" && !isTerminal(n.in) {
		return usagef(cmd, "no terminal to ask for a passphrase: give its file with --passphrase-file")
	}
	if files.Exists(n.file) {
		return fmt.Errorf("setup --bundle: %s exists, and is not replaced; give another name", n.file)
	}
	c, err := n.config(nil)
	if err != nil {
		return err
	}
	signer, err := n.signer(ctx, c)
	if err != nil {
		return fmt.Errorf("setup --bundle: %w", err)
	}
	var b setup.Bundle
	daemons, err := service.UserOf(c.DataDir)
	if err == nil {
		err = daemons.Do(func() error {
			b, err = setup.NewBundle(c, version(), signer, n.withPassword, time.Now())
			return err
		})
	}
	if err != nil {
		return fmt.Errorf("setup --bundle: %w", err)
	}
	passphrase, err := n.passphrase(ctx)
	if err != nil {
		return fmt.Errorf("passphrase: %w", err)
	}
	var sealed bytes.Buffer
	if err := b.Seal(&sealed, passphrase, n.passphraseWork); err != nil {
		return err
	}
	err = daemons.In(filepath.Dir(n.file)).Do(func() error { return files.Write(n.file, sealed.Bytes(), 0o600) })
	if err != nil {
		return err
	}
	return n.print(map[string]any{"file": n.file, "log": b.Settings["journal.origin"]}, func(w io.Writer) {
		fmt.Fprintf(w, "%s: the bundle with which a machine joins the cluster, valid for a week.\n", n.file)
		fmt.Fprintf(w,
			"With the bundle and the passphrase, anyone can sign checkpoints: copy them separately, and remove the file after use.\n")
		fmt.Fprintf(w, "\nOn the new machine, which needs the key %s in its token, run:\n\n  attestd setup --join %s\n",
			signer, text.ShellWord(filepath.Base(n.file)))
	})
}

func (n newBundle) passphrase(ctx context.Context) (p []byte, err error) {
	if n.passphraseFile != "" {
		p, err = n.readPIN(n.passphraseFile)
	} else {
		p, err = setup.AskPassphrase(ctx, n.in.(*os.File), n.err)
	}
	if err == nil && len(p) == 0 {
		err = errors.New("the file is empty")
	}
	return p, err
}

// signer returns the address with which every member of the cluster signs.
func (n newBundle) signer(ctx context.Context, c *config.Config) (appliance.Address, error) {
	if c.HSM.Address != "" {
		return appliance.ParseAddress(c.HSM.Address)
	}
	running := client.NewAdmin(c.Admin.Socket)
	status, err := running.Status(ctx)
	_ = running.Close()
	if err != nil {
		return appliance.Address{},
			fmt.Errorf(
				"hsm.address is not set, and no daemon is running that knows the key: set hsm.address, or start attestd: %w", err)
	}
	return status.SignerAddress, nil
}
