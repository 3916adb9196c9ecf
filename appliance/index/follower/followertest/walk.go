package followertest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/attestd/attestd/appliance/index"
)

// Listed is a row of a list as a client sees it.
type Listed struct {
	Key       string // as Row.Key
	SortOrder string
	Status    string
}

// Walk pages through all packets or transfers of a GraphQL endpoint as a client does. It starts at a cursor, goes in
// one direction, and requests each page from the last row of the page before, until a page is empty. An empty cursor
// starts at the newest row and goes to older ones. If between is not nil, it is called after each page.
func Walk(ctx context.Context, url string, t *index.Type, cursor string, d index.Direction, limit int,
	between func()) ([]Listed, error) {
	var all []Listed
	for {
		page, err := listPage(ctx, url, t, cursor, d, limit)
		if err != nil || len(page) == 0 {
			return all, err
		}
		all, cursor = append(all, page...), page[len(page)-1].SortOrder
		if between != nil {
			between()
		}
	}
}

// listPage requests a page with the key, sort_order and status of each row.
func listPage(ctx context.Context, url string, t *index.Type, cursor string, d index.Direction,
	limit int) ([]Listed, error) {
	idx := ""
	if t == index.TransferType {
		idx = "transfer_index"
	}
	query := fmt.Sprintf(`query($limit: Int!, $cursor: String, $direction: String) {
		rows: v2_%ss(args: {p_limit: $limit, p_sort_order: $cursor, p_comparison: $direction}) { packet_hash %s sort_order status }
	}`, t.Name, idx)
	variables := map[string]any{"limit": limit,
		"direction": map[index.Direction]string{index.Older: "lt", index.Newer: "gt"}[d]}
	if cursor != "" {
		variables["cursor"] = cursor
	}
	var data struct {
		Rows []struct {
			PacketHash    string `json:"packet_hash"`
			TransferIndex *int   `json:"transfer_index"`
			SortOrder     string `json:"sort_order"`
			Status        string
		}
	}
	if err := Query(ctx, url, query, variables, &data); err != nil {
		return nil, err
	}
	var page []Listed
	for _, row := range data.Rows {
		l := Listed{Key: row.PacketHash, SortOrder: row.SortOrder, Status: row.Status}
		if row.TransferIndex != nil {
			l.Key = fmt.Sprintf("%s/%d", l.Key, *row.TransferIndex)
		}
		page = append(page, l)
	}
	return page, nil
}

// Query executes an operation at a GraphQL endpoint and decodes the data of its answer.
func Query(ctx context.Context, url, query string, variables map[string]any, data any) error {
	body, err := json.Marshal(map[string]any{"query": query, "variables": variables})
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	var answer struct {
		Data   json.RawMessage
		Errors []struct{ Message string }
	}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		return fmt.Errorf("status %d: %w", resp.StatusCode, err)
	}
	if len(answer.Errors) > 0 || answer.Data == nil {
		return fmt.Errorf("status %d: %v", resp.StatusCode, answer.Errors)
	}
	return json.Unmarshal(answer.Data, data)
}
