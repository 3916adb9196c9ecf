// Command attestd is the attestation appliance. It signs attestations with a key that never leaves an HSM, keeps a
// tamper-evident journal of them, and answers GraphQL reads from a local replica, over HTTP. `attestd --help` lists its
// commands.
package main

import (
	"context"
	"errors"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/attestd/attestd/appliance/config"
	"github.com/attestd/attestd/appliance/daemon"
	"github.com/attestd/attestd/hsm/softhsm"
	"github.com/attestd/attestd/hsm/worker"
)

// Exit statuses.
const (
	exitOK      = 0
	exitFailure = 1
	exitUsage   = 2
	// exitPIN says that the token refused the PIN. A service manager must not restart attestd then: tokens lock after a
	// few wrong PINs.
	exitPIN = 3
	// exitInterrupted is the shell's status for SIGINT. An interrupted command says how much of its work is kept.
	exitInterrupted = 130
)

func main() {
	worker.Main() // does not return in a worker process, which holds the HSM's library
	os.Exit(runHere(terminal{in: os.Stdin, out: os.Stdout, err: os.Stderr, environ: os.Environ()}))
}

// runHere executes this process's command line and returns its exit status.
func runHere(t terminal) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return run(ctx, t, os.Args[1:])
}

// terminal holds the streams and the environment of a command.
type terminal struct {
	in       io.Reader
	out, err io.Writer // results; all other messages
	environ  []string

	passphraseWork int // of archive.PassphraseRecipient
}

// run executes one command line and returns its exit status.
func run(ctx context.Context, t terminal, args []string) int {
	root := newRoot(t)
	root.SetArgs(args)
	root.SetIn(t.in)
	root.SetOut(t.out)
	root.SetErr(t.err)
	err := misnamed(root, args)
	if err == nil {
		err = root.ExecuteContext(ctx)
	}
	if told := (interruptedError{}); errors.Is(err, context.Canceled) && !errors.As(err, &told) {
		err = interrupted(ctx, err, "no files are left over")
	}
	return exitInTime(t.err, err, wantsJSON(args))
}

// exitInTime calls exitStatus, but waits at most flushLimit for the reader of standard error.
func exitInTime(stderr io.Writer, err error, asJSON bool) int {
	told := make(chan int, 1)
	go func() { told <- exitStatus(stderr, err, asJSON) }()
	select {
	case status := <-told:
		return status
	case <-time.After(flushLimit):
		return exitStatus(io.Discard, err, asJSON)
	}
}

// newRoot builds the tree of commands.
func newRoot(t terminal) *cobra.Command {
	app := &app{terminal: t, source: config.Source{Environ: t.environ, Check: daemon.CheckClients}}
	app.source.SoftHSM, _ = softhsm.Module() // empty if SoftHSM is not installed
	root := &cobra.Command{
		Use:   "attestd",
		Short: "The attestation appliance",
		Long: `attestd signs attestations with a key that never leaves an HSM, keeps a tamper-evident
journal of all attestations, and answers GraphQL queries on cross-chain transfers from a local replica.

To try attestd out, run 'attestd dev', which starts a complete throwaway appliance on this machine. On the machine that
will attest, run 'attestd setup', which creates everything that the service needs.`,
		Example: `  attestd dev
  attestd setup
  attestd serve --config /etc/attestd/attestd.yaml
  attestd key create --name payments --rate 50/s
  attestd log verify`,
		Version:       version(),
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          noArgs,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetVersionTemplate("attestd {{.Version}}\n")
	root.SetFlagErrorFunc(flagError)
	root.PersistentFlags().StringVarP(&app.source.File, "config", "c", "",
		"configuration file (default: $ATTESTD_CONFIG, or "+config.DefaultFile+")")
	root.PersistentFlags().StringVarP(&app.output, "output", "o", "text", "format of results: text, wide (tables with all columns) or json")
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error { return app.checkOutput(cmd) }
	must(root.RegisterFlagCompletionFunc("output",
		cobra.FixedCompletions([]string{"text", outputWide, "json"}, cobra.ShellCompDirectiveNoFileComp)))
	root.AddCommand(
		newDev(app), newServe(app), newConfig(app), newHSM(app), newKey(app),
		newAttest(app), newVerify(app), newLog(app), newReplica(app), newVersion(app),
		newReload(app), newStatus(app), newTop(app), newPause(app), newResume(app), newPolicy(app), newHealth(app),
		newBackup(app), newRestore(app), newStore(app), newCluster(app), newChain(app), newIndexer(app),
		newQuorum(app), newSetup(app), newApproval(app), newApprover(app), newWebhook(app),
		newDoctor(app), newConsole(app), newAuditReport(app), newSupport(app), newMan(app),
	)
	app.addCompletions(root)
	answerHelp(root)
	return root
}

// must panics on an error that only a defect of this program can cause.
func must(err error) {
	if err != nil {
		panic(err)
	}
}
