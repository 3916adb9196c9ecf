// Package archive makes backups of the API keys and the journal, and puts them in place. A backup is a tar archive (POSIX.1-2001)
// compressed by zstd (RFC 8878): manifest.json, log.key, attestd.db.
package archive

import (
	"archive/tar"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/attestd/attestd/appliance"
)

// The files in data_dir.
const (
	StoreFile  = "attestd.db"
	LogKeyFile = "log.key"
)

// Manifest is manifest.json, the first file of an archive.
type Manifest struct {
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

// Snapshotter is a store that can be copied while it is in use.
type Snapshotter interface {
	// SnapshotTo calls begin with the size of the copy and the checkpoint of its journal, and writes the copy to what begin
	// returns.
	SnapshotTo(begin func(size int64, checkpoint []byte) (io.Writer, error)) error
}

// Write writes keys and journal as a tar archive (POSIX.1-2001): manifest.json, log.key, attestd.db.
func Write(w io.Writer, from Snapshotter, logKeyPath, version string, now time.Time) error {
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
		manifest, err := json.MarshalIndent(Manifest{
			Format: archiveFormat, Attestd: version, Time: now.UTC().Truncate(time.Second),
			Records: tree.N, RootHash: hex.EncodeToString(tree.Hash[:]), Checkpoint: string(checkpoint),
		}, "", "  ")
		if err != nil {
			return nil, err
		}
		return archive, errors.Join(put(manifestName, append(manifest, '\n')), put(LogKeyFile, secret), begin(StoreFile, size))
	})
	if err != nil {
		return err
	}
	return archive.Close()
}

// Read unpacks an archive into a folder: log.key and attestd.db, and nothing else whatever it holds.
func Read(f io.Reader, dir string) (m Manifest, err error) {
	z, err := zstd.NewReader(f, zstd.WithDecoderConcurrency(1))
	if err != nil {
		return m, err
	}
	defer z.Close()
	archive := tar.NewReader(z)
	for _, want := range []string{manifestName, LogKeyFile, StoreFile} {
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
		return m, notOurs(fmt.Errorf("it does not end after %s: %w", StoreFile, err))
	}
	if _, err := io.Copy(io.Discard, z); err != nil {
		return m, notOurs(err)
	}
	return m, nil
}

func notOurs(err error) error {
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		err = errors.New("it ends too early")
	case errors.Is(err, zstd.ErrMagicMismatch):
		err = errors.New("it is not compressed by zstd")
	}
	return fmt.Errorf("not a whole backup made by attestd: %w", err)
}

func readManifest(r io.Reader) (m Manifest, err error) {
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
