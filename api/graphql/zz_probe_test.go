package graphql_test

import (
	"os"
	"testing"
	"time"

	"github.com/attestd/attestd/api/graphql"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/dataset"
	"github.com/attestd/attestd/store/bolt"
)

func TestZZ(t *testing.T) {
	now := time.Date(2026, 5, 20, 12, 0, 0, 0, time.UTC)
	r, err := bolt.OpenReplica(t.TempDir()+"/r.db", bolt.ReplicaOptions{Now: func() time.Time { return now }})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	dataset.Generate(t.Context(), dataset.GenerateOptions{Transfers: 1000, Seed: 1, Now: now}, func(rows []appliance.Row) error {
		_, err := r.Write(t.Context(), appliance.Batch{Rows: rows})
		return err
	})
	s := newServer(t, graphql.Options{Index: r, Now: func() time.Time { return now }})
	for _, q := range []string{
		`{v2_transfers(args:{p_limit:2}){sender_canonical receiver_canonical base_amount base_token_meta{denom representations{name symbol decimals}} source_universal_chain_id destination_universal_chain_id status sort_order}}`,
		`{v2_packets(args:{p_limit:2, p_sort_order: "00065", p_comparison:"gt"}){packet_hash data decoded decoded_flattened status traces{type}}}`,
		`{v2_packets(args:{p_limit:100}){packet_hash status structure traces{type timestamp}}}`,
		`{v2_tokens(args:{p_universal_chain_id:"babylon.bbn-1"}){denom representations{decimals name symbol}}}`,
		`{v2_stats_count{name value} v2_stats_transfers_daily_count(args:{p_days_back:3}){day_date count} v2_stats_latency{secs_until_packet_ack{p5 median p95}}}`,
		`{v2_transfers(args:{p_limit:0}){status}}`,
	} {
		a := s.post(t, q, "")
		body := indent(a.body)
		os.Stdout.WriteString(body[:min(len(body), 6000)] + "\n")
	}
}
