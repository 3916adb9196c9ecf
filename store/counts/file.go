package counts

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/attestd/attestd/appliance/files"
	"github.com/attestd/attestd/appliance/journal"
)

const (
	storeEvery   = 10_000          // entries between two writes of the file: a restart counts at most these again
	storedPerKey = 16              // stored counts of an API key, for its newest entries
	closeTimeout = 2 * time.Second // for the head, when the store is closed
)

// File stores counts so that they survive a restart. It has a MAC, and the root of the tree with the counted entries. If
// the file was changed or belongs to another journal, it is ignored and the entries are counted again.
type File struct {
	Path   string
	Log    string // journal.LogName of the log
	Secret []byte // of the MAC, such as the result of journal.StoreSecret
	// Head returns the journal's tree, and the index below which the entries of that tree are.
	Head func(ctx context.Context) (tree tlog.Tree, below int64, err error)
}

// stored is the content of the file.
type stored struct {
	Log    string           `json:"log"`
	Size   int64            `json:"size"`
	Root   journal.HexBytes `json:"rootHash"`
	Counts []storedCount    `json:"counts"`
}

type storedCount struct {
	KeyID string `json:"keyId"`
	Since int64  `json:"since"` // Unix time in nanoseconds
	Count
}

// sealed is the file.
type sealed struct {
	Content json.RawMessage  `json:"content"` // stored
	MAC     journal.HexBytes `json:"mac"`
}

func (f File) mac(content []byte) []byte {
	mac := hmac.New(sha256.New, f.Secret)
	_, _ = mac.Write([]byte("attestd counts v1\n")) // a hash never fails
	_, _ = mac.Write(content)
	return mac.Sum(nil)
}

// read returns nothing if the file is missing, or is not one that write wrote for this log.
func (f File) read() (s stored, err error) {
	text, err := os.ReadFile(f.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return stored{}, nil
	}
	if err != nil {
		return stored{}, err
	}
	var file sealed
	if json.Unmarshal(text, &file) != nil || !hmac.Equal(file.MAC, f.mac(file.Content)) ||
		json.Unmarshal(file.Content, &s) != nil || s.Log != f.Log || len(s.Root) != tlog.HashSize {
		return stored{}, nil //nolint:nilerr // the counts are made anew then
	}
	return s, nil
}

func (f File) write(s stored) error {
	content, err := json.Marshal(s)
	if err != nil {
		return err
	}
	text, err := json.Marshal(sealed{content, f.mac(content)})
	if err == nil {
		err = files.Write(f.Path, text, 0o600)
	}
	if err == nil {
		err = files.HandOver(filepath.Dir(f.Path), filepath.Base(f.Path))
	}
	return err
}

// Load adds the counts of a file if the journal begins with their tree, and stores the counts in it from now on.
// begins reports whether the journal begins with a tree. After the first success, Load does nothing.
func (c *Counts) Load(file func() (File, error), begins func(tlog.Tree) (bool, error)) error {
	c.loading.Lock()
	defer c.loading.Unlock()
	if c.isLoaded() {
		return nil
	}
	f, err := file()
	if err != nil {
		return err
	}
	s, err := f.read()
	if err != nil {
		return err
	}
	if len(s.Counts) > 0 {
		good, err := begins(tlog.Tree{N: s.Size, Hash: tlog.Hash(s.Root)})
		if err != nil {
			return err
		}
		if !good {
			s.Counts = nil
		}
	}
	for _, one := range s.Counts {
		c.Keep(Name{one.KeyID, one.Since}, one.Count)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.file, c.stored = &f, 0
	for _, one := range s.Counts {
		c.stored = max(c.stored, one.Below)
	}
	return nil
}

func (c *Counts) isLoaded() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.file != nil
}

// Close stores the counts, unless no file was loaded.
func (c *Counts) Close() error {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.storing.Wait()
	if !c.isLoaded() {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	return c.store(ctx)
}

// storeLater stores the counts in the background if many entries were counted since the last time. The caller must hold
// the lock. A failure costs a longer count after the next restart, so it is not reported.
func (c *Counts) storeLater(below int64) {
	if c.file == nil || c.closed || below-c.stored < storeEvery {
		return
	}
	c.stored = below
	c.storing.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
		defer cancel()
		_ = c.store(ctx)
	})
}

func (c *Counts) store(ctx context.Context) error {
	c.loading.Lock() // one write at a time
	defer c.loading.Unlock()
	f, all := c.newest()
	tree, below, err := f.Head(ctx) // read after the counts, so that it covers their entries
	if err != nil {
		return err
	}
	all = slices.DeleteFunc(all, func(s storedCount) bool { return s.Below > below })
	return f.write(stored{f.Log, tree.N, tree.Hash[:], all})
}

// newest returns the counts to store. It omits the counts of past periods, which have older entries.
func (c *Counts) newest() (f File, all []storedCount) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for name, count := range c.known {
		all = append(all, storedCount{name.KeyID, name.since, count})
	}
	slices.SortFunc(all, func(a, b storedCount) int {
		return cmp.Or(cmp.Compare(b.Below, a.Below), cmp.Compare(b.Since, a.Since), cmp.Compare(a.KeyID, b.KeyID))
	})
	kept := make(map[string]int)
	all = slices.DeleteFunc(all, func(s storedCount) bool {
		kept[s.KeyID]++
		return kept[s.KeyID] > storedPerKey
	})
	return *c.file, all
}

// Begins reports whether a journal's tree of size entries begins with an older tree.
func Begins(ctx context.Context, j journal.Tiles, size int64, older tlog.Tree) (bool, error) {
	if older.N > size {
		return false, nil
	}
	edge, err := journal.NewFrontier(older.N, journal.NewHashes(ctx, j, size))
	return err == nil && edge.Tree() == older, err
}
