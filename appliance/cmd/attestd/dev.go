package main

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/config"
	"github.com/attestd/attestd/appliance/daemon"
	"github.com/attestd/attestd/appliance/files"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/appliance/text"
	"github.com/attestd/attestd/hsm"
	"github.com/attestd/attestd/hsm/softhsm"
)

func newDev(a *app) *cobra.Command {
	d := dev{app: a}
	cmd := &cobra.Command{
		Use:   "dev",
		Short: "Run a complete throwaway appliance in a folder",
		Long: `Run a complete throwaway appliance: a SoftHSM token with a key, an API key, demo data and the daemon. The
folder holds attestd.yaml (for 'serve --config'), environment and softhsm2.conf (the location of the token),
pin, api-key, admin.sock and the data. A second run continues with them, even if the first was interrupted. To
start over, remove the folder. Ctrl-C stops the appliance, and so does closing the terminal. Not for
production: the key is a file.`,
		Example: "  attestd dev\n  attestd dev --dir /tmp/appliance --listen 127.0.0.1:9000",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if d.transfers < 0 {
				return usagef(cmd, "--transfers must not be negative")
			}
			if set := a.source.Getenv(config.EnvName("server.listen")); set != "" && !cmd.Flags().Changed("listen") {
				d.listen = set
			}
			if !config.IsHostPort(d.listen) {
				return usagef(cmd, "--listen: %q is not an address and port such as %s", d.listen,
					config.DefaultText("server.listen"))
			}
			return d.run(cmd.Context())
		},
	}
	cmd.Flags().StringVar(&d.dir, "dir", ".attestd", "folder of the appliance")
	cmd.Flags().IntVar(&d.transfers, "transfers", 2000, "number of transfers in new demo data; 0 for none")
	cmd.Flags().StringVar(&d.listen, "listen", config.DefaultText("server.listen"), "address and port of the API")
	return cmd
}

// dev is a throwaway appliance in a folder.
type dev struct {
	*app
	dir       string // as given, for messages
	listen    string
	transfers int // in the demo data
}

const (
	devToken  = "attestd-dev"
	devObject = "attestor"
)

func (d dev) path(name string) string { return filepath.Join(d.dir, name) }

func (d dev) run(ctx context.Context) error {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGHUP) // the terminal closes
	defer stop()
	folder, err := d.take(ctx)
	if err != nil {
		return fmt.Errorf("%s: %w", d.dir, err)
	}
	defer folder.Close()
	if err := d.checkListen(); err != nil {
		return err
	}
	listener, err := d.listenAPI(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = listener.Close() }() // daemon.Serve may have closed it already
	c, err := d.prepare(ctx)
	if err != nil && ctx.Err() != nil {
		return interruptedError{fmt.Errorf(
			"interrupted; the files in %s are kept, and the next 'attestd dev' continues with them", d.dir)}
	}
	if err != nil {
		return fmt.Errorf("prepare %s: %w", d.dir, err)
	}
	level := new(slog.LevelVar)
	err = daemon.Serve(ctx, c, newLeveledLogger(c, d.err, level), daemon.Options{
		Version: version(), Load: d.load, Level: level, Sockets: []net.Listener{listener}, EndsOnHangup: true,
		Doctor: d.examine(config.Source{File: d.path("attestd.yaml"), Environ: d.environ, SoftHSM: d.source.SoftHSM,
			Check: d.source.Check}),
		Ready: func(r daemon.Ready) error { return d.banner(c, r) },
	})
	if err == nil {
		d.say("Stopped. The next 'attestd dev' continues with the data in %s.", d.dir)
	}
	return err
}

// prepare creates the missing parts of the folder, and returns its configuration.
func (d dev) prepare(ctx context.Context) (*config.Config, error) {
	folder, err := softhsm.Create(d.dir)
	if err != nil {
		return nil, err
	}
	if err := folder.Setenv(); err != nil {
		return nil, err
	}
	uri := folder.URI(devToken, devObject)
	if _, err := hsm.Init(ctx, hsm.InitOptions{URI: uri, SOPIN: folder.SOPIN}); err != nil {
		return nil, err
	}
	return d.fill(ctx, folder)
}

// fill creates the missing parts of the folder except the token, and returns its configuration.
func (d dev) fill(ctx context.Context, folder softhsm.Folder) (*config.Config, error) {
	environment := fmt.Appendf(nil, "%s=%s\n", softhsm.ConfVariable, folder.Conf) // every command finds the token by it
	if err := files.Write(d.path(config.EnvironmentName), environment, 0o600); err != nil {
		return nil, err
	}
	uri := folder.URI(devToken, devObject).String()
	if err := files.Write(d.path("attestd.yaml"), d.yaml(filepath.Dir(folder.Conf), uri), 0o600); err != nil {
		return nil, err
	}
	c, err := d.load()
	if err != nil {
		return nil, err
	}
	if err := d.ensureAPIKey(ctx, c); err != nil {
		return nil, err
	}
	return c, d.ensureDemoData(ctx, c)
}

// load reads the configuration of the folder. It needs no environment file, since prepare has set SOFTHSM2_CONF.
func (d dev) load() (*config.Config, error) {
	return d.source.LoadFile(d.path("attestd.yaml"), map[string]any{"server.listen": d.listen})
}

// ensureAPIKey makes sure that the file api-key holds a token that the store knows.
func (d dev) ensureAPIKey(ctx context.Context, c *config.Config) (err error) {
	store, err := daemon.OpenStore(c, daemon.StoreOptions{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	token, err := os.ReadFile(d.path("api-key"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if _, err := appliance.Authenticate(ctx, store.Keys, strings.TrimSpace(string(token))); err == nil {
		return nil
	}
	key, text, err := appliance.NewAPIKey(appliance.KeyRequest{Name: "dev", Rate: appliance.Unlimited}, time.Now())
	if err != nil {
		return err
	}
	if err := store.RecordEvent(ctx,
		journal.Event{Kind: journal.EventKeyCreated, By: operator(), Details: key.Details()}); err != nil {
		return err
	}
	if err := store.Keys.Create(ctx, key); err != nil {
		return err
	}
	return files.Write(d.path("api-key"), []byte(text+"\n"), 0o600)
}

// Addresses for the curl example. Both are examples of EIP-55.
const (
	devUnspendable = "0xD1220A0cf47c7B9Be7A2E6BA89F429762e7b9aDb"
	devBeneficiary = "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed"
)

// banner shows the appliance's addresses and the first commands to try. It writes to standard output, as this command's
// result.
func (d dev) banner(c *config.Config, r daemon.Ready) error {
	url := "http://" + r.API.String()
	bold, dim, plain := "\x1b[1m", "\x1b[2m", "\x1b[0m"
	if !d.colours(d.out) {
		bold, dim, plain = "", "", ""
	}
	w := &page{w: d.out}
	fmt.Fprintf(w, "\n  %sattestd %s%s  a throwaway appliance in %s\n\n", bold, version(), plain, d.dir)
	row := func(name, value, note string) {
		fmt.Fprintf(w, "  %-9s %s  %s%s%s\n", name, value, dim, note, plain)
	}
	row("signer", r.Signer.String(), "the key is in a SoftHSM token and cannot leave it")
	row("public", "0x"+hex.EncodeToString(r.PublicKey[:8])+"…",
		"GET "+url+"/functions/v1/attestor shows the complete key")
	data := "demo data"
	if c.AsksUpstream() {
		data = "the data of " + c.UpstreamShown()
	}
	row("explore", url+"/graphiql", "the playground, with "+data)
	row("api", url+"/openapi.yaml", "description of the API")
	if r.Metrics != nil { // nil if metrics.listen is empty
		row("metrics", "http://"+r.Metrics.String()+"/metrics", "for Prometheus")
	}
	row("console", r.Console.String(), "open it with the link of attestd console, see below")
	row("api key", d.path("api-key"), "created for you; for more: attestd key create")
	row("config", d.path("attestd.yaml"), "for attestd serve --config")
	fmt.Fprintf(w, "\n  %sRequest an attestation:%s\n\n", bold, plain)
	fmt.Fprintf(w,
		"curl -s %s/functions/v1/attest -H 'content-type: application/json' -H \"x-api-key: $(cat %s)\" -d '{\"unspendableAddress\":\"%s\",\"beneficiary\":\"%s\"}'\n",
		url, text.ShellWord(d.path("api-key")), devUnspendable, devBeneficiary)
	fmt.Fprintf(w, "\n  %sRead transfers:%s\n\n", bold, plain)
	fmt.Fprintf(w,
		"curl -s %s%s -H 'content-type: application/json' -d '{\"query\":\"{ v2_transfers(args: { p_limit: 3 }) { status base_amount base_token_symbol source_universal_chain_id destination_universal_chain_id sort_order } }\"}'\n", url, daemon.GraphQLPath)
	fmt.Fprintf(w, "\n  %sThen look at the journal and verify it:%s\n\n", bold, plain)
	fmt.Fprintf(w, "%s log list --config %s\n", text.ShellWord(os.Args[0]), text.ShellWord(d.path("attestd.yaml")))
	fmt.Fprintf(w, "%s console --config %s\n", text.ShellWord(os.Args[0]), text.ShellWord(d.path("attestd.yaml")))
	fmt.Fprintf(w, "%s log verify --config %s\n", text.ShellWord(os.Args[0]), text.ShellWord(d.path("attestd.yaml")))
	fmt.Fprintf(w, "\n  %sCtrl-C stops it; the next run continues with the same data.%s\n\n", dim, plain)
	return w.err
}
