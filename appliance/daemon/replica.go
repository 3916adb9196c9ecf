package daemon

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/attestd/attestd/appliance/config"
	"github.com/attestd/attestd/appliance/files"
	"github.com/attestd/attestd/appliance/service"
	"github.com/attestd/attestd/store/replica"
)

// ReplicaFile is the replica in data_dir. It may be deleted at any time and filled again.
const ReplicaFile = "replica.db"

// roomForJournal is how many times journal.min_free the replica and the watchtower leave free: what others have may be more than the disk
// takes, and must not end attestations.
const roomForJournal = 4

// ReplicaPath is the file of the replica.
func ReplicaPath(c *config.Config) string { return filepath.Join(c.DataDir, ReplicaFile) }

func replicaOptions(c *config.Config) replica.Options {
	return replica.Options{ServeUnverified: c.GraphQL.ServeUnverified, MinFree: roomForJournal * int64(c.Journal.MinFree)}
}

// KeepReplica is OpenReplica for the daemon, which signs whatever has become of its replica.
func KeepReplica(c *config.Config, log *slog.Logger) *replica.Kept {
	return replica.Keep(ReplicaPath(c), replica.KeepOptions{
		Options: replicaOptions(c), Log: log,
		Opened: func() error { return files.HandOver(c.DataDir, ReplicaFile) },
	})
}

// OpenReplica makes the file where there is none, for the owner of data_dir: what root made for itself, the daemon could
// not open.
func OpenReplica(c *config.Config) (*replica.Store, error) {
	if err := os.MkdirAll(c.DataDir, 0o700); err != nil {
		return nil, fmt.Errorf("data_dir: %w", err)
	}
	owner, err := service.UserOf(c.DataDir)
	if err != nil {
		return nil, err
	}
	var data *replica.Store
	err = owner.Do(func() error {
		data, err = replica.Open(ReplicaPath(c), replicaOptions(c))
		return err
	})
	if errors.Is(err, replica.ErrDamaged) || errors.Is(err, replica.ErrSchema) {
		return nil, fmt.Errorf("%w; start attestd, which sets it aside and begins an empty one", err)
	}
	if err != nil {
		return nil, err
	}
	if err := files.HandOver(c.DataDir, ReplicaFile); err != nil {
		return nil, errors.Join(err, data.Close())
	}
	return data, nil
}
