package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/archive"
	"github.com/attestd/attestd/appliance/audit"
	"github.com/attestd/attestd/appliance/config"
	"github.com/attestd/attestd/appliance/files"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/appliance/report"
	"github.com/attestd/attestd/appliance/service"
	"github.com/attestd/attestd/appliance/stop"
	"github.com/attestd/attestd/hsm/worker"
	"github.com/attestd/attestd/store/bolt"
	"github.com/attestd/attestd/store/highwater"
	"github.com/attestd/attestd/store/postgres"
)

// Store holds API keys and journal, in the file in data_dir or in the database that store.url names.
type Store struct {
	Keys    appliance.Keys
	Journal audit.Journal // guarded by Guard, if that is not nil
	Guard   *highwater.Journal
	LogKey  journal.LogKey        // signs the journal's checkpoints
	Rates   appliance.SharedRates // of API keys; nil if the store is a file

	Stop     *stop.Switch    // whether attesting is stopped
	Database *postgres.Store // nil if the store is a file
	hsm      *LogHSM         // has the log key; nil if that is a file
	storage
	// snapshot returns the current store as a file. end releases it.
	snapshot func(ctx context.Context) (file archive.Snapshotter, end func() error, err error)
}

// Unguarded returns the journal without its guard, for content that stays with the operator: a journal that has lost
// records can still be copied.
func (s *Store) Unguarded() audit.Journal {
	if s.Guard == nil {
		return s.Journal
	}
	return s.Guard.Journal
}

// Close brings the high-water mark up to the journal's head and closes the store.
func (s *Store) Close() error {
	var err error
	if s.Guard != nil {
		err = s.Guard.Close()
	}
	return errors.Join(err, s.storage.Close(), s.hsm.Close())
}

// storage is the part of both stores that appliance.Keys and journal.Journal do not have.
type storage interface {
	// Failed receives one error when the store no longer trusts its disk and refuses all further writes. The daemon
	// must then be restarted.
	Failed() <-chan error
	// Responds returns nil once the writer has answered, even if with an error. It returns an error if ctx ends first:
	// then a restart may help.
	Responds(ctx context.Context) error
	// Ahead returns how far the newest record is ahead of the clock, 0 if it is not.
	Ahead() time.Duration
	io.Closer
}

// StoreOptions are the optional parts of a store.
type StoreOptions struct {
	Logger  *slog.Logger   // nil means none
	Pending func() int     // number of signatures under way, which soon become records; nil means none
	Member  *Member        // the daemon as a member of a cluster; nil for a command
	Logins  *worker.Logins // shared with the attestor keys; nil for a command

	// Watch keeps the high-water mark at the journal's head continuously, as a daemon must. Without Watch, the two are
	// compared when a checkpoint is read. Continued is highwater.Options.Continued.
	Watch     bool
	Continued func(next journal.LogKey, secret string)
}

// Member describes a daemon to the other members of a cluster.
type Member struct {
	Version  string
	Settings func() postgres.Settings
}

// OpenStore opens the store and its log key. It creates both if neither exists, but it creates no database. A database
// that does not answer is no error: calls fail until it answers.
func OpenStore(c *config.Config, o StoreOptions) (s *Store, err error) {
	log, err := OpenLogHSM(c, o.Logger, o.Logins)
	if err != nil {
		return nil, err
	}
	s, err = asOwner(c, func() (*Store, error) {
		if c.Store.URL != "" {
			return openDatabase(c, o, log)
		}
		return openFile(c, o, log)
	})
	if err != nil {
		return nil, errors.Join(err, log.Close())
	}
	if s.hsm = log; log != nil {
		s.Journal = signedByHSM{s.Journal, log}
	}
	return s, nil
}

// StoreExists reports whether there is a store. OpenStore would create one.
func StoreExists(c *config.Config) bool {
	return c.Store.URL != "" || files.Exists(filepath.Join(c.DataDir, archive.StoreFile))
}

// ReadStore opens an existing store to read. Its journal is not guarded, so nothing of it may be published.
func ReadStore(c *config.Config) (*Store, error) {
	if c.Store.URL != "" {
		log, err := OpenLogHSM(c, nil, nil) // the key of the MACs in the database is derived from the log key
		if err != nil {
			return nil, err
		}
		s, err := asOwner(c, func() (*Store, error) { return readDatabase(c, log) })
		if err != nil {
			return nil, errors.Join(err, log.Close())
		}
		s.hsm = log
		return s, nil
	}
	store, key, err := archive.OpenStore(c.DataDir)
	if err != nil {
		return nil, err
	}
	return fileStore(store, key), nil
}

// asOwner calls open as the owner of data_dir if the process is root: see service.User.Do.
func asOwner(c *config.Config, open func() (*Store, error)) (s *Store, err error) {
	if err := os.MkdirAll(c.DataDir, 0o700); err != nil {
		return nil, fmt.Errorf("data_dir: %w", err)
	}
	owner, err := service.UserOf(c.DataDir)
	if err != nil {
		return nil, err
	}
	err = owner.Do(func() error {
		s, err = open()
		return err
	})
	return s, err
}

// stopInFile opens the stop state of an appliance whose store is a file.
func stopInFile(c *config.Config) (*stop.Switch, error) {
	path := filepath.Join(c.DataDir, stop.FileName)
	file, err := stop.OpenFile(path)
	if err != nil {
		return nil, fmt.Errorf("cannot read whether attesting is paused or halted: %w", err)
	}
	s, err := stop.New(file, time.Now)
	if err != nil {
		return nil, fmt.Errorf("%s: %w: correct the file, or remove it to attest", path, err)
	}
	return s, nil
}

// ReadStop returns the stop state without a daemon.
func ReadStop(ctx context.Context, c *config.Config) (stop.State, error) {
	if c.Store.URL == "" {
		s, err := stopInFile(c)
		if err != nil {
			return stop.State{}, err
		}
		return s.State(), nil
	}
	store, err := ReadStore(c)
	if err != nil {
		return stop.State{}, err
	}
	defer func() { _ = store.Close() }()
	if _, err := store.Database.Head(ctx); err != nil {
		return stop.State{}, err
	}
	return store.Stop.State(), nil
}

func fileStore(store *bolt.Store, key journal.LogKey) *Store {
	return &Store{
		Keys: store.Keys(), Journal: store.Journal(), LogKey: key, storage: store,
		snapshot: func(context.Context) (archive.Snapshotter, func() error, error) {
			return store, func() error { return nil }, nil
		},
	}
}

// Backup writes an archive with a consistent copy of API keys and journal, without the log key.
func (s *Store) Backup(ctx context.Context, w io.Writer, version string) (err error) {
	file, end, err := s.snapshot(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, end()) }()
	return archive.Write(w, file, s.LogKey, version, time.Now())
}

// Report makes an audit report and signs it with the log key.
//
// Errors: those of report.Make and report.Sign.
func (s *Store) Report(ctx context.Context, o report.Options) (report.Signed, error) {
	r, err := report.Make(ctx, s.Journal, s.LogKey, o)
	if err != nil {
		return report.Signed{}, err
	}
	return report.Sign(r, s.LogKey.Signer)
}

// withHighWaterMark guards the store's journal with the high-water mark in data_dir. On an error it closes the store.
func withHighWaterMark(c *config.Config, s *Store, o StoreOptions) (_ *Store, err error) {
	s.Guard, err = highwater.Open(context.Background(), filepath.Join(c.DataDir, highwater.FileName), s.Journal,
		highwater.Options{
			Key: s.LogKey, Logger: o.Logger, OnDemand: !o.Watch, Shared: s.Database != nil, Continued: o.Continued,
		})
	if err != nil {
		return nil, errors.Join(err, s.storage.Close())
	}
	s.Journal = s.Guard
	return s, nil
}

func openFile(c *config.Config, o StoreOptions, log *LogHSM) (*Store, error) {
	key, err := openLogKey(c, log)
	if err != nil {
		return nil, err
	}
	var guard atomic.Pointer[highwater.Journal] // it is set before the first append
	committed := func(checkpoint []byte) {
		if g := guard.Load(); g != nil {
			g.Committed(checkpoint)
		}
	}
	store, key, err := archive.OpenFollowing(c.DataDir, key, func(key journal.LogKey) (*bolt.Store, error) {
		key = key.SignedBy(log.Signer())
		return bolt.Open(filepath.Join(c.DataDir, archive.StoreFile), bolt.Options{
			Signer: key.Signer, Verifier: key.Verifier, MinFree: int64(c.Journal.MinFree), MaxAhead: c.Journal.MaxAhead,
			Logger: o.Logger, Pending: o.Pending,
			Committed: committed,
		})
	})
	if err != nil {
		return nil, err
	}
	if err := errors.Join(log.checkLogKey(key),
		files.HandOver(c.DataDir, archive.StoreFile, archive.LogKeyFile)); err != nil {
		return nil, errors.Join(err, store.Close())
	}
	s := fileStore(store, key.SignedBy(log.Signer()))
	if s.Stop, err = stopInFile(c); err != nil {
		return nil, errors.Join(err, store.Close())
	}
	if s, err = withHighWaterMark(c, s, o); err == nil && o.Watch {
		guard.Store(s.Guard)
	}
	return s, err
}

// openLogKey reads log.key, or creates it if there is no journal yet. A journal without its key is an error: under a
// new key, its old checkpoints could not be distinguished from forged ones.
func openLogKey(c *config.Config, log *LogHSM) (journal.LogKey, error) {
	path := filepath.Join(c.DataDir, archive.LogKeyFile)
	secret, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return newLogKey(c, path, log)
	}
	if err != nil {
		return journal.LogKey{}, fmt.Errorf("log key: %w", err)
	}
	key, err := journal.ParseLogKey(string(secret))
	if err != nil {
		return journal.LogKey{}, fmt.Errorf("%s: %w", path, err)
	}
	if log == nil && !key.IsFile() {
		return journal.LogKey{}, log.checkLogKey(key)
	}
	return key, nil
}

func newLogKey(c *config.Config, path string, log *LogHSM) (journal.LogKey, error) {
	j := filepath.Join(c.DataDir, archive.StoreFile)
	if _, err := os.Stat(j); err == nil {
		return journal.LogKey{},
			fmt.Errorf("%s is missing, but the journal %s exists: restore the key from a backup: attestd restore FILE",
				path, j)
	}
	origin, err := logOrigin(c)
	if err != nil {
		return journal.LogKey{}, err
	}
	var key journal.LogKey
	var secret string
	if log == nil {
		key, secret, err = journal.NewLogKey(origin)
	} else {
		key, secret, err = journal.PublicLogKey(origin, log.PublicKey())
	}
	if err != nil {
		return journal.LogKey{}, fmt.Errorf("journal.origin: %w", err)
	}
	return key, files.Write(path, []byte(secret+"\n"), 0o600)
}

// logOrigin returns journal.origin, or a name derived from the host name.
func logOrigin(c *config.Config) (string, error) {
	if c.Journal.Origin != "" {
		return c.Journal.Origin, nil
	}
	host, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("journal.origin is not set and the host name is unknown; set journal.origin: %w", err)
	}
	return host + "/attestd", nil
}
