package replica

import (
	"sync"

	"go.etcd.io/bbolt"

	"github.com/attestd/attestd/store/bolt/pages"
)

// gathered are sort_orders whose rows are looked for together: see pages.Tree.
type gathered struct {
	tree    pages.Tree
	lookups []pages.Lookup
	keys    []byte // of the lookups
}

// atOnce is how many rows are looked for together, at most: many more would push each other out of the processor's caches.
const atOnce = 32

// gatherings are those that wait for the next query: a few kilobytes each, for each page.
var gatherings = sync.Pool{New: func() any { return new(gathered) }}

// gather returns none yet.
func gather(rows *bbolt.Bucket) *gathered {
	g := gatherings.Get().(*gathered)
	g.tree = pages.TreeOf(rows)
	return g
}

// add adds a copy of a sort_order, and returns how many there are.
func (g *gathered) add(order []byte) int {
	start := len(g.keys)
	g.keys = append(g.keys, order...)
	g.lookups = append(g.lookups, pages.Lookup{Key: g.keys[start:]})
	return len(g.lookups)
}

// find finds the rows, which must be there, and begins anew. The result is valid until the next one is added.
func (g *gathered) find() []pages.Lookup {
	found := g.lookups
	g.tree.Find(found)
	for i := range found {
		if found[i].Value == nil {
			panic(errNoRow)
		}
	}
	g.lookups, g.keys = g.lookups[:0], g.keys[:0]
	return found
}

// free keeps the memory for another query, with nothing of this one's file in it. After a panic the collector has it.
func (g *gathered) free() {
	clear(g.lookups[:cap(g.lookups)])
	g.tree = pages.Tree{}
	gatherings.Put(g)
}
