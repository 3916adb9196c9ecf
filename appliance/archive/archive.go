// Package archive makes and restores backups of the API keys and the journal. A backup is a tar archive (POSIX.1-2001),
// compressed by zstd (RFC 8878). It holds the log key encrypted by age (log.key.age, optional), manifest.json and
// attestd.db, in this order.
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
	"golang.org/x/mod/sumdb/note"

	"github.com/attestd/attestd/appliance/journal"
)

// Files in data_dir.
const (
	StoreFile  = "attestd.db"
	LogKeyFile = "log.key"
)

// Manifest is the content of manifest.json.
type Manifest struct {
	Format      int       `json:"format"`  // 2
	Attestd     string    `json:"attestd"` // the version that wrote it
	Time        time.Time `json:"time"`
	Records     int64     `json:"records"`
	RootHash    string    `json:"rootHash"`    // of the tree of these records, hex
	Checkpoint  string    `json:"checkpoint"`  // signed, of the same tree (C2SP tlog-checkpoint)
	VerifierKey string    `json:"verifierKey"` // of the log key that signed it (C2SP signed-note)
}

// logKey returns the public half of the log key.
func (m Manifest) logKey() (journal.LogKey, error) { return publicKey(m.VerifierKey) }

func publicKey(verifierKey string) (journal.LogKey, error) {
	verifier, err := note.NewVerifier(verifierKey)
	if err != nil {
		return journal.LogKey{}, fmt.Errorf("verifier key %q: %w", verifierKey, err)
	}
	return journal.LogKey{Verifier: verifier, VerifierText: verifierKey}, nil
}

const (
	archiveFormat = 2
	manifestName  = "manifest.json"
	maxManifest   = 64 << 10
)

// Snapshotter is a store that can be copied while it is in use.
type Snapshotter interface {
	// SnapshotTo calls begin with the size of the copy and the checkpoint of its journal. It writes the copy to the
	// writer that begin returns.
	SnapshotTo(begin func(size int64, checkpoint []byte) (io.Writer, error)) error
}

// Write writes manifest.json and attestd.db as a tar archive (POSIX.1-2001). It uses the public half of key only; Make
// adds the encrypted log key.
func Write(w io.Writer, from Snapshotter, key journal.LogKey, version string, now time.Time) error {
	archive := tar.NewWriter(w)
	err := from.SnapshotTo(func(size int64, checkpoint []byte) (io.Writer, error) {
		tree, err := journal.OpenCheckpoint(checkpoint, key.Verifier)
		if err != nil {
			return nil, err
		}
		manifest, err := json.MarshalIndent(Manifest{
			Format: archiveFormat, Attestd: version, Time: now.UTC().Truncate(time.Second),
			VerifierKey: key.VerifierText,
			Records:     tree.N, RootHash: hex.EncodeToString(tree.Hash[:]), Checkpoint: string(checkpoint),
		}, "", "  ")
		if err != nil {
			return nil, err
		}
		return archive,
			errors.Join(put(archive, manifestName, append(manifest, '\n'), now), begin(archive, StoreFile, size, now))
	})
	if err != nil {
		return err
	}
	return archive.Close()
}

// begin writes the header of a file.
func begin(archive *tar.Writer, name string, size int64, now time.Time) error {
	return archive.WriteHeader(&tar.Header{Name: name, Mode: 0o600, Size: size,
		ModTime: now.UTC().Truncate(time.Second), Format: tar.FormatPAX})
}

func put(archive *tar.Writer, name string, content []byte, now time.Time) error {
	if err := begin(archive, name, int64(len(content)), now); err != nil {
		return err
	}
	_, err := archive.Write(content)
	return err
}

// Read unpacks attestd.db and, if present, log.key.age into a folder. It ignores everything else in the archive.
func Read(f io.Reader, dir string) (m Manifest, err error) {
	z, err := zstd.NewReader(f, zstd.WithDecoderConcurrency(1))
	if err != nil {
		return m, err
	}
	defer z.Close()
	archive := tar.NewReader(z)
	header, err := archive.Next()
	if err == nil && header.Name == sealedLogKey && header.Typeflag == tar.TypeReg {
		if header.Size > maxSealed {
			return m, notOurs(fmt.Errorf("%s is too large", sealedLogKey))
		}
		if err := unpack(archive, filepath.Join(dir, sealedLogKey)); err != nil {
			return m, notOurs(err)
		}
		header, err = archive.Next()
	}
	for _, want := range []string{manifestName, StoreFile} {
		if err != nil {
			return m, notOurs(err)
		}
		if header.Name != want || header.Typeflag != tar.TypeReg {
			return m, notOurs(fmt.Errorf("it has %q in place of %s", header.Name, want))
		}
		if want == manifestName {
			m, err = readManifest(archive)
		} else {
			err = unpack(archive, filepath.Join(dir, want))
		}
		if err != nil {
			return m, notOurs(err)
		}
		header, err = archive.Next()
	}
	// Read to the end: the checksums are there, and a truncated archive lacks them.
	if !errors.Is(err, io.EOF) {
		return m, notOurs(fmt.Errorf("the archive does not end after %s: %w", StoreFile, err))
	}
	if _, err := io.Copy(io.Discard, z); err != nil {
		return m, notOurs(err)
	}
	return m, nil
}

func notOurs(err error) error {
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		err = errors.New("the file is truncated")
	case errors.Is(err, zstd.ErrMagicMismatch):
		err = errors.New("the file is not zstd-compressed")
	}
	return fmt.Errorf("not a complete backup made by attestd: %w", err)
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
		return m, fmt.Errorf("the backup has format %d, this attestd reads format %d", m.Format, archiveFormat)
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
