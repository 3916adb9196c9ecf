package daemon

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/attestd/attestd/api/wire"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/archive"
	"github.com/attestd/attestd/appliance/audit"
	"github.com/attestd/attestd/appliance/config"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/appliance/stop"
	"github.com/attestd/attestd/store/bolt"
	"github.com/attestd/attestd/store/highwater"
	"github.com/attestd/attestd/store/postgres"
)

// databaseStartTimeout is the deadline of the queries of a start, which are needed only without a log key.
const databaseStartTimeout = 10 * time.Second

// CheckStore returns an error if the client of a database refuses store.url.
func CheckStore(c *config.Config) error {
	if c.Store.URL == "" || !config.IsDatabaseURL(string(c.Store.URL)) { // config reports that
		return nil
	}
	if err := postgres.Check(string(c.Store.URL)); err != nil {
		return fmt.Errorf("store.url: %w", err)
	}
	return nil
}

// versionsFile is the name in data_dir of postgres.Options.Versions.
const versionsFile = "database-versions.json"

// countsFile is the name in data_dir of postgres.Options.Counts.
const countsFile = "database-counts.json"

// MemberName returns the name of this appliance in its cluster.
func MemberName(c *config.Config) (string, error) {
	if c.Cluster.Name != "" {
		return c.Cluster.Name, nil
	}
	host, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("cluster.name is not set and the host name is unknown; set cluster.name: %w", err)
	}
	return host, nil
}

func openDatabase(c *config.Config, o StoreOptions, log *LogHSM) (*Store, error) {
	key, err := sharedLogKey(c, log)
	if err == nil {
		err = log.checkLogKey(key)
	}
	if err != nil {
		return nil, err
	}
	key = key.SignedBy(log.Signer())
	options := postgres.Options{
		Versions: filepath.Join(c.DataDir, versionsFile),
		Counts:   filepath.Join(c.DataDir, countsFile),
		Signer:   key.Signer, Verifier: key.Verifier, MaxAhead: c.Journal.MaxAhead, Logger: o.Logger,
		Pending: o.Pending,
	}
	if o.Member != nil {
		name, err := MemberName(c)
		if err != nil {
			return nil, err
		}
		options.Member = postgres.Identity{Name: name, Version: o.Member.Version, Settings: o.Member.Settings}
	}
	var guard atomic.Pointer[highwater.Journal] // it is set before the first append
	options.Accept = func(head tlog.Tree) error {
		if g := guard.Load(); g != nil {
			return g.Accept(head)
		}
		return nil
	}
	s, err := databaseStore(c, key, options)
	if err != nil {
		return nil, err
	}
	if s, err = withHighWaterMark(c, s, o); err == nil {
		guard.Store(s.Guard)
	}
	return s, err
}

// readDatabase opens the database to read. If journal.key names another key than log.key, MACs are not verified:
// attestd log rotate-key then continues the log.
func readDatabase(c *config.Config, log *LogHSM) (*Store, error) {
	key, err := archive.ReadLogKey(c.DataDir)
	if err != nil {
		return nil, err
	}
	if log != nil && key.PublicKey().Equal(log.PublicKey()) {
		key = key.SignedBy(log)
	}
	return databaseStore(c, key, postgres.Options{Signer: key.Signer, Verifier: key.Verifier, ReadOnly: true})
}

func databaseStore(c *config.Config, key journal.LogKey, o postgres.Options) (*Store, error) {
	store, err := postgres.Open(string(c.Store.URL), o)
	if err != nil {
		return nil, fmt.Errorf("store.url: %w", err)
	}
	s := &Store{Keys: store.Keys(), Journal: store.Journal(), LogKey: key, Rates: store.Rates(), Database: store,
		storage: store}
	if s.Stop, err = stop.New(store, time.Now); err != nil {
		return nil, errors.Join(err, store.Close())
	}
	s.snapshot = func(ctx context.Context) (archive.Snapshotter, func() error, error) {
		return copyIntoFile(ctx, s, c.DataDir)
	}
	return s, nil
}

// Cluster describes the appliances that share the database.
func (s *Store) Cluster(ctx context.Context) (c wire.Cluster, err error) {
	head, err := s.Database.Head(ctx)
	if err != nil {
		return c, err
	}
	c.Head = wire.ClusterHead{Size: head.Size, RootHash: hex.EncodeToString(head.Root[:])}
	server, err := s.Database.Server(ctx)
	if err != nil {
		return c, err
	}
	c.Database = wire.ClusterDatabase{Primary: server.Address, Synchronous: server.Synchronous()}
	members, err := s.Database.Members(ctx)
	c.Members = make([]wire.Member, len(members))
	for i, m := range members {
		c.Members[i] = wire.Member{
			Name: m.Name, Version: m.Version, Instance: m.Instance, SignerAddress: m.Signer, Scheme: m.Scheme,
			Policy:        m.Policy,
			ScreeningList: m.Screening, Size: m.Size, LastSeen: m.LastSeen,
		}
	}
	c.Differences = differences(members)
	return c, err
}

// compared are the settings that must be the same on each member. The value of a member that does not report one is "".
var compared = []struct {
	of string
	by func(postgres.Member) string
}{
	{wire.DifferentPolicy, func(m postgres.Member) string { return orNone(m.Scheme, m.Policy) }},
	{wire.DifferentScreeningList, func(m postgres.Member) string { return orNone(m.Scheme, m.Screening) }},
	{wire.DifferentScheme, func(m postgres.Member) string { return m.Scheme }},
	{wire.DifferentSigner, func(m postgres.Member) string { return m.Signer }},
}

// orNone returns "none" for a member without such a file. An older attestd reports neither scheme nor files.
func orNone(scheme, hash string) string {
	if hash == "" && scheme != "" {
		return "none"
	}
	return hash
}

// differences compares the running members.
func differences(members []postgres.Member) []wire.Difference {
	found := []wire.Difference{}
	for _, c := range compared {
		names := make(map[string][]string)
		for _, m := range members {
			if value := c.by(m); m.Live && value != "" {
				names[value] = append(names[value], m.Name)
			}
		}
		if len(names) < 2 {
			continue
		}
		d := wire.Difference{Of: c.of}
		for _, value := range slices.Sorted(maps.Keys(names)) {
			d.Values = append(d.Values, wire.DifferentValue{Value: value, Members: names[value]})
		}
		found = append(found, d)
	}
	for _, m := range members {
		if m.Shared {
			found = append(found, wire.Difference{Of: wire.SharedName,
				Values: []wire.DifferentValue{{Value: m.Name, Members: []string{m.Name}}}})
		}
	}
	return found
}

// sharedLogKey reads log.key. It creates log.key only if the database has no journal yet, because a later member with a
// different key could not continue the journal.
func sharedLogKey(c *config.Config, log *LogHSM) (journal.LogKey, error) {
	path := filepath.Join(c.DataDir, archive.LogKeyFile)
	ctx, cancel := context.WithTimeout(context.Background(), databaseStartTimeout)
	defer cancel()
	if err := adoptNextKey(ctx, c); err != nil {
		return journal.LogKey{}, err
	}
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		return openLogKey(c, log)
	}
	other, err := postgres.LogOf(ctx, string(c.Store.URL))
	if err != nil {
		return journal.LogKey{},
			fmt.Errorf(
				"%s is missing, and the database is unavailable, so attestd cannot tell whether the database has a journal already: %w", path, err)
	}
	if other != "" {
		return journal.LogKey{},
			fmt.Errorf(
				"%s is missing, but the database has the journal %s: copy the log key from a member: attestd setup --bundle FILE there, attestd setup --join FILE here", path, other)
	}
	return openLogKey(c, log)
}

// adoptNextKey replaces log.key if 'log rotate-key' was killed after it continued the journal.
func adoptNextKey(ctx context.Context, c *config.Config) error {
	next, secret, err := archive.NextKey(c.DataDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var old journal.LogKey
	if err == nil {
		old, err = archive.ReadLogKey(c.DataDir)
	}
	if err != nil {
		return err
	}
	log, err := postgres.LogOf(ctx, string(c.Store.URL))
	if err != nil || log != journal.LogName(next.Verifier) {
		return err
	}
	return archive.ReplaceLogKey(c.DataDir, old, secret)
}

// copyIntoFile copies journal and API keys into a file store in a folder of dataDir. end removes the folder.
func copyIntoFile(ctx context.Context, s *Store,
	dataDir string) (file archive.Snapshotter, end func() error, err error) {
	dir, err := os.MkdirTemp(dataDir, ".backup-*")
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(dir))
		}
	}()
	j, path := s.Unguarded(), filepath.Join(dir, archive.StoreFile)
	checkpoint, err := j.Checkpoint(ctx)
	if err != nil {
		return nil, nil, err
	}
	keys, err := s.Keys.List(ctx)
	if err == nil {
		err = bolt.Make(ctx, path, s.LogKey.Verifier, checkpoint, keys, func(yield func(journal.Entry) error) error {
			return j.Entries(ctx, 0, yield)
		})
	}
	if err != nil {
		return nil, nil, err
	}
	store, err := bolt.Open(path, bolt.Options{Verifier: s.LogKey.Verifier, ReadOnly: true})
	if err != nil {
		return nil, nil, err
	}
	return store, func() error { return errors.Join(store.Close(), os.RemoveAll(dir)) }, nil
}

// unproven is a journal whose newest signer is not known yet. It refuses all appends until check has succeeded.
type unproven struct {
	audit.Journal
	check  func(ctx context.Context) error
	proven atomic.Bool
}

func (j *unproven) prove(ctx context.Context) error {
	if j.proven.Load() {
		return nil
	}
	err := j.check(ctx)
	j.proven.Store(err == nil)
	return err
}

// Ready implements journal.Journal.
func (j *unproven) Ready(ctx context.Context) error {
	if err := j.prove(ctx); err != nil {
		return err
	}
	return j.Journal.Ready(ctx)
}

// Append implements journal.Journal.
func (j *unproven) Append(ctx context.Context, r appliance.Record,
	conditions ...journal.Condition) (journal.Entry, bool, error) {
	if err := j.prove(ctx); err != nil {
		return journal.Entry{}, false, err
	}
	return j.Journal.Append(ctx, r, conditions...)
}

// AppendEvent implements journal.Journal.
func (j *unproven) AppendEvent(ctx context.Context, e journal.Event) (journal.Entry, error) {
	if err := j.prove(ctx); err != nil {
		return journal.Entry{}, err
	}
	return j.Journal.AppendEvent(ctx, e)
}
