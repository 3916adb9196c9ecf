package postgres_test

import (
	"fmt"
	"strings"
	"testing"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/attestd/attestd/appliance/audit"
	"github.com/attestd/attestd/store/postgres/postgrestest"
)

// found is a reported damage without its text.
type found struct {
	index int64
	part  string
}

// TestVerifyNamesWhatWasChanged makes the database's owner, who can write every table, change stored records.
func TestVerifyNamesWhatWasChanged(t *testing.T) {
	key := newLogKey(t)
	url, d := newDatabase(t)
	journal := open(t, url, options(key)).Journal()
	fill(t, journal, 270) // a tile of 256, and the start of another
	earlier, err := journal.Checkpoint(t.Context())
	check(t, err)
	fill300(t, journal)
	leaves := leavesOf(t, journal)
	for _, table := range tampered {
		d.Exec(t, fmt.Sprintf("CREATE TABLE saved_%s AS TABLE %[1]s", table))
	}
	for name, test := range map[string]struct {
		change string
		want   []found // exactly these
	}{
		"a leaf's salt": {replaceLeaf(7, `'"salt":"..'`, `'"salt":"zz'`),
			[]found{{7, "record"}, {7, "tree"}, {255, "tree"}, {-1, "checkpoint"}}},
		"a leaf's signature": {replaceLeaf(7, `'"v":2'`, `'"v":3'`),
			[]found{{7, "signature"}, {7, "tree"}, {255, "tree"}, {-1, "checkpoint"}}},
		"a leaf with its hash": {resealed(leaves[7]), []found{{255, "tree"}, {-1, "checkpoint"}}},
		"a record dropped": {"DELETE FROM records WHERE index = 7",
			[]found{{7, "record"}, {255, "tree"}, {-1, "checkpoint"}}},
		"the last one dropped": {"DELETE FROM records WHERE index = 299", []found{{299, "record"}, {-1, "checkpoint"}}},
		"a record too many":    {copyOf(7, 300), []found{{-1, "record"}}},
		"a record before all":  {copyOf(7, -1), []found{{-1, "record"}}},
		"two records swapped":  {swapped(7, 9), []found{{255, "tree"}, {-1, "checkpoint"}}},
		"a hash":               {"UPDATE records SET hash = sha256(hash) WHERE index = 7", []found{{7, "tree"}}},
		"an id":                {"UPDATE records SET id = gen_random_uuid() WHERE index = 7", []found{{7, "lookup"}}},
		"an API key":           {"UPDATE records SET key_id = 'other' WHERE index = 7", []found{{7, "lookup"}}},
		"a time": {"UPDATE records SET time = time - interval '1 second' WHERE index = 7",
			[]found{{7, "lookup"}}},
		"an idempotency key": {"UPDATE records SET idempotency_key = 'other' WHERE index = 7",
			[]found{{7, "lookup"}}},
		"an idempotency key's": {"UPDATE records SET idempotency_key = NULL WHERE index = 7", []found{{7, "lookup"}}},
		"a tile's hash":        {"UPDATE hashes SET hash = sha256(hash)", []found{{255, "tree"}}},
		"a tile dropped":       {"DELETE FROM hashes", []found{{255, "tree"}, {-1, "tree"}}},
		"a tile too many": {"INSERT INTO hashes SELECT generation, level, 1, hash FROM hashes",
			[]found{{-1, "tree"}}},
		"an older checkpoint": {"UPDATE log_head SET checkpoint = '" + string(earlier) + "'",
			[]found{{-1, "checkpoint"}}},
		"a smaller head": {"UPDATE log_head SET size = 270", []found{{-1, "record"}, {-1, "checkpoint"}}},
		"the tree's edge": {"UPDATE log_head SET edge = set_byte(edge, 0, get_byte(edge, 0) # 1)",
			[]found{{-1, "checkpoint"}}},
	} {
		t.Run(name, func(t *testing.T) {
			d.Exec(t, test.change)
			t.Cleanup(func() { putBack(t, d) })
			wantFound(t, journal, test.want)
		})
	}
	wantClean(t, journal, 300)
}

func wantFound(t *testing.T, journal audit.Journal, want []found) {
	t.Helper()
	report, err := journal.Verify(t.Context(), audit.Options{})
	check(t, err)
	missed := make(map[found]bool)
	for _, f := range want {
		missed[f] = true
	}
	for _, damage := range report.Damages {
		f := found{damage.Index, damage.Part}
		t.Log(damage)
		if _, expected := missed[f]; !expected {
			t.Errorf("this is reported, too: %v", f)
		}
		missed[f] = false
	}
	for f, is := range missed {
		if is {
			t.Errorf("%s of record %d is not reported", f.part, f.index)
		}
	}
}

// fill300 appends the records 270 to 299.
func fill300(t *testing.T, journal audit.Journal) {
	t.Helper()
	for i := 270; i < 300; i++ {
		_, _, err := journal.Append(t.Context(), withIdempotencyKey(t, fmt.Sprint(i)))
		check(t, err)
	}
}

var tampered = []string{"records", "hashes", "log_head"}

func putBack(t *testing.T, d *postgrestest.Database) {
	t.Helper()
	for _, table := range tampered {
		d.Exec(t, "DELETE FROM "+table, fmt.Sprintf("INSERT INTO %s SELECT * FROM saved_%[1]s", table))
	}
}

// replaceLeaf replaces the match of a regular expression in a leaf.
func replaceLeaf(index int64, old, replacement string) string {
	return fmt.Sprintf(
		"UPDATE records SET leaf = convert_to(regexp_replace(convert_from(leaf, 'UTF8'), %s, %s), 'UTF8') WHERE index = %d", old, replacement, index)
}

// resealed gives the record of a leaf another salt and the matching hash.
func resealed(leaf []byte) string {
	at := strings.LastIndex(string(leaf), `"salt":"`) + len(`"salt":"`)
	changed := append([]byte(nil), leaf...)
	copy(changed[at:], strings.Repeat("0", 32))
	hash := tlog.RecordHash(changed)
	return fmt.Sprintf("UPDATE records SET leaf = '\\x%x', hash = '\\x%x' WHERE index = 7", changed, hash[:])
}

func copyOf(index, to int64) string {
	return fmt.Sprintf(
		"INSERT INTO records (index, id, key_id, time, hash, leaf) SELECT %d, gen_random_uuid(), key_id, time, hash, leaf FROM records WHERE index = %d", to, index)
}

func swapped(i, k int64) string {
	return fmt.Sprintf(
		"UPDATE records SET index = -1000 WHERE index = %d; UPDATE records SET index = %[1]d WHERE index = %d; UPDATE records SET index = %[2]d WHERE index = -1000", i, k)
}
