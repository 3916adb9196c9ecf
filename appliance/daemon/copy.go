package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/attestd/attestd/appliance/archive"
	"github.com/attestd/attestd/appliance/config"
	"github.com/attestd/attestd/appliance/files"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/appliance/webhooks"
	"github.com/attestd/attestd/store/bolt"
	"github.com/attestd/attestd/store/postgres"
)

// unfinishedCopy is the name of the file with an unfinished copy.
const unfinishedCopy = archive.StoreFile + ".copy"

// BoltDir returns the folder of a store that is named bolt:DATA_DIR.
func BoltDir(ref string) (dir string, isFile bool) { return strings.CutPrefix(ref, "bolt:") }

// Copied is the content of a finished copy.
type Copied struct {
	archive.Copied
	Webhooks int `json:"webhooks"`
}

// CopyStore copies API keys, webhooks and journal from one store into an empty one. Each is bolt:DATA_DIR or a
// database's URL. See archive.Copy.
func CopyStore(ctx context.Context, c *config.Config, from, to string,
	progress func(done, total int64)) (copied Copied, err error) {
	log, err := OpenLogHSM(c, nil, nil)
	if err != nil {
		return copied, err
	}
	defer func() { err = errors.Join(err, log.Close()) }()
	source, err := openSource(ctx, c, from)
	if err != nil {
		return copied, fmt.Errorf("the source: %w", err)
	}
	defer func() { err = errors.Join(err, source.Close()) }()
	source.LogKey = source.LogKey.SignedBy(log.Signer())
	target, end, err := openTarget(at(c, from), to, source.LogKey)
	if err != nil {
		return copied, fmt.Errorf("the target: %w", err)
	}
	defer func() { err = errors.Join(err, end()) }()
	mark := preparedMark(c.DataDir)
	if target.Verified, err = mark.of(ctx, to, source.LogKey, target.CopyTarget); err != nil {
		return copied, err
	}
	if copied.Webhooks, err = copyWebhooks(ctx, at(c, from), source.Database, at(c, to), target); err != nil {
		return copied, err
	}
	if source.Database != nil {
		finish := target.Finish
		target.Finish = func(ctx context.Context, checkpoint []byte) error {
			tree, err := journal.OpenCheckpoint(checkpoint, source.LogKey.Verifier)
			if err == nil {
				err = source.Database.Leave(ctx, tree)
			}
			if err != nil {
				return err
			}
			return finish(ctx, checkpoint)
		}
	}
	copied.Copied, err = archive.Copy(ctx, archive.CopySource{Keys: source.Keys,
		Leaves: archive.LeavesOf(source.Journal), Verifier: source.LogKey.Verifier}, target.CopyTarget, progress)
	if err == nil {
		err = mark.remove()
	}
	return copied, err
}

// copyWebhooks makes the webhooks of the target those of the source, and returns their number. from is nil if the source
// is a file.
func copyWebhooks(ctx context.Context, source *config.Config, from *postgres.Store, target *config.Config,
	to copyTarget) (int, error) {
	var all []webhooks.Stored
	_, err := asOwner(source, func() (_ *Store, err error) {
		all, err = webhooks.Read(ctx, webhooksOf(source, from))
		return nil, err
	})
	if err == nil {
		_, err = asOwner(target, func() (*Store, error) { return nil, webhooks.Replace(ctx, to.webhooks, all) })
	}
	return len(all), err
}

// at returns the configuration of an appliance with another store.
func at(c *config.Config, ref string) *config.Config {
	other := *c
	if dir, isFile := BoltDir(ref); isFile {
		other.DataDir, other.Store.URL = dir, ""
	} else {
		other.Store.URL = config.DatabaseURL(ref)
	}
	return &other
}

// openSource opens a store that is not in use.
func openSource(ctx context.Context, c *config.Config, ref string) (*Store, error) {
	s, err := ReadStore(at(c, ref))
	if errors.Is(err, bolt.ErrInUse) {
		return nil,
			fmt.Errorf(
				"%w: the copy would lack attestations made during copying; stop attestd first: systemctl stop attestd. To copy most of it before: attestd store copy --prepare", err)
	}
	if err != nil {
		return nil, err
	}
	if s.Database != nil {
		if err := refuseLiveMembers(ctx, s.Database); err != nil {
			return nil, errors.Join(err, s.Close())
		}
	}
	return s, nil
}

func refuseLiveMembers(ctx context.Context, database *postgres.Store) error {
	members, err := database.Members(ctx)
	if err != nil {
		return err
	}
	for _, m := range members {
		if m.Live {
			return fmt.Errorf(
				"the appliance %s uses it (seen %s ago), so the copy would lack attestations made during copying; stop attestd on %[1]s first: systemctl stop attestd", m.Name, max(0, time.Since(m.LastSeen)).Round(time.Second))
		}
	}
	return nil
}

// copyTarget is the target of a copy, with its webhooks.
type copyTarget struct {
	archive.CopyTarget
	webhooks webhooks.Store
}

// openTarget opens an empty store, or one with an unfinished copy.
func openTarget(c *config.Config, ref string, key journal.LogKey) (copyTarget, func() error, error) {
	if dir, isFile := BoltDir(ref); isFile {
		return openFileTarget(c, dir, key)
	}
	store, err := postgres.Open(ref, postgres.Options{Signer: key.Signer, Verifier: key.Verifier, Copying: true})
	if err != nil {
		return copyTarget{}, nil, err
	}
	return copyTarget{archive.CopyTarget{
		Keys: store.Keys(), Journal: store.Journal(), Import: store.Import, Finish: store.FinishCopy,
		Tree: func(ctx context.Context) (tlog.Tree, error) {
			head, err := store.Copied(ctx)
			return tlog.Tree{N: head.Size, Hash: head.Root}, err
		},
	}, store.Webhooks()}, store.Close, nil
}

// openFileTarget writes the copy under another name. The finished copy gets the name of the store.
func openFileTarget(c *config.Config, dir string,
	key journal.LogKey) (t copyTarget, end func() error, err error) {
	name, unfinished := filepath.Join(dir, archive.StoreFile), filepath.Join(dir, unfinishedCopy)
	if files.Exists(name) {
		return t, nil, fmt.Errorf("%s exists: the target of a copy must be an empty store", name)
	}
	var store *bolt.Store
	_, err = asOwner(at(c, "bolt:"+dir), func() (*Store, error) {
		if err := bringLogKey(c, dir, key); err != nil {
			return nil, err
		}
		if store, err = bolt.Open(unfinished,
			bolt.Options{Signer: key.Signer, Verifier: key.Verifier, Copying: true}); err != nil {
			return nil, err
		}
		return nil, files.HandOver(dir, unfinishedCopy, archive.LogKeyFile)
	})
	if err != nil {
		if store != nil {
			err = errors.Join(err, store.Close())
		}
		return t, nil, err
	}
	return copyTarget{archive.CopyTarget{
		Keys: store.Keys(), Journal: store.Journal(), Import: store.Import,
		Tree: func(ctx context.Context) (tlog.Tree, error) {
			return archive.TreeOf(ctx, store.Journal(), key.Verifier)
		},
		Finish: func(context.Context, []byte) error {
			if err := errors.Join(store.Close(), os.Link(unfinished, name)); err != nil {
				// unlike a rename, a link replaces nothing
				return err
			}
			return errors.Join(os.Remove(unfinished), files.SyncFolder(dir))
		},
	}, webhooksOf(at(c, "bolt:"+dir), nil)}, store.Close, nil
}

// bringLogKey puts the log key into the folder of a copy, unless it is there.
func bringLogKey(c *config.Config, dir string, key journal.LogKey) error {
	there, err := archive.ReadLogKey(dir)
	if errors.Is(err, os.ErrNotExist) {
		secret, err := os.ReadFile(filepath.Join(c.DataDir, archive.LogKeyFile))
		if err != nil {
			return fmt.Errorf("log key: %w", err)
		}
		if here, err := journal.ParseLogKey(string(secret)); err != nil || here.VerifierText != key.VerifierText {
			return errors.Join(errors.New("log key: the key in data_dir differs from the source's"), err)
		}
		return files.Write(filepath.Join(dir, archive.LogKeyFile), secret, 0o600)
	}
	if err == nil && there.VerifierText != key.VerifierText {
		err = fmt.Errorf("%s belongs to another log than the source", filepath.Join(dir, archive.LogKeyFile))
	}
	return err
}
