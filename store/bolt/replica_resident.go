package bolt

import (
	"time"
)

// trimEvery is how often what is resident of the file is looked at.
const trimEvery = time.Second / 20

// keepResident gives mapped pages of the file back when more than limit bytes of files are resident in the process. What
// queries touch is mapped, page by page, and counts as the process's memory although the kernel could take it back at any
// time; over a day that would be the whole file. Pages given back stay in the kernel's cache: touching one again costs a
// minor fault, not a read. It runs until Close.
func (r *Replica) keepResident(limit int64) {
	tick := time.NewTicker(trimEvery)
	defer tick.Stop()
	for {
		select {
		case <-r.closing:
			return
		case <-tick.C:
			if residentFiles() > limit {
				r.trim()
			}
		}
	}
}

// trim gives back all pages of the file.
func (r *Replica) trim() {
	tx, err := r.db.Begin(false) // bbolt does not move the mapping while a transaction is open
	if err != nil {
		return
	}
	defer func() { _ = tx.Rollback() }()
	giveBack(r.db.Info().Data, tx.Size())
}
