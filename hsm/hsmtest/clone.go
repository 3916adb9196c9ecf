package hsmtest

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/attestd/attestd/hsm/softhsm"
)

// Clone makes another token with the same key, as an HSM's tools do by cloning or key wrapping. It copies the files of
// a token that no process has open.
func (t *Token) Clone(tb testing.TB) *Token {
	tb.Helper()
	place, err := process.enter()
	if err != nil {
		tb.Fatalf("hsmtest: %v", err)
	}
	tb.Cleanup(func() { process.leave(place) })
	clone, err := place.copyToken(t)
	if err != nil {
		tb.Fatalf("hsmtest: %v", err)
	}
	return clone
}

func (p *place) copyToken(from *Token) (*Token, error) {
	folder, err := softhsm.Create(p.dir)
	if err != nil {
		return nil, err
	}
	if err := copyFiles(filepath.Dir(from.PINFile), p.dir); err != nil {
		return nil, err
	}
	u := from.URI
	u.PINSource = "file:" + folder.PIN
	if u.ModulePath, err = p.copyOfModule(folder.Module); err != nil {
		return nil, err
	}
	return &Token{URI: u, Key: from.Key, PINFile: folder.PIN, SOPIN: from.SOPIN, Env: p.env(folder.Conf)}, nil
}

// Become replaces this token's key and PIN with the other token's.
func (t *Token) Become(tb testing.TB, other *Token) {
	tb.Helper()
	if err := copyFiles(filepath.Dir(other.PINFile), filepath.Dir(t.PINFile)); err != nil {
		tb.Fatalf("hsmtest: %v", err)
	}
}

// copyFiles copies a token's files and its PIN, replacing existing ones.
func copyFiles(from, to string) error {
	for _, name := range []string{"tokens", "pin"} {
		if err := os.RemoveAll(filepath.Join(to, name)); err != nil {
			return err
		}
		if err := copyAll(filepath.Join(from, name), filepath.Join(to, name)); err != nil {
			return err
		}
	}
	return nil
}

// copyAll copies a file, or a folder with its contents.
func copyAll(from, to string) error {
	stat, err := os.Stat(from)
	if err != nil {
		return err
	}
	if stat.IsDir() {
		return os.CopyFS(to, os.DirFS(from))
	}
	text, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, text, stat.Mode().Perm())
}
