package postgres_test

import (
	"strings"
	"testing"

	"github.com/attestd/attestd/appliance/audit"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/store/postgres"
	"github.com/attestd/attestd/store/storetest"
)

// TestRecordsOfSchemaVersion2GetTheirLookups removes from a database the parts that version 2 lacked, and migrates it.
func TestRecordsOfSchemaVersion2GetTheirLookups(t *testing.T) {
	t.Parallel()
	raw, d := newDatabase(t)
	key := newLogKey(t)
	j := open(t, raw, options(key)).Journal()
	fill(t, j, 3)
	event, err := j.AppendEvent(t.Context(), storetest.Event())
	check(t, err)
	record, err := j.ByIdempotencyKey(t.Context(), "key", "1")
	check(t, err)
	mac := d.Query(t, "SELECT encode(state_mac, 'hex') FROM log_head")
	d.Exec(t, "DROP INDEX records_events", "ALTER TABLE records DROP COLUMN digest, DROP COLUMN unspendable",
		"ALTER TABLE log_head DROP COLUMN stopped, DROP COLUMN stopped_version, DROP COLUMN keys_digest, DROP COLUMN state_mac, DROP COLUMN oldest_schema",
		"ALTER TABLE members DROP COLUMN instance, DROP COLUMN scheme, DROP COLUMN policy, DROP COLUMN screening, DROP COLUMN shared_seen",
		"DROP TABLE webhooks, webhook_holder", "DELETE FROM goose_db_version WHERE version_id > 2")

	from, to, err := postgres.Migrate(t.Context(), d.URL(), role)
	check(t, err)
	d.Exec(t, "UPDATE log_head SET state_mac = '\\x"+mac+"'") // migrations do not have the log key
	if from != 2 || to != 7 {
		t.Errorf("migrated from %d to %d", from, to)
	}
	wantClean(t, j, 4)
	for want, q := range map[int64]journal.Query{
		record.Index: {Hash: &record.Record.Hash, Unspendable: &record.Record.UnspendableAddress},
		event.Index:  {EventsOnly: true},
	} {
		found, err := j.List(t.Context(), q)
		check(t, err)
		if len(found) != 1 || found[0].Index != want {
			t.Errorf("%+v finds %d entries, not record %d", q, len(found), want)
		}
	}
}

func TestVerifyFindsALookupThatLeadsElsewhere(t *testing.T) {
	t.Parallel()
	raw, d := newDatabase(t)
	journal := open(t, raw, options(newLogKey(t))).Journal()
	fill(t, journal, 2)
	_, err := journal.AppendEvent(t.Context(), storetest.Event())
	check(t, err)
	for column, change := range map[string]string{
		"digest":      "UPDATE records SET digest = unspendable WHERE index = 1",
		"unspendable": "UPDATE records SET unspendable = NULL WHERE index = 0",
		"key_id":      "UPDATE records SET key_id = '' WHERE index = 2",
	} {
		d.Exec(t, change)
		report, err := journal.Verify(t.Context(), audit.Options{})
		check(t, err)
		found := false
		for _, damage := range report.Damages {
			found = found || strings.HasPrefix(damage.Detail, column+": differs from the record")
		}
		if !found {
			t.Errorf("%s: the audit found %v", change, report.Damages)
		}
	}
}
