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

// ReplicaFile is the name of the replica in data_dir. It may be deleted at any time, and is then filled again.
const ReplicaFile = "replica.db"

// roomForJournal times journal.min_free is the disk space that the replica and the watchtower leave free. An upstream
// or a chain may have more data than the disk can hold, and must not end attestations.
const roomForJournal = 4

// ReplicaPath returns the path of ReplicaFile.
func ReplicaPath(c *config.Config) string { return filepath.Join(c.DataDir, ReplicaFile) }

func replicaOptions(c *config.Config) replica.Options {
	return replica.Options{ServeUnverified: c.GraphQL.ServeUnverified,
		MinFree: roomForJournal * int64(c.Journal.MinFree)}
}

// KeepReplica is OpenReplica for the daemon, which signs even without a usable replica.
func KeepReplica(c *config.Config, log *slog.Logger) *replica.Kept {
	return replica.OpenAndRetry(ReplicaPath(c), replica.KeepOptions{
		Options: replicaOptions(c), Log: log,
		Opened: func() error { return files.HandOver(c.DataDir, ReplicaFile) },
	})
}

// OpenReplica opens the replica, or creates it for the owner of data_dir, because the daemon could not open a file of
// root's.
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
		return nil, fmt.Errorf(
			"%w; start attestd, which sets the file aside and creates an empty replica: systemctl start attestd", err)
	}
	if err != nil {
		return nil, err
	}
	if err := files.HandOver(c.DataDir, ReplicaFile); err != nil {
		return nil, errors.Join(err, data.Close())
	}
	return data, nil
}
