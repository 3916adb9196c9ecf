package main

import (
	"archive/tar"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/spf13/cobra"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/attestd/attestd/api/client"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/config"
	"github.com/attestd/attestd/store/bolt"
)

func newBackup(a *app) *cobra.Command {
	b := backup{app: a}
	cmd := &cobra.Command{
		Use:   "backup FILE|FOLDER",
		Short: "Copy API keys and journal, consistent while the daemon serves",
		Long: `Copy API keys, journal and log key into one file of mode 0600, consistent as of one moment, while the daemon serves.
The file is read back and audited before it gets its name: each record's signature, the tree, the checkpoint. In a
FOLDER, the name is made of the time, and --keep removes the oldest of such names.

The file is a tar archive compressed by zstd: manifest.json, log.key and attestd.db. It is as secret as data_dir. It does
NOT hold the attestor key, which cannot leave the HSM, nor the configuration and the PIN: back up the HSM by its own
means (of SoftHSM, the folder of its tokens).`,
		Example: `  attestd backup /var/backups/attestd --keep 14
  attestd backup before-upgrade.tar.zst
  zstd -dc before-upgrade.tar.zst | tar -xO manifest.json`,
		Args: oneArg("file or folder"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if b.keep < 0 {
				return usagef(cmd, "--keep must not be negative")
			}
			return b.run(cmd, args[0])
		},
	}
	cmd.Flags().IntVar(&b.keep, "keep", 0, "with a FOLDER: keep this many backups, and remove older ones; 0 keeps all")
	cmd.Flags().BoolVar(&b.quick, "quick", false, "check the copy's form and checkpoint only, not each record")
	return cmd
}

// backup is one run of the command.
type backup struct {
	*app
	keep  int
	quick bool
}

func (b backup) run(cmd *cobra.Command, target string) error {
	c, err := b.config(nil)
	if err != nil {
		return err
	}
	isFolder := false
	if stat, err := os.Stat(target); err == nil && stat.IsDir() {
		isFolder = true
	} else if err == nil {
		return fmt.Errorf("backup %s: exists already, and is not replaced", target)
	}
	if b.keep > 0 && !isFolder {
		return usagef(cmd, "--keep goes with a folder, and %s is none", target)
	}
	name := target
	if isFolder {
		name = filepath.Join(target, backupName(time.Now()))
	}
	update, end := b.progress("check", "records")
	take := func(w io.Writer) error { return takeBackup(cmd.Context(), c, w) }
	manifest, size, err := makeArchive(cmd.Context(), name, take, auditOptions{quick: b.quick, progress: update})
	end()
	if err != nil {
		return fmt.Errorf("backup %s: %w", name, err)
	}
	var removed []string
	if isFolder && b.keep > 0 {
		if removed, err = prune(target, b.keep); err != nil {
			return fmt.Errorf("backup %s is made, but old ones stay: %w", name, err)
		}
	}
	return b.print(struct {
		File string `json:"file"`
		Size int64  `json:"size"`
		manifestFile
		Removed []string `json:"removed,omitempty"`
	}{name, size, manifest, removed}, func(w io.Writer) {
		fmt.Fprintf(w, "%s: %d records, %s, checked.\n", name, manifest.Records, config.RoundedSize(size))
		for _, r := range removed {
			fmt.Fprintf(w, "%s: removed, for %d newer ones are there.\n", r, b.keep)
		}
	})
}

// backupName sorts by time.
func backupName(now time.Time) string {
	return "attestd-" + now.UTC().Format("20060102T150405Z") + ".tar.zst"
}

// prune removes all but the newest backups that have names of ours.
func prune(folder string, keep int) (removed []string, err error) {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return nil, err
	}
	ours := regexp.MustCompile(`^attestd-\d{8}T\d{6}Z\.tar\.zst$`)
	var names []string // sorted, as ReadDir sorts
	for _, e := range entries {
		if e.Type().IsRegular() && ours.MatchString(e.Name()) {
			names = append(names, e.Name())
		}
	}
	for _, name := range names[:max(0, len(names)-keep)] {
		path := filepath.Join(folder, name)
		if err := os.Remove(path); err != nil {
			return removed, err
		}
		removed = append(removed, path)
	}
	return removed, nil
}

// makeArchive makes a compressed archive of what take writes: under another name, which becomes the given one when it has
// proved to be good.
func makeArchive(ctx context.Context, name string, take func(io.Writer) error, o auditOptions) (m manifestFile, size int64, err error) {
	dir := filepath.Dir(name)
	f, err := os.CreateTemp(dir, "."+filepath.Base(name)+"-*") // mode 0600
	if err != nil {
		return m, 0, err
	}
	defer func() { _ = os.Remove(f.Name()) }() // in vain once it is renamed
	defer f.Close()
	if err := compress(f, take); err != nil {
		return m, 0, err
	}
	if size, err = f.Seek(0, io.SeekEnd); err != nil {
		return m, 0, err
	}
	if m, err = checkArchive(ctx, f.Name(), dir, o); err != nil {
		return m, 0, fmt.Errorf("the copy is not good: %w", err)
	}
	if err := os.Link(f.Name(), name); err != nil { // unlike a rename, it replaces nothing
		return m, 0, err
	}
	return m, size, syncFolder(dir)
}

// compress writes what produce writes to f, and syncs it.
func compress(f *os.File, produce func(io.Writer) error) error {
	z, err := zstd.NewWriter(f, zstd.WithEncoderConcurrency(1), zstd.WithEncoderCRC(true))
	if err != nil {
		return err
	}
	if err := produce(z); err != nil {
		return errors.Join(err, z.Close())
	}
	if err := z.Close(); err != nil {
		return err
	}
	return f.Sync()
}

// takeBackup writes the archive: the daemon's while it runs, else one of the files.
func takeBackup(ctx context.Context, c *config.Config, w io.Writer) error {
	daemon := client.NewAdmin(c.Admin.Socket)
	err := daemon.Backup(ctx, w)
	if !errors.Is(err, client.ErrNotRunning) {
		return errors.Join(err, daemon.Close())
	}
	store, _, err := openStoreReadOnly(c.DataDir)
	if errors.Is(err, bolt.ErrInUse) {
		return fmt.Errorf("%w, and it does not answer on the admin socket %s", err, c.Admin.Socket)
	}
	if err != nil {
		return err
	}
	return errors.Join(writeArchive(w, store, filepath.Join(c.DataDir, logKeyFile), version(), time.Now()), store.Close())
}

// openStoreReadOnly opens the files in a folder, which must be there.
func openStoreReadOnly(dir string) (*bolt.Store, appliance.LogKey, error) {
	key, err := readLogKey(dir)
	if err != nil {
		return nil, key, err
	}
	store, err := bolt.Open(filepath.Join(dir, storeFile), bolt.Options{Verifier: key.Verifier, ReadOnly: true})
	return store, key, err
}

// readLogKey reads the key that signs the checkpoints of the journal in a folder.
func readLogKey(dir string) (appliance.LogKey, error) {
	path := filepath.Join(dir, logKeyFile)
	secret, err := os.ReadFile(path)
	if err != nil {
		return appliance.LogKey{}, err
	}
	key, err := appliance.ParseLogKey(string(secret))
	if err != nil {
		err = fmt.Errorf("%s: %w", path, err)
	}
	return key, err
}

// head is the state of a journal.
type head struct {
	tree       tlog.Tree
	checkpoint []byte // signed, of that tree
}

// readHead opens the files in a folder and reads the journal's state.
func readHead(ctx context.Context, dir string) (h head, err error) {
	store, key, err := openStoreReadOnly(dir)
	if err != nil {
		return h, err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	if h.checkpoint, err = store.Journal().Checkpoint(ctx); err != nil {
		return h, err
	}
	h.tree, err = appliance.OpenCheckpoint(h.checkpoint, key.Verifier)
	return h, err
}

// checkArchive unpacks an archive beside itself and audits what was in it.
func checkArchive(ctx context.Context, name, dir string, o auditOptions) (m manifestFile, err error) {
	scratch, err := os.MkdirTemp(dir, ".attestd-check-*")
	if err != nil {
		return m, err
	}
	defer func() { _ = os.RemoveAll(scratch) }()
	if m, err = readArchive(name, scratch); err != nil {
		return m, err
	}
	_, err = auditFolder(ctx, scratch, m, o)
	return m, err
}

// auditOptions say how an archive is audited.
type auditOptions struct {
	quick    bool                    // the form and the checkpoint only, not each record
	earlier  []byte                  // a checkpoint: report whether the journal still begins with its records
	progress func(done, total int64) // of the records; may be nil
}

// auditFolder proves that the files which an archive held are the journal that its manifest tells.
func auditFolder(ctx context.Context, dir string, m manifestFile, o auditOptions) (report appliance.AuditReport, err error) {
	store, _, err := openStoreReadOnly(dir)
	if err != nil {
		return report, err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	checkpoint, err := store.Journal().Checkpoint(ctx)
	if err != nil {
		return report, err
	}
	if string(checkpoint) != m.Checkpoint {
		return report, errors.New("its journal is not the one that its manifest tells")
	}
	if o.quick {
		return report, nil
	}
	report, err = store.Journal().Verify(ctx, appliance.VerifyOptions{Earlier: o.earlier, Progress: o.progress})
	if err == nil && !report.OK() && o.earlier == nil {
		err = fmt.Errorf("its journal is damaged: %s", report.Damages[0])
	}
	return report, err
}

// manifestFile is manifest.json, the first file of an archive.
type manifestFile struct {
	Format     int       `json:"format"`  // 1
	Attestd    string    `json:"attestd"` // the version that wrote it
	Time       time.Time `json:"time"`
	Records    int64     `json:"records"`
	RootHash   string    `json:"rootHash"`   // of the tree of these records, hex
	Checkpoint string    `json:"checkpoint"` // signed, of the same tree (C2SP tlog-checkpoint)
}

const (
	archiveFormat = 1
	manifestName  = "manifest.json"
	maxManifest   = 64 << 10
)

// snapshotter is a store that can be copied while it is in use.
type snapshotter interface {
	// SnapshotTo calls begin with the size of the copy and the checkpoint of its journal, and writes the copy to what begin
	// returns.
	SnapshotTo(begin func(size int64, checkpoint []byte) (io.Writer, error)) error
}

// writeArchive writes keys and journal as a tar archive (POSIX.1-2001): manifest.json, log.key, attestd.db.
func writeArchive(w io.Writer, from snapshotter, logKeyPath, version string, now time.Time) error {
	secret, err := os.ReadFile(logKeyPath)
	if err != nil {
		return fmt.Errorf("log key: %w", err)
	}
	key, err := appliance.ParseLogKey(string(secret))
	if err != nil {
		return fmt.Errorf("%s: %w", logKeyPath, err)
	}
	archive := tar.NewWriter(w)
	begin := func(name string, size int64) error {
		return archive.WriteHeader(&tar.Header{Name: name, Mode: 0o600, Size: size, ModTime: now.UTC().Truncate(time.Second), Format: tar.FormatPAX})
	}
	put := func(name string, content []byte) error {
		if err := begin(name, int64(len(content))); err != nil {
			return err
		}
		_, err := archive.Write(content)
		return err
	}
	err = from.SnapshotTo(func(size int64, checkpoint []byte) (io.Writer, error) {
		tree, err := appliance.OpenCheckpoint(checkpoint, key.Verifier)
		if err != nil {
			return nil, err
		}
		manifest, err := json.MarshalIndent(manifestFile{
			Format: archiveFormat, Attestd: version, Time: now.UTC().Truncate(time.Second),
			Records: tree.N, RootHash: hex.EncodeToString(tree.Hash[:]), Checkpoint: string(checkpoint),
		}, "", "  ")
		if err != nil {
			return nil, err
		}
		return archive, errors.Join(put(manifestName, append(manifest, '\n')), put(logKeyFile, secret), begin(storeFile, size))
	})
	if err != nil {
		return err
	}
	return archive.Close()
}

// readArchive unpacks an archive into a folder: log.key and attestd.db, and nothing else whatever it holds.
func readArchive(name, dir string) (m manifestFile, err error) {
	f, err := os.Open(name)
	if err != nil {
		return m, err
	}
	defer f.Close()
	z, err := zstd.NewReader(f, zstd.WithDecoderConcurrency(1))
	if err != nil {
		return m, err
	}
	defer z.Close()
	archive := tar.NewReader(z)
	for _, want := range []string{manifestName, logKeyFile, storeFile} {
		header, err := archive.Next()
		if err != nil {
			return m, notOurs(err)
		}
		if header.Name != want || header.Typeflag != tar.TypeReg {
			return m, notOurs(fmt.Errorf("%q stands where %s should", header.Name, want))
		}
		if want == manifestName {
			m, err = readManifest(archive)
		} else {
			err = unpack(archive, filepath.Join(dir, want))
		}
		if err != nil {
			return m, notOurs(err)
		}
	}
	// To the end: there are the checksums, and what broke off has none.
	if _, err := archive.Next(); !errors.Is(err, io.EOF) {
		return m, notOurs(fmt.Errorf("it does not end after %s: %w", storeFile, err))
	}
	if _, err := io.Copy(io.Discard, z); err != nil {
		return m, notOurs(err)
	}
	return m, nil
}

func notOurs(err error) error {
	return fmt.Errorf("not a whole backup made by attestd: %w", err)
}

func readManifest(r io.Reader) (m manifestFile, err error) {
	text, err := io.ReadAll(io.LimitReader(r, maxManifest+1))
	if err == nil && len(text) > maxManifest {
		err = errors.New("is too large")
	}
	if err != nil {
		return m, err
	}
	if err := json.Unmarshal(text, &m); err != nil {
		return m, fmt.Errorf("%s: %w", manifestName, err)
	}
	if m.Format != archiveFormat {
		return m, fmt.Errorf("it has format %d, this attestd reads %d", m.Format, archiveFormat)
	}
	return m, nil
}

func unpack(r io.Reader, path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, r)
	return errors.Join(err, f.Sync(), f.Close())
}
