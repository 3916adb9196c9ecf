package replica

import (
	"sync"

	"go.etcd.io/bbolt"

	"github.com/attestd/attestd/store/bolt/pages"
)

// gathered is a group of sort_orders. Their rows are looked up together: see pages.Tree.
type gathered struct {
	tree    pages.Tree
	lookups []pages.Lookup
	keys    []byte // memory for the keys of the lookups
}

// atOnce is how many rows are looked up together, at most. Many more would evict each other from the processor's
// caches.
const atOnce = 32

// gatherings reuses the memory of past queries, a few kilobytes each.
var gatherings = sync.Pool{New: func() any { return new(gathered) }}

// gather returns an empty group.
func gather(rows *bbolt.Bucket) *gathered {
	g := gatherings.Get().(*gathered)
	g.tree = pages.TreeOf(rows)
	return g
}

// add adds a copy of a sort_order, and returns the size of the group.
func (g *gathered) add(order []byte) int {
	start := len(g.keys)
	g.keys = append(g.keys, order...)
	g.lookups = append(g.lookups, pages.Lookup{Key: g.keys[start:]})
	return len(g.lookups)
}

// find looks up the rows, all of which must exist, and empties the group. The result is valid until the next add.
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

// free returns the memory to the pool, without references to the file. After a panic, the garbage collector frees it
// instead.
func (g *gathered) free() {
	clear(g.lookups[:cap(g.lookups)])
	g.tree = pages.Tree{}
	gatherings.Put(g)
}
