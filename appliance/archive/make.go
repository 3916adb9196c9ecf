package archive

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"filippo.io/age"
	"github.com/klauspost/compress/zstd"

	"github.com/attestd/attestd/appliance/files"
	"github.com/attestd/attestd/appliance/journal"
)

// Name returns the file name of a backup made at a time. Names sort by time.
func Name(now time.Time) string {
	return "attestd-" + now.UTC().Format("20060102T150405Z") + ".tar.zst"
}

// FreeName returns an unused path for a new backup in a folder.
func FreeName(folder string, now time.Time) string {
	for ; ; now = now.Add(time.Second) {
		if path := filepath.Join(folder, Name(now)); !files.Exists(path) {
			return path
		}
	}
}

// Pruned is the result of Prune.
type Pruned struct {
	Removed []string
	Future  []string // kept backups whose names are later than the new one's
}

// Prune removes all but the newest keep backups in the folder of a new backup. A name that is later than the new
// backup's means that a clock was wrong: Prune neither counts nor removes it. Only names in the form of Name count. A
// keep of 0 removes none.
func Prune(made string, keep int) (p Pruned, err error) {
	folder, newest := filepath.Split(made)
	entries, err := os.ReadDir(folder)
	if err != nil {
		return p, err
	}
	ours := regexp.MustCompile(`^attestd-\d{8}T\d{6}Z\.tar\.zst$`)
	var names []string // sorted, as ReadDir sorts
	for _, e := range entries {
		switch {
		case !e.Type().IsRegular() || !ours.MatchString(e.Name()):
		case e.Name() > newest:
			p.Future = append(p.Future, filepath.Join(folder, e.Name()))
		default:
			names = append(names, e.Name())
		}
	}
	if keep == 0 {
		return p, nil
	}
	for _, name := range names[:max(0, len(names)-keep)] {
		path := filepath.Join(folder, name)
		if err := os.Remove(path); err != nil {
			return p, err
		}
		p.Removed = append(p.Removed, path)
	}
	return p, nil
}

// Sealing configures the log key in a backup.
type Sealing struct {
	Dir string        // the folder of log.key
	To  age.Recipient // the recipient of the encrypted key; nil leaves the key out
}

// Make writes a compressed archive of the encrypted log key and of the archive that take writes (see Write). The file
// gets its name after it has passed an audit.
func Make(ctx context.Context, name string, take func(io.Writer) error, s Sealing,
	o AuditOptions) (m Manifest, size int64, err error) {
	dir := filepath.Dir(name)
	f, err := os.CreateTemp(dir, "."+filepath.Base(name)+"-*") // mode 0600
	if err != nil {
		return m, 0, err
	}
	defer func() { _ = os.Remove(f.Name()) }() // fails once the file is renamed
	defer f.Close()
	var key journal.LogKey
	err = compress(f, func(w io.Writer) error {
		if key, err = s.write(w); err != nil {
			return err
		}
		return take(writing{ctx, w})
	})
	if err != nil {
		return m, 0, err
	}
	if size, err = f.Seek(0, io.SeekEnd); err != nil {
		return m, 0, err
	}
	if m, err = check(ctx, f.Name(), dir, o); err != nil {
		return m, 0, fmt.Errorf("the copy is wrong: %w", err)
	}
	if s.To != nil && key.VerifierText != m.VerifierKey {
		return m, 0, fmt.Errorf("%s is the key of %s, but the journal belongs to another log. To use that log's key, "+
			"run: systemctl restart attestd", LogKeyFile, journal.LogName(key.Verifier))
	}
	if err := os.Link(f.Name(), name); err != nil { // unlike a rename, a link replaces nothing
		return m, 0, err
	}
	return m, size, files.SyncFolder(dir)
}

// write writes the encrypted log key, after which the output of Write can follow.
func (s Sealing) write(w io.Writer) (key journal.LogKey, err error) {
	if s.To == nil {
		return key, nil
	}
	sealed, key, err := seal(s.Dir, s.To)
	if err != nil {
		return key, err
	}
	archive := tar.NewWriter(w)
	// not closed: more files follow
	return key, errors.Join(put(archive, sealedLogKey, sealed, time.Now()), archive.Flush())
}

// compress compresses the output of produce into f and syncs it.
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
