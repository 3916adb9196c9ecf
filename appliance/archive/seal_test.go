package archive_test

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"filippo.io/age"
	"github.com/klauspost/compress/zstd"

	"github.com/attestd/attestd/appliance/archive"
	"github.com/attestd/attestd/appliance/audit"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/store/bolt"
	"github.com/attestd/attestd/store/storetest"
)

// sealing is an appliance's folder, of which backups are made.
type sealing struct {
	*testing.T
	dir, secret string
	key         journal.LogKey
}

func newSealing(t *testing.T) sealing {
	t.Helper()
	key, secret, err := journal.NewLogKey("example.com/sealed")
	s := sealing{t, t.TempDir(), secret, key}
	s.must(err)
	s.must(os.WriteFile(filepath.Join(s.dir, archive.LogKeyFile), []byte(secret+"\n"), 0o600))
	store := s.open(s.dir, key)
	for range 3 {
		_, _, err := store.Journal().Append(t.Context(), storetest.Record(t, "key"))
		s.must(err)
	}
	s.must(store.Close())
	return s
}

func (s sealing) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

func (s sealing) open(dir string, key journal.LogKey) *bolt.Store {
	s.Helper()
	store, err := bolt.Open(filepath.Join(dir, archive.StoreFile),
		bolt.Options{Signer: key.Signer, Verifier: key.Verifier})
	s.must(err)
	return store
}

func (s sealing) backup(to age.Recipient) string {
	s.Helper()
	store := s.open(s.dir, s.key)
	name := filepath.Join(s.TempDir(), "backup.tar.zst")
	take := func(w io.Writer) error { return archive.Write(w, store, s.key, "test", time.Now()) }
	_, _, err := archive.Make(s.Context(), name, take, archive.Sealing{Dir: s.dir, To: to}, archive.AuditOptions{})
	s.must(errors.Join(err, store.Close()))
	return name
}

// restore puts a backup into a folder where nothing is.
func (s sealing) restore(name string, o archive.RestoreOptions) (dir string, done archive.Restored, err error) {
	s.Helper()
	dir = s.TempDir()
	f, err := os.Open(name)
	s.must(err)
	defer f.Close()
	done, err = archive.Restore(s.Context(), f, dir, o)
	return dir, done, err
}

func (s sealing) published() []byte {
	s.Helper()
	head, err := archive.ReadHead(s.Context(), s.dir)
	s.must(err)
	return head.Checkpoint
}

func unpacked(t *testing.T, name string) []byte {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := zstd.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	content, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// A thief of a backup does not find the log key: it is encrypted, or not there.
func TestABackupHasTheLogKeyEncryptedOrNotAtAll(t *testing.T) {
	t.Parallel()
	s := newSealing(t)
	own, err := age.GenerateX25519Identity()
	s.must(err)
	other, err := age.GenerateX25519Identity()
	s.must(err)
	to, err := archive.ParseRecipient(own.Recipient().String())
	s.must(err)
	sealed, bare := s.backup(to), s.backup(nil)
	seed := strings.SplitN(s.secret, "+", 5)[4] // base64, which may have pluses itself
	for _, name := range []string{sealed, bare} {
		content := unpacked(t, name)
		if bytes.Contains(content, []byte(seed)) || bytes.Contains(content, []byte("PRIVATE+KEY")) {
			t.Errorf("%s has the log key in plain", name)
		}
		if has := bytes.Contains(content, []byte("age-encryption.org")); has != (name == sealed) {
			t.Errorf("an encrypted key is in the backup: %v", has)
		}
	}
	if _, _, err := s.restore(sealed, archive.RestoreOptions{}); !errors.Is(err, archive.ErrSealed) {
		t.Errorf("without an identity: %v", err)
	}
	if _, _, err := s.restore(sealed, archive.RestoreOptions{Identities: []age.Identity{other}}); err == nil ||
		!strings.Contains(err.Error(), "encrypted for another identity") {
		t.Errorf("with another identity: %v", err)
	}
	dir, done, err := s.restore(sealed,
		archive.RestoreOptions{Identities: []age.Identity{own}, Published: s.published()})
	s.must(err)
	if key, err := archive.ReadLogKey(dir); err != nil || key.VerifierText != s.key.VerifierText || done.Log != nil {
		t.Errorf("with the identity the log is %+v, the key %q: %v", done.Log, key.VerifierText, err)
	}
}

// A backup without its log key goes on as another log, of a key that is made for it.
func TestABackupWithoutItsLogKeyGoesOnAsAnotherLog(t *testing.T) {
	t.Parallel()
	s := newSealing(t)
	own, err := age.GenerateX25519Identity()
	s.must(err)
	for name, each := range map[string]struct {
		backup  string
		options archive.RestoreOptions
	}{
		"which was left out":    {s.backup(nil), archive.RestoreOptions{}},
		"and its checkpoint":    {s.backup(nil), archive.RestoreOptions{Published: s.published()}},
		"which nobody decrypts": {s.backup(own.Recipient()), archive.RestoreOptions{NewLogKey: true}},
	} {
		t.Run(name, func(t *testing.T) {
			dir, done, err := s.restore(each.backup, each.options)
			if err != nil {
				t.Fatal(err)
			}
			key, err := archive.ReadLogKey(dir)
			if err != nil || done.Log == nil || done.Log.VerifierKey != key.VerifierText ||
				key.VerifierText == s.key.VerifierText {
				t.Fatalf("the log is %+v, its key %q: %v", done.Log, key.VerifierText, err)
			}
			checkNew(t, dir, s.key, key)
		})
	}
}

// checkNew checks that the journal in a folder is of the new key's log, and that nobody finds that key from the old
// one.
func checkNew(t *testing.T, dir string, old, next journal.LogKey) {
	t.Helper()
	_, events, err := bolt.Beginning(filepath.Join(dir, archive.StoreFile))
	if err != nil || len(events) != 1 {
		t.Fatalf("%d events: %v", len(events), err)
	}
	if c, _ := events[0].Continuation(); c.NewKey != next.VerifierText || c.Log != old.VerifierText {
		t.Errorf("the first leaf names %+v", c)
	}
	if old.Signer != nil {
		if _, _, err := old.Follow(events); !errors.Is(err, journal.ErrNewLogKey) {
			t.Errorf("the old key leads to the new one: %v", err)
		}
		derived := events[0]
		derived.Details = map[string]string{}
		for name, value := range events[0].Details {
			if name != "newKey" {
				derived.Details[name] = value
			}
		}
		if key, _, err := old.Continue(derived); err != nil || key.VerifierText == next.VerifierText {
			t.Errorf("the new key follows from the old one: %v", err)
		}
	}
	store, err := bolt.Open(filepath.Join(dir, archive.StoreFile),
		bolt.Options{Signer: next.Signer, Verifier: next.Verifier})
	if err != nil {
		t.Fatal(err)
	}
	report, err := store.Journal().Verify(t.Context(), audit.Options{AnySigner: true})
	if err != nil || !report.OK() || report.Size != 4 {
		t.Errorf("%+v: %v", report, err)
	}
	if err := store.Close(); err != nil {
		t.Error(err)
	}
}

// A thief of the log key cannot sign as the log that goes on with a new one. A kill between journal and log.key does
// not lose that.
func TestANewLogKeyDoesNotFollowFromTheOldOne(t *testing.T) {
	t.Parallel()
	s := newSealing(t)
	c, err := archive.RotateLogKey(t.Context(), s.dir,
		archive.ContinueOptions{Reason: "log.key was stolen", By: "root", Now: time.Now()})
	s.must(err)
	checkNew(t, s.dir, s.key, c.Key)
	if !archive.IsRetired(s.dir, s.key) {
		t.Error("the old key is not retired")
	}
	secret, err := os.ReadFile(filepath.Join(s.dir, archive.LogKeyFile))
	s.must(err)
	s.must(archive.KeepNextKey(s.dir, strings.TrimSpace(string(secret)))) // as a kill leaves it
	s.must(os.WriteFile(filepath.Join(s.dir, archive.LogKeyFile), []byte(s.secret+"\n"), 0o600))
	store, key, err := archive.OpenFollowing(s.dir, s.key, func(key journal.LogKey) (*bolt.Store, error) {
		return bolt.Open(filepath.Join(s.dir, archive.StoreFile),
			bolt.Options{Signer: key.Signer, Verifier: key.Verifier})
	})
	s.must(err)
	s.must(store.Close())
	if now, err := archive.ReadLogKey(s.dir); err != nil || key.VerifierText != c.Key.VerifierText ||
		now.VerifierText != c.Key.VerifierText {
		t.Errorf("log.key is %q: %v", now.VerifierText, err)
	}
	if _, err := os.Stat(filepath.Join(s.dir, archive.LogKeyFile+".next")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the kept key is left: %v", err)
	}
}
