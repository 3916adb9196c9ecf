package client

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"github.com/attestd/attestd/api/wire"
	"github.com/attestd/attestd/appliance/index"
	"github.com/attestd/attestd/appliance/index/follower"
)

// ReplicaStatus returns the status of the daemon's replica.
//
// Errors: CodeReplicaUnavailable if the daemon has no replica.
func (a *Admin) ReplicaStatus(ctx context.Context) (wire.ReplicaStatus, error) {
	return a.replicaStatus(ctx, call{method: http.MethodGet, path: "/replica"})
}

// SyncReplica wakes the daemon's follower, which then polls for newer rows. It returns the status without waiting for
// the poll.
//
// Errors: CodeReplicaUnavailable if the daemon has no replica, or the replica follows no upstream.
func (a *Admin) SyncReplica(ctx context.Context) (wire.ReplicaStatus, error) {
	return a.replicaStatus(ctx, call{method: http.MethodPost, path: "/replica/sync"})
}

func (a *Admin) replicaStatus(ctx context.Context, call call) (s wire.ReplicaStatus, err error) {
	call.into = &s
	err = a.do(ctx, call)
	return s, err
}

// UnverifiedRows returns quarantined rows of the daemon's replica, at most limit; zero means appliance.DefaultListed.
//
// Errors: CodeReplicaUnavailable if the daemon has no replica.
func (a *Admin) UnverifiedRows(ctx context.Context, limit int) (rows wire.Unverified, err error) {
	err = a.do(ctx, call{method: http.MethodGet, path: "/replica/unverified?limit=" + strconv.Itoa(limit), into: &rows})
	return rows, err
}

// ReplicaLag returns the lag of the daemon's replica over the past hour.
//
// Errors: CodeReplicaUnavailable like SyncReplica.
func (a *Admin) ReplicaLag(ctx context.Context) (lag wire.ReplicaLag, err error) {
	err = a.do(ctx, call{method: http.MethodGet, path: "/replica/lag", into: &lag})
	return lag, err
}

// VerifyReplica makes the daemon compare its replica with the upstream. sample is the number of rows of each kind; zero
// means follower.DefaultSample. The comparison ends when ctx ends. progress may be nil.
//
// Errors: CodeReplicaUnavailable like SyncReplica; the errors of follower.Verify.
func (a *Admin) VerifyReplica(ctx context.Context, sample int,
	progress func(done, total int64)) (follower.Report, error) {
	request := wire.VerifyReplica{Sample: sample}
	return lastLine[follower.Report](ctx, a, call{method: http.MethodPost, path: "/replica/verify", body: request},
		progress)
}

// ID returns the replica's id. ID, Position and Write make the daemon's replica a dataset.Target.
func (a *Admin) ID(ctx context.Context) (string, error) {
	status, err := a.ReplicaStatus(ctx)
	return status.ID, err
}

// Position returns the position that a batch has stored under name.
func (a *Admin) Position(ctx context.Context, name string) (string, bool, error) {
	var p wire.Position
	err := a.do(ctx, call{method: http.MethodGet, path: "/replica/position?name=" + url.QueryEscape(name), into: &p})
	return p.Position, p.Found, err
}

// Write upserts a batch into the daemon's replica; see index.Index.
func (a *Admin) Write(ctx context.Context, b index.Batch) (index.Written, error) {
	request := wire.Batch{Rows: make([]json.RawMessage, len(b.Rows)), Positions: b.Positions, Index: b.Index}
	for i, row := range b.Rows {
		request.Rows[i] = row.AppendLine(nil)
	}
	var written index.Written
	err := a.do(ctx, call{method: http.MethodPost, path: "/replica/batches", body: request, into: &written})
	return written, err
}

// ReplicaRecords writes all records of the daemon's replica to w, as NDJSON in the format of an export. An answer that
// was cut off returns io.ErrUnexpectedEOF.
func (a *Admin) ReplicaRecords(ctx context.Context, w io.Writer) error {
	return a.lines(ctx, call{method: http.MethodGet, path: "/replica/records"}, func(record []byte) error {
		_, err := w.Write(append(record, '\n'))
		return err
	})
}
