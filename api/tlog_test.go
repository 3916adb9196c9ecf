package api_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/attestd/attestd/api"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/journal"
)

func TestTheLogIsReadThroughTiles(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	const records = 300 // one full tile and a partial one
	var wg sync.WaitGroup
	for range 30 {
		wg.Go(func() {
			for range records / 30 {
				if a := r.attest(); a.status != 200 {
					t.Error(a)
				}
			}
		})
	}
	wg.Wait()
	a := r.do("GET", "/log/checkpoint", "")
	if a.header.Get("Content-Type") != "text/plain; charset=utf-8" {
		t.Errorf("Content-Type: %s", a.header.Get("Content-Type"))
	}
	tree, err := journal.OpenCheckpoint(a.body, r.log.Verifier)
	r.must(err)
	if tree.N != records {
		t.Fatalf("the checkpoint is of %d records", tree.N)
	}
	hashes := tlog.TileHashReader(tree, tiles{r})
	for _, index := range []int64{0, 255, 256, records - 1} {
		proof, err := tlog.ProveRecord(tree.N, index, hashes) // checks the tiles against the root
		r.must(err)
		e := r.entry(index)
		if err := tlog.CheckRecord(proof, tree.N, tree.Hash, index, tlog.RecordHash(e.Leaf)); err != nil {
			t.Errorf("record %d: %v", index, err)
		}
	}
	r.checkTileHeaders()
}

func (r *rig) entry(index int64) (e journal.Entry) {
	r.Helper()
	found := errors.New("found")
	err := r.attestor.Journal.Entries(context.Background(), index, func(each journal.Entry) error {
		e = each
		return found
	})
	if !errors.Is(err, found) {
		r.Fatal(err)
	}
	return e
}

func (r *rig) checkTileHeaders() {
	r.Helper()
	log := fmt.Sprintf("/log/%08x", r.log.Verifier.KeyHash())
	full, partial := r.do("GET", log+"/tile/0/000", ""), r.do("GET", log+"/tile/0/001.p/44", "")
	if full.status != 200 || len(full.body) != 8192 || !strings.Contains(full.header.Get("Cache-Control"),
		"immutable") || full.header.Get("Content-Type") != "application/octet-stream" {
		r.Errorf("full tile: %d, %v", full.status, full.header)
	}
	if partial.status != 200 || len(partial.body) != 44*32 ||
		strings.Contains(partial.header.Get("Cache-Control"), "immutable") {
		r.Errorf("partial tile: %d, %v", partial.status, partial.header)
	}
	for _, path := range []string{"/log/tile/0/000", "/log/tile/0/001.p/44", "/log/checkpoint", log + "/checkpoint"} {
		if a := r.do("GET", path, ""); a.status != 200 || a.header.Get("Cache-Control") != "no-cache" {
			r.Errorf("%s: %d, Cache-Control %q: it changes when the journal goes on as another log", path, a.status,
				a.header.Get("Cache-Control"))
		}
	}
	for _, none := range []string{
		"0/001", "0/001.p/45", "0/000.p/0", "0/000.p/256", "0/000.p/07", "0/0", "0/00", "0/x000/000", "0/x001/067",
		"00/000", "-1/000", "64/000",
		"data/000", "entries/000", "1/001", "", "0", "0/", "0/000/", "0/000.p", "0/%30%30%30", "0/000.p/1/2",
		"999999999999999999999/000",
	} {
		for _, prefix := range []string{"/log", log} {
			a := r.do("GET", prefix+"/tile/"+none, "")
			if a.status != 404 || a.problem().Code != appliance.CodeNotFound {
				r.Errorf("%s/tile/%s: %s", prefix, none, a)
			}
		}
	}
}

func TestALogThatGoesOnAsAnotherHasAnotherURL(t *testing.T) {
	t.Parallel()
	var old journal.LogKey
	// This appliance has a journal that another appliance continued under another key.
	r := newRig(t, func(o *api.Options) {
		var err error
		if old, _, err = journal.NewLogKey("test.example/log"); err != nil {
			t.Fatal(err)
		}
		o.LogVerifier = old.VerifierText
	})
	r.attest()
	for _, log := range []string{fmt.Sprintf("%08x", old.Verifier.KeyHash()),
		fmt.Sprintf("%08x", r.log.Verifier.KeyHash()), "00000000", "x"} {
		for _, path := range []string{"/checkpoint", "/tile/0/000.p/1"} {
			if a := r.do("GET", "/log/"+log+path, ""); a.status != 404 ||
				strings.Contains(a.header.Get("Cache-Control"), "immutable") {
				t.Errorf("/log/%s%s: %s", log, path, a)
			}
		}
	}
	if a := r.do("GET", "/log/tile/0/000.p/1", ""); a.status != 200 || a.header.Get("Cache-Control") != "no-cache" {
		t.Errorf("the current log's tile: %s", a)
	}
}

func TestReadersOfTheLogHaveABucketOfTheirOwn(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(o *api.Options) { o.AnonymousRate, o.LogRate = perSecond(2), perSecond(0.1) })
	r.attest()
	for n := range 60 { // ten minutes' allowance
		if a := r.do("GET", "/log/tile/0/000.p/1", ""); a.status != 200 {
			t.Fatalf("tile %d: %s", n, a)
		}
	}
	for name, headers := range map[string][]string{"without a key": nil, "with one": {"x-api-key", r.token}} {
		if a := r.do("GET", "/log/checkpoint", "", headers...); a.status != 429 {
			t.Errorf("%s: one more than fits into the bucket: %s", name, a)
		}
	}
	if a := r.do("GET", "/functions/v1/attestor", ""); a.status != 200 {
		t.Errorf("another route: %s", a)
	}
	r.clock.move(10 * time.Second)
	if a := r.do("GET", "/log/checkpoint", ""); a.status != 200 {
		t.Errorf("ten seconds later: %s", a)
	}
}

// tiles reads tiles over HTTP, for a standard tlog client.
type tiles struct{ *rig }

func (tiles) Height() int { return 8 }

func (t tiles) ReadTiles(want []tlog.Tile) ([][]byte, error) {
	read := make([][]byte, len(want))
	for i, tile := range want {
		a := t.do("GET", "/log/tile/"+strings.TrimPrefix(tile.Path(), "tile/8/"), "")
		if a.status != 200 {
			return nil, errors.New(a.String())
		}
		read[i] = a.body
	}
	return read, nil
}

func (tiles) SaveTiles([]tlog.Tile, [][]byte) {}
