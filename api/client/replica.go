package client

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"

	"github.com/attestd/attestd/appliance/index"
	"github.com/attestd/attestd/appliance/index/follower"
)

// ReplicaStatus is what a replica holds, and how far its follower is.
type ReplicaStatus struct {
	index.Status
	Follower *follower.Status `json:"follower,omitempty"` // nil where it follows no upstream
}

// ReplicaStatus returns what the daemon's replica holds.
//
// Errors: CodeReplicaUnavailable where the daemon has no replica.
func (a *Admin) ReplicaStatus(ctx context.Context) (ReplicaStatus, error) {
	return a.replicaStatus(ctx, call{method: http.MethodGet, path: "/replica"})
}

// SyncReplica has the daemon's follower look for newer rows at once, and returns how far it is before that.
//
// Errors: CodeReplicaUnavailable where the daemon has no replica, or one that follows no upstream.
func (a *Admin) SyncReplica(ctx context.Context) (ReplicaStatus, error) {
	return a.replicaStatus(ctx, call{method: http.MethodPost, path: "/replica/sync"})
}

func (a *Admin) replicaStatus(ctx context.Context, call call) (s ReplicaStatus, err error) {
	call.into = &s
	err = a.do(ctx, call)
	return s, err
}

// VerifyReplica compares the daemon's replica with its upstream, inside the daemon: so many rows of each kind, zero for
// follower.DefaultSample. When ctx ends, it ends. progress may be nil.
//
// Errors: CodeReplicaUnavailable as SyncReplica; as follower.Verify.
func (a *Admin) VerifyReplica(ctx context.Context, sample int, progress func(done, total int64)) (follower.Report, error) {
	request := struct {
		Sample int `json:"sample,omitempty"`
	}{sample}
	return report[follower.Report](ctx, a, call{method: http.MethodPost, path: "/replica/verify", body: request}, progress)
}

// Position and Write make the daemon's replica a dataset.Target.
func (a *Admin) Position(ctx context.Context, name string) (string, bool, error) {
	var p struct {
		Position string `json:"position"`
		Found    bool   `json:"found"`
	}
	err := a.do(ctx, call{method: http.MethodGet, path: "/replica/position?name=" + url.QueryEscape(name), into: &p})
	return p.Position, p.Found, err
}

// Write upserts a batch into the daemon's replica; see index.Index.
func (a *Admin) Write(ctx context.Context, b index.Batch) (index.Written, error) {
	request := struct {
		Rows      []json.RawMessage `json:"rows"`
		Positions map[string]string `json:"positions,omitempty"`
	}{make([]json.RawMessage, len(b.Rows)), b.Positions}
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
