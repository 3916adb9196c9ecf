package replica

import (
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"

	"github.com/attestd/attestd/appliance/index"
)

// prepared holds everything that a batch needs of a new row of a collection. Rows are prepared in parallel while
// earlier rows are written.
type prepared struct {
	key    []byte
	packed []byte // packed and sealed
	terms  []uint64
	ends   []int // end of the terms of each postings
}

// keyOf returns the key of a row. p is the prepared form of the row, or nil.
func (p *prepared) keyOf(c *collection, row index.Row) []byte {
	if p != nil {
		return p.key
	}
	return row.AppendKey(make([]byte, 0, 96), c.t.Key)
}

// of returns the terms for the collection's postings with index x.
func (p *prepared) of(x int) []uint64 {
	start := 0
	if x > 0 {
		start = p.ends[x-1]
	}
	return p.terms[start:p.ends[x]]
}

// preparer prepares the rows of a batch in rounds. Each round's packers know the texts of the rounds before, so the
// first rounds are small.
type preparer struct {
	rows  []index.Row
	isNew []bool

	packer *index.Packer
	forks  []*index.Packer // one per goroutine
	own    *index.Packer   // for rows that are not prepared

	ready, coming []prepared // the current round and the next
	from, to      int        // the rows of the current round
	next          func()     // waits until the next round is prepared
}

const (
	firstRound = 64 // rows
	lastRound  = 4096
	chunk      = 128 // rows that one goroutine prepares at a time
)

func newPreparer(packer *index.Packer, rows []index.Row, isNew []bool) *preparer {
	p := &preparer{rows: rows, isNew: isNew, packer: packer, own: packer.Fork()}
	for range min(runtime.GOMAXPROCS(0), 1+len(rows)/firstRound) {
		p.forks = append(p.forks, packer.Fork())
	}
	p.begin(firstRound)
	return p
}

// end waits for the running round and joins the forks.
func (p *preparer) end() {
	p.next()
	p.packer.Join(append(p.forks, p.own)...)
}

// begin starts to prepare the next round in the background.
func (p *preparer) begin(size int) {
	rows := p.rows[p.to:min(len(p.rows), p.to+size)]
	isNew := p.isNew[p.to:]
	p.coming = append(p.coming[:0], make([]prepared, len(rows))...)
	coming := p.coming
	p.next = inParallel((len(rows)+chunk-1)/chunk, len(p.forks), func(worker, n int) {
		from, to := n*chunk, min(len(rows), (n+1)*chunk)
		prepare(p.forks[worker], rows[from:to], isNew[from:to], coming[from:to])
	})
}

// at returns the prepared form of a row, or nil if the row was not prepared. Rows must be requested in order.
func (p *preparer) at(i int) *prepared {
	if i == p.to {
		p.next()
		p.packer.Join(append(p.forks, p.own)...)
		p.ready, p.coming = p.coming, p.ready
		p.from, p.to = p.to, p.to+len(p.ready)
		p.begin(min(lastRound, 2*len(p.ready)))
	}
	if row := &p.ready[i-p.from]; row.key != nil {
		return row
	}
	return nil
}

// prepare prepares the new rows of collections.
func prepare(packer *index.Packer, rows []index.Row, isNew []bool, to []prepared) {
	var room []byte
	var terms []uint64
	var ends []int
	var order [index.MaxSortOrder]byte
	for i, row := range rows {
		c := collectionOf(row.Type())
		if c == nil || !isNew[i] {
			continue
		}
		p := &to[i]
		if cap(room)-len(room) < 4096 {
			room = make([]byte, 0, 128<<10)
		}
		start := len(room)
		room = row.AppendKey(room, c.t.Key)
		p.key = room[start:len(room):len(room)]
		p.packed = seal(c.sum, row.AppendText(order[:0], c.order), packer.Pack(room[len(room):], row))
		room = room[:min(cap(room), len(room)+len(p.packed))] // a row larger than the buffer has separate memory
		first, firstEnd := len(terms), len(ends)
		for _, x := range c.postings {
			x.terms(row, func(term uint64) { terms = append(terms, term) })
			ends = append(ends, len(terms)-first)
		}
		p.terms, p.ends = terms[first:], ends[firstEnd:]
	}
}

// inParallel calls do for each n below all, on up to workers goroutines. It returns a function that waits for them and
// repeats a panic of one of them.
func inParallel(all, workers int, do func(worker, n int)) (wait func()) {
	var working sync.WaitGroup
	var next atomic.Int64
	var cause atomic.Pointer[any]
	for worker := range min(all, workers) {
		working.Go(func() {
			defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
			defer func() {
				if panicked := recover(); panicked != nil {
					cause.Store(&panicked)
				}
			}()
			for n := int(next.Add(1)) - 1; n < all; n = int(next.Add(1)) - 1 {
				do(worker, n)
			}
		})
	}
	return func() {
		working.Wait()
		if panicked := cause.Load(); panicked != nil {
			panic(*panicked)
		}
	}
}
