package journal_test

import (
	"encoding/base64"
	"reflect"
	"strings"
	"testing"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/attestd/attestd/appliance/journal"
)

func TestProofsAreReadAsTheyAreWritten(t *testing.T) {
	hash := tlog.RecordHash([]byte("leaf"))
	proof := journal.InclusionProof{Index: 4, TreeSize: 7, Hashes: [][]byte{hash[:], hash[:]},
		Checkpoint: "example.com/log\n7\n" + hash.String() + "\n\n— example.com/log AAAA\n"}
	for _, leaf := range []string{"", `{"id":1}`} {
		text := proof.String()
		if leaf != "" {
			text = proof.WithLeaf([]byte(leaf))
		}
		read, extra, err := journal.ParseProof([]byte(text))
		if err != nil || !reflect.DeepEqual(read, proof) || string(extra) != leaf || !journal.IsProof([]byte(text)) {
			t.Errorf("%v: %+v with %q of %s", err, read, extra, text)
		}
	}
	good := proof.WithLeaf([]byte("leaf"))
	for name, text := range map[string]string{
		"not a C2SP tlog-proof":     "{}",
		"the checkpoint is missing": good[:strings.Index(good, "\n\n")],
		"is not base64":             strings.Replace(good, "extra bGVhZg==", "extra ?", 1),
		"is not an index line":      strings.Replace(good, "index 4", "index 04", 1),
		"is not a hash":             strings.Replace(good, base64.StdEncoding.EncodeToString(hash[:]), "AAAA", 1),
		"the checkpoint lacks a":    strings.Replace(good, "\n7\n", "\nseven\n", 1),
		`"" is not an index line`:   "c2sp.org/tlog-proof@v1\n\n\nx",
		"the index is missing":      "c2sp.org/tlog-proof@v1\nextra bGVhZg==\n\nx",
		`"indexed" is not an index`: strings.Replace(good, "index 4", "indexed", 1),
	} {
		if _, _, err := journal.ParseProof([]byte(text)); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%q: error %v, want %q", text, err, name)
		}
	}
}
