package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/attestd/attestd/api/client"
	"github.com/attestd/attestd/api/upstream"
	"github.com/attestd/attestd/api/wire"
	"github.com/attestd/attestd/appliance/config"
	"github.com/attestd/attestd/appliance/daemon"
	"github.com/attestd/attestd/appliance/files"
	"github.com/attestd/attestd/appliance/index"
	"github.com/attestd/attestd/appliance/index/dataset"
	"github.com/attestd/attestd/appliance/index/follower"
	"github.com/attestd/attestd/appliance/text"
	"github.com/attestd/attestd/store/replica"
)

func newReplica(a *app) *cobra.Command {
	return group("replica", "The replica that answers GraphQL: status, sync, verify, proof, import, export, generate",
		`The replica is the local copy of indexed transfers, packets, tokens, chains and channels that answers GraphQL
queries. It is a separate file, replica.db in data_dir. You can delete it at any time and fill it again: from
the upstream of graphql.upstream, which the daemon follows, or from a file of rows. While the daemon runs,
these commands use its admin socket; otherwise they open the file.`,
		newReplicaStatus(a), newReplicaSync(a), newReplicaVerify(a), newReplicaProof(a), newReplicaImport(a),
		newReplicaExport(a), newReplicaGenerate(a))
}

// replicaBackend serves the replica commands.
type replicaBackend interface {
	dataset.Target
	ReplicaStatus(ctx context.Context) (wire.ReplicaStatus, error)
	// VerifyReplica compares the replica with its upstream; see client.Admin.
	VerifyReplica(ctx context.Context, sample int, progress func(done, total int64)) (follower.Report, error)
	packetProver
	// ReplicaRecords writes a consistent snapshot of all rows as NDJSON.
	ReplicaRecords(ctx context.Context, w io.Writer) error
	io.Closer
}

// withReplica runs do with a replica backend, and closes it.
func (a *app) withReplica(cmd *cobra.Command, do func(replicaBackend) error) error {
	c, err := a.config(nil)
	if err != nil {
		return err
	}
	backend, err := a.openReplica(cmd.Context(), c)
	if err != nil {
		return err
	}
	return errors.Join(do(backend), backend.Close())
}

func (a *app) openReplica(ctx context.Context, c *config.Config) (replicaBackend, error) {
	running := client.NewAdmin(c.Admin.Socket)
	_, err := running.Status(ctx)
	if err == nil {
		return running, nil
	}
	if !errors.Is(err, client.ErrNotRunning) {
		return nil, fmt.Errorf("admin socket %s: %w", c.Admin.Socket, err)
	}
	if !files.Exists(daemon.ReplicaPath(c)) { // as in backend: opening would create the file
		if err := daemon.RequireSetup(&a.source, c); err != nil {
			return nil, err
		}
	}
	daemon.LimitMemory(offlineMemory)
	opened, err := daemon.OpenReplica(c)
	if err != nil {
		return nil, err
	}
	return offlineReplica{dataset.Into(opened), opened, c}, nil
}

// offlineMemory limits the memory of an import, in bytes; without it, memory would grow with the replica. At ten
// million transfers, two thirds of it are the rows and pages of a batch.
const offlineMemory = 384 << 20

// offlineReplica is the replica backend that opens the file while no daemon runs.
type offlineReplica struct {
	dataset.Target
	replica *replica.Store
	config  *config.Config
}

// ReplicaStatus reports the follower's state as the last follower stored it in the file.
func (f offlineReplica) ReplicaStatus(ctx context.Context) (wire.ReplicaStatus, error) {
	held, err := index.StatusOf(ctx, f.replica)
	status := wire.ReplicaStatus{Status: held}
	if err == nil && f.config.Follows() {
		last := follower.New(daemon.FollowerOptions(f.config, f.replica, nil, nil))
		err = last.Load(ctx)
		status.Follower = new(last.Status())
	}
	return status, err
}

func (f offlineReplica) VerifyReplica(ctx context.Context, sample int,
	progress func(done, total int64)) (follower.Report, error) {
	upstream, err := f.upstream()
	if err != nil {
		return follower.Report{}, err
	}
	return follower.Verify(ctx, follower.VerifyOptions{
		Index: f.replica, Upstream: upstream, Sample: sample,
		OnProgress: func(done, total int) { progress(int64(done), int64(total)) },
	})
}

// upstream opens the configured upstream of the replica.
func (f offlineReplica) upstream() (*upstream.Client, error) {
	if f.config.GraphQL.Upstream == "" {
		return nil, errors.New("no upstream: set graphql.upstream")
	}
	return daemon.OpenUpstream(f.config, version(), nil)
}

func (f offlineReplica) ReplicaRecords(ctx context.Context, w io.Writer) error {
	_, err := dataset.Export(ctx, f.replica, w, dataset.ExportOptions{})
	return err
}

func (f offlineReplica) Close() error { return f.replica.Close() }

func newReplicaStatus(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Show the replica's contents, its age and the progress of the follower",
		Long: `Show the contents of the replica, its size and its age. With an upstream also: the progress of the follower,
the lag of the replica, the last failure, the number of packets in transit, and the number of quarantined
rows, which contradict themselves ('attestd replica verify' lists them).`,
		Example: "  attestd replica status\n  attestd replica status --output json | jq .follower.lagSeconds",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withReplica(cmd, func(o replicaBackend) error {
				s, err := o.ReplicaStatus(cmd.Context())
				if err != nil {
					return err
				}
				_, running := o.(*client.Admin)
				return a.print(s, func(w io.Writer) { writeReplicaStatus(w, s, running) })
			})
		},
	}
}

func writeReplicaStatus(w io.Writer, s wire.ReplicaStatus, running bool) {
	var rows [][2]string
	for _, t := range index.RowTypes {
		rows = append(rows, [2]string{t.Name + "s", text.Count(s.Rows[t.Name])})
	}
	rows = append(rows, [][2]string{
		{"size", fmt.Sprintf("%.1f MiB", float64(s.Bytes)/(1<<20))},
		{"oldest", text.Time(s.Oldest)},
		{"newest", text.Age(s.Newest)},
		{"written", text.Age(s.Updated)},
		{"schema", fmt.Sprint(s.Schema)},
		{"unverified", nonZero(s.Unverified)},
	}...)
	if s.Follower != nil {
		rows = append(rows, followerFields(*s.Follower, running)...)
	}
	fields(w, rows)
}

func newReplicaImport(a *app) *cobra.Command {
	var o dataset.ImportOptions
	cmd := &cobra.Command{
		Use:   "import FILE|-",
		Short: "Fill the replica from NDJSON, or from zstd if the name ends with .zst",
		Long: `Fill the replica from a file of rows, one JSON object per line, compressed with zstd if its name ends with
.zst. Existing rows are updated, so importing a file twice changes nothing. An interrupted import continues at
its last position. A bad line stops the import and is shown, unless --keep-going skips it. docs/replica.md
describes the rows.`,
		Example: `  attestd replica import transfers.ndjson.zst
  zcat dump.ndjson.gz | attestd replica import - --keep-going`,
		Args: oneArg("FILE (or - for standard input)"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withReplica(cmd, func(to replicaBackend) error {
				return a.importRows(cmd.Context(), to, args[0], o)
			})
		},
	}
	cmd.Flags().BoolVar(&o.KeepGoing, "keep-going", false, "skip bad lines instead of stopping at the first")
	cmd.Flags().BoolVar(&o.Restart, "restart", false,
		"start at the first line, even if an import of this file was interrupted")
	return cmd
}

// remoteBatch is the number of rows in one request over the admin socket.
const remoteBatch = 5000

func (a *app) importRows(ctx context.Context, to replicaBackend, file string, o dataset.ImportOptions) error {
	if _, remote := to.(*client.Admin); remote {
		o.BatchRows = remoteBatch
	}
	update, end := a.progress("import", unitBytes)
	o.OnProgress = func(p dataset.Progress) { update(p.Done, max(p.Total, p.Done)) }
	o.OnBad = func(b dataset.BadLine) { a.say("%v: skipped", b) }
	var done dataset.Imported
	var err error
	if file == dataset.Stdio {
		done, err = dataset.Import(ctx, to, a.in, o)
	} else {
		done, err = dataset.ImportFile(ctx, to, file, o)
	}
	end()
	if err != nil {
		if ctx.Err() == nil && done.Rows > 0 {
			a.say("%d rows were written before the failure; run the same command again to continue.", done.Rows)
		}
		return interrupted(ctx, err, "%d rows are in the replica; run the same command again to continue", done.Rows)
	}
	return a.print(struct {
		dataset.Imported
		Seconds float64 `json:"seconds"`
	}{done, done.Elapsed.Seconds()}, func(w io.Writer) {
		fmt.Fprintf(w, "%s rows in %s, %s per second: %s new, %s changed, %s unchanged",
			text.Count(done.Rows),
			done.Elapsed.Round(time.Millisecond), text.Decimal(done.Rate, 0), text.Count(done.Inserted),
			text.Count(done.Updated), text.Count(done.Unchanged))
		if done.Resumed > 0 {
			fmt.Fprintf(w, "; continued after line %d", done.Resumed)
		}
		if done.Bad > 0 {
			fmt.Fprintf(w, "; %d bad lines skipped", done.Bad)
		}
		fmt.Fprintln(w, ".")
	})
}

func newReplicaExport(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "export FILE|-",
		Short: "Write the replica as NDJSON, or as zstd if the name ends with .zst",
		Long: `Write all rows, as of one moment, one JSON object per line, compressed with zstd if the name ends with .zst.
The file appears only when it is complete. The same rows give the same bytes.`,
		Example: "  attestd replica export replica.ndjson.zst\n  attestd replica export - | jq -c 'select(.kind==\"chain\")'",
		Args:    oneArg("FILE (or - for standard output)"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withReplica(cmd, func(from replicaBackend) error {
				return a.writeRows(cmd.Context(), args[0], unitRows,
					func(w io.Writer, update func(done, total int64)) (int64, error) {
						return exportRows(cmd.Context(), from, w, update)
					})
			})
		},
	}
}

func exportRows(ctx context.Context, from replicaBackend, w io.Writer, update func(done, total int64)) (int64, error) {
	status, err := from.ReplicaStatus(ctx)
	if err != nil {
		return 0, err
	}
	var total int64
	for _, n := range status.Rows {
		total += int64(n)
	}
	counter := &lineCounter{w: w, update: func(n int64) { update(n, max(n, total)) }}
	err = from.ReplicaRecords(ctx, counter)
	return counter.lines, err
}

// lineCounter counts the lines that are written through it.
type lineCounter struct {
	w      io.Writer
	lines  int64
	update func(lines int64)
}

func (c *lineCounter) Write(p []byte) (int, error) {
	c.lines += int64(bytes.Count(p, []byte{'\n'}))
	c.update(c.lines)
	return c.w.Write(p)
}

// writeRows writes a file of rows, and prints their number.
func (a *app) writeRows(ctx context.Context, name, unit string,
	write func(w io.Writer, update func(done, total int64)) (int64, error)) error {
	update, end := a.progress("write", unit)
	var count int64
	err := dataset.WriteFile(name, a.out, func(w io.Writer) (err error) {
		buffered := bufio.NewWriterSize(w, 1<<20)
		count, err = write(buffered, update)
		return errors.Join(err, buffered.Flush())
	})
	end()
	if err == nil && name != dataset.Stdio {
		a.say("%s rows written to %s.", text.Count(count), name)
	}
	return interrupted(ctx, err, "%s was not written", name)
}

func newReplicaGenerate(a *app) *cobra.Command {
	var transfers int
	var seed uint64
	var output string
	cmd := &cobra.Command{
		Use:   "generate",
		Short: "Generate realistic data, into the replica or a file",
		Long: `Generate realistic data: chains, tokens, channels, packets in every stage with real ZKGM bytes and hashes, and
their transfers. The data goes into the replica, or with --file into a file for 'attestd replica import'. The
same seed, number and day give the same data.`,
		Example: "  attestd replica generate --transfers 100000\n  attestd replica generate --transfers 1000000 --seed 7 --file million.ndjson.zst",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if transfers <= 0 {
				return usagef(cmd, "--transfers must be more than zero")
			}
			o := dataset.GenerateOptions{Transfers: transfers, Seed: seed, Now: time.Now()}
			if output != "" {
				o.Now = time.Now().UTC().Truncate(24 * time.Hour)
				return a.writeRows(cmd.Context(), output, unitTransfers,
					func(w io.Writer, update func(done, total int64)) (int64, error) {
						return generateRows(cmd.Context(), o, w, update)
					})
			}
			return a.withReplica(cmd, func(to replicaBackend) error { return a.generate(cmd.Context(), to, o) })
		},
	}
	cmd.Flags().IntVar(&transfers, "transfers", 10_000, "number of transfers")
	cmd.Flags().Uint64Var(&seed, "seed", 1, "which data")
	cmd.Flags().StringVarP(&output, "file", "f", "",
		"write NDJSON to this file instead, or zstd if it ends with .zst; - for standard output")
	return cmd
}

func generateRows(ctx context.Context, o dataset.GenerateOptions, w io.Writer,
	update func(done, total int64)) (count int64, err error) {
	var line []byte
	err = dataset.Generate(ctx, o, countTransfers(o.Transfers, update, func(rows []index.Row) error {
		for _, row := range rows {
			line = append(row.AppendLine(line[:0]), '\n')
			if _, err := w.Write(line); err != nil {
				return err
			}
		}
		count += int64(len(rows))
		return ctx.Err()
	}))
	return count, err
}

// generate fills the replica with generated data, and prints the result.
func (a *app) generate(ctx context.Context, to replicaBackend, o dataset.GenerateOptions) error {
	if _, remote := to.(*client.Admin); remote {
		o.BatchRows = remoteBatch
	}
	start, name := time.Now(), fmt.Sprintf("generate %d %d", o.Transfers, o.Seed)
	written, err := a.makeUp(ctx, to, name, o)
	if err == nil {
		err = setPosition(ctx, to, name, "")
	}
	if err != nil {
		rows := written.Inserted + written.Updated + written.Unchanged
		return interrupted(ctx, err, "%d rows are in the replica; run the same command again to continue", rows)
	}
	return a.print(written, func(w io.Writer) {
		fmt.Fprintf(w,
			"%s transfers with their chains, tokens and packets, generated in %s: %s rows new, %s changed, %s unchanged.\n",
			text.Count(o.Transfers), time.Since(start).Round(time.Millisecond), text.Count(written.Inserted),
			text.Count(written.Updated), text.Count(written.Unchanged))
	})
}
