package doctor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/attestd/attestd/api/client"
	"github.com/attestd/attestd/api/wire"
	"github.com/attestd/attestd/appliance/config"
	"github.com/attestd/attestd/appliance/daemon"
	"github.com/attestd/attestd/appliance/files"
	"github.com/attestd/attestd/appliance/index"
	"github.com/attestd/attestd/appliance/text"
	"github.com/attestd/attestd/store/replica"
)

// staleReplica is the age of the newest packet at which doctor warns.
const staleReplica = 24 * time.Hour

func checkReplica(ctx context.Context, p *subject) []Finding {
	if p.config.GraphQL.Source != config.FromReplica {
		return nil
	}
	return append([]Finding{p.judgeReplica(ctx)}, p.setAside()...)
}

// judgeReplica warns at most: attestations do not need a replica.
func (p *subject) judgeReplica(ctx context.Context) Finding {
	path := daemon.ReplicaPath(p.config)
	fill, anew := "attestd replica import FILE fills it", "; then: attestd replica import FILE"
	if p.config.Follows() {
		fill, anew = "attestd replica sync fills it", "; it fills again by itself"
	}
	if stat, err := os.Stat(path); err == nil && !p.running() {
		f, found := p.judge(guarded{what: "replica", path: path, most: 0o600, owned: true, readable: true, state: Warn}, stat)
		if f.State = Warn; found {
			return f
		}
	}
	status, err := p.replicaStatus(ctx)
	switch {
	case p.running() && err != nil:
		return warn("attestd goes on by itself; its log has more: journalctl -u attestd", "reads are refused, attestations go on: %s", err)
	case isUselessReplica(err):
		return warn("systemctl start attestd sets it aside and begins an empty one"+anew, "%s", err)
	case err != nil:
		return warn("run doctor as root, or as the user "+p.service.Name, "%s", err)
	case status.Newest.IsZero():
		return warn(fill, "empty: GraphQL answers with nothing")
	case time.Since(status.Newest) > staleReplica && !p.config.Follows(): // checkFollowing covers replicas that follow
		return warn(fill, "%d transfers, the newest of %s", status.Rows[index.TransferType.Name], text.Age(status.Newest))
	}
	return ok("%d transfers, the newest of %s", status.Rows[index.TransferType.Name], text.Age(status.Newest))
}

// isUselessReplica reports whether the daemon will set the file aside because of that error.
func isUselessReplica(err error) bool {
	return errors.Is(err, replica.ErrDamaged) || errors.Is(err, replica.ErrSchema)
}

// setAside reports replicas that were set aside, until they are removed.
func (p *subject) setAside() []Finding {
	path := daemon.ReplicaPath(p.config)
	found, err := replica.SetAside(path)
	if err != nil || len(found) == 0 {
		return nil // another check reports missing permissions
	}
	last := found[len(found)-1]
	when := ""
	if stat, err := os.Lstat(last); err == nil {
		when = fmt.Sprintf(", last written %s", text.Age(stat.ModTime()))
	}
	remedy := "attestd replica import FILE fills the new one"
	if p.config.Follows() {
		remedy = "it fills again by itself: attestd replica status"
	}
	return []Finding{warn(remedy+"; when nobody wants to look at the old one any more: rm -r "+text.ShellWord(path)+".damaged-*",
		"one was damaged, or of another version, and was set aside: %s%s", last, when)}
}

// replicaStatus asks the daemon, or reads the file. It does not create the file.
func (p *subject) replicaStatus(ctx context.Context) (wire.ReplicaStatus, error) {
	if p.running() {
		admin := client.NewAdmin(p.config.Admin.Socket)
		defer func() { _ = admin.Close() }()
		return admin.ReplicaStatus(ctx)
	}
	path := daemon.ReplicaPath(p.config)
	if !files.Exists(path) {
		return wire.ReplicaStatus{}, nil
	}
	data, err := replica.Open(path, replica.Options{ReadOnly: true})
	if err != nil {
		return wire.ReplicaStatus{}, err
	}
	defer func() { _ = data.Close() }() // it was only read
	held, err := index.StatusOf(ctx, data)
	return wire.ReplicaStatus{Status: held}, err
}
