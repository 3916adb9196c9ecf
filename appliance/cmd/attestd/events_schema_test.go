package main

import (
	"io/fs"
	"path/filepath"
	"testing"

	"github.com/attestd/attestd/api/openapitest"
	"github.com/attestd/attestd/appliance/archive"
	"github.com/attestd/attestd/appliance/events"
	"github.com/attestd/attestd/appliance/journal"
)

// eventsDescribed validates the events of all journals in the folder of a script against api/openapi.yaml. It skips
// journals that the script has damaged.
func eventsDescribed(t *testing.T, dir string) {
	schema := openapitest.Schema(t, "../../../api/openapi.yaml", "Event")
	seen := make(map[events.Type]int)
	_ = filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil || filepath.Base(path) != archive.StoreFile {
			return nil
		}
		store, key, err := archive.OpenStore(filepath.Dir(path))
		if err != nil {
			return nil
		}
		defer store.Close()
		_ = store.Journal().Entries(t.Context(), 0, func(entry journal.Entry) error {
			event, err := events.FromEntry(key.Verifier.Name(), journal.LogName(key.Verifier), entry)
			if err != nil {
				return err
			}
			text, err := event.MarshalJSON()
			if err == nil {
				openapitest.Check(t, schema, text)
				seen[event.Type]++
			}
			return err
		})
		return nil
	})
	t.Logf("%s: %v", filepath.Base(dir), seen)
}
