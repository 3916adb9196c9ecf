package client

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"

	"github.com/attestd/attestd/appliance"
)

// ReplicaStatus returns what the daemon's replica holds.
//
// Errors: CodeReplicaUnavailable where the daemon has no replica.
func (a *Admin) ReplicaStatus(ctx context.Context) (appliance.IndexStatus, error) {
	var s appliance.IndexStatus
	err := a.do(ctx, call{method: http.MethodGet, path: "/replica", into: &s})
	return s, err
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

// Write upserts a batch into the daemon's replica; see appliance.Index.
func (a *Admin) Write(ctx context.Context, b appliance.Batch) (appliance.Written, error) {
	request := struct {
		Rows      []json.RawMessage `json:"rows"`
		Positions map[string]string `json:"positions,omitempty"`
	}{make([]json.RawMessage, len(b.Rows)), b.Positions}
	for i, row := range b.Rows {
		request.Rows[i] = row.AppendRecord(nil)
	}
	var written appliance.Written
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
