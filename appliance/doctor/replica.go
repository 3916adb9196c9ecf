package doctor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/attestd/attestd/api/client"
	"github.com/attestd/attestd/api/wire"
	"github.com/attestd/attestd/appliance/daemon"
	"github.com/attestd/attestd/appliance/files"
	"github.com/attestd/attestd/appliance/health"
	"github.com/attestd/attestd/appliance/index"
	"github.com/attestd/attestd/appliance/text"
	"github.com/attestd/attestd/store/replica"
)

// staleReplica is the age of the newest packet at which doctor warns.
const staleReplica = 24 * time.Hour

func checkReplica(ctx context.Context, p *subject) []Finding {
	if !p.config.HasReplica() {
		return nil
	}
	if faults := health.Faults(p.told("replica")); len(faults) > 0 {
		return append(faults, p.setAside()...)
	}
	return append([]Finding{p.judgeReplica(ctx)}, p.setAside()...)
}

// judgeReplica warns at most: attestations do not need a replica.
func (p *subject) judgeReplica(ctx context.Context) Finding {
	path := daemon.ReplicaPath(p.config)
	fill, anew := "fill it: attestd replica import FILE", "; then: attestd replica import FILE"
	if p.config.Follows() {
		fill, anew = "fill it: attestd replica sync", "; the follower fills it again"
	}
	if stat, err := os.Stat(path); err == nil && !p.running() {
		f, found := p.checkPermissions(
			permissionRule{what: "replica", path: path, most: 0o600, owned: true, readable: true, state: Warn},
			stat)
		if f.State = Warn; found {
			return f
		}
	}
	status, err := p.replicaStatus(ctx)
	switch {
	case p.running() && err != nil:
		return warn("read the log: journalctl -u attestd; attestd retries automatically",
			"reads are refused, attestations are not affected: %s", err)
	case isUselessReplica(err):
		return warn("start attestd, which sets the file aside and creates an empty one: systemctl start attestd"+anew,
			"%s", err)
	case err != nil:
		return warn(asRoot, "%s", err)
	case status.Newest.IsZero():
		return warn(fill, "empty: GraphQL queries return no rows")
	case time.Since(status.Newest) > staleReplica && !p.config.Follows(): // checkFollowing covers replicas that follow
		return warn(fill, "%s transfers, the newest from %s", text.Count(status.Rows[index.TransferType.Name]),
			text.Age(status.Newest))
	}
	return ok("%s transfers, the newest from %s", text.Count(status.Rows[index.TransferType.Name]), text.Age(status.Newest))
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
	remedy := "fill the new replica: attestd replica import FILE"
	if p.config.Follows() {
		remedy = "the follower fills the new replica, see: attestd replica status"
	}
	return []Finding{warn(remedy+"; remove the old one when it is no longer needed: rm -r "+text.ShellWord(path)+
		".damaged-*",
		"a replica that was damaged, or of another version, was set aside: %s%s", last, when)}
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
