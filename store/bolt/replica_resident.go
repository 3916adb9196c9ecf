package bolt

import (
	"os"
	"time"
)

const (
	// trimEvery is how often what is resident of the file is looked at.
	trimEvery = time.Second / 20
	// trimParts is in how many parts the file is given back: the more, the more of what is in use stays, for all of it
	// has to be mapped again.
	trimParts = 8
)

// keepResident gives mapped pages of the file back when more than limit bytes of files are resident in the process. What
// queries touch is mapped, page by page, and counts as the process's memory although the kernel could take it back at any
// time; over a day that would be the whole file. Pages given back stay in the kernel's cache: touching one again costs a
// minor fault, not a read. It runs until Close.
func (r *Replica) keepResident(limit int64) {
	tick := time.NewTicker(trimEvery)
	defer tick.Stop()
	for part := 0; ; {
		select {
		case <-r.closing:
			return
		case <-tick.C:
			for n := 0; n < trimParts && residentFiles() > limit; n++ {
				r.trim(part)
				part = (part + 1) % trimParts
			}
		}
	}
}

// trim gives back the pages of one part of the file.
func (r *Replica) trim(part int) {
	tx, err := r.db.Begin(false) // bbolt does not move the mapping while a transaction is open
	if err != nil {
		return
	}
	defer func() { _ = tx.Rollback() }()
	page := int64(os.Getpagesize())
	each := (tx.Size()/trimParts/page + 1) * page
	start := min(int64(part)*each, tx.Size())
	giveBack(r.db.Info().Data+uintptr(start), min(each, tx.Size()-start))
}
