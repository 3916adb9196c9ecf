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

// ReplicaStatus returns what the daemon's replica holds.
//
// Errors: CodeReplicaUnavailable where the daemon has no replica.
func (a *Admin) ReplicaStatus(ctx context.Context) (wire.ReplicaStatus, error) {
	return a.replicaStatus(ctx, call{method: http.MethodGet, path: "/replica"})
}

// SyncReplica wakes the daemon's follower, which then looks for newer rows, and returns the status as it was before.
//
// Errors: CodeReplicaUnavailable where the daemon has no replica, or one that follows no upstream.
func (a *Admin) SyncReplica(ctx context.Context) (wire.ReplicaStatus, error) {
	return a.replicaStatus(ctx, call{method: http.MethodPost, path: "/replica/sync"})
}

func (a *Admin) replicaStatus(ctx context.Context, call call) (s wire.ReplicaStatus, err error) {
	call.into = &s
	err = a.do(ctx, call)
	return s, err
}

// UnverifiedRows returns rows that the daemon's replica keeps apart, at most as many as limit; zero means appliance.DefaultListed.
//
// Errors: CodeReplicaUnavailable where the daemon has no replica.
func (a *Admin) UnverifiedRows(ctx context.Context, limit int) (rows wire.Unverified, err error) {
	err = a.do(ctx, call{method: http.MethodGet, path: "/replica/unverified?limit=" + strconv.Itoa(limit), into: &rows})
	return rows, err
}

// ReplicaLag returns by how much the daemon's replica was behind in the past hour.
//
// Errors: CodeReplicaUnavailable as SyncReplica.
func (a *Admin) ReplicaLag(ctx context.Context) (lag wire.ReplicaLag, err error) {
	err = a.do(ctx, call{method: http.MethodGet, path: "/replica/lag", into: &lag})
	return lag, err
}

// VerifyReplica has the daemon compare its replica with the upstream: sample rows of each kind, zero for
// follower.DefaultSample. It ends when ctx does. progress may be nil.
//
// Errors: CodeReplicaUnavailable as SyncReplica; as follower.Verify.
func (a *Admin) VerifyReplica(ctx context.Context, sample int, progress func(done, total int64)) (follower.Report, error) {
	request := wire.VerifyReplica{Sample: sample}
	return report[follower.Report](ctx, a, call{method: http.MethodPost, path: "/replica/verify", body: request}, progress)
}

// ID, Position and Write make the daemon's replica a dataset.Target.
func (a *Admin) ID(ctx context.Context) (string, error) {
	status, err := a.ReplicaStatus(ctx)
	return status.ID, err
}

// Position returns what a batch has set under that name.
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

// ReplicaRecords writes each record of the daemon's replica to w, NDJSON as an export has it. An answer that was cut off
// is io.ErrUnexpectedEOF.
func (a *Admin) ReplicaRecords(ctx context.Context, w io.Writer) error {
	return a.lines(ctx, call{method: http.MethodGet, path: "/replica/records"}, func(record []byte) error {
		_, err := w.Write(append(record, '\n'))
		return err
	})
}
