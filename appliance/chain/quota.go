package chain

import "time"

// quota bounds how many alarms are told one by one in a minute. The rest is counted.
type quota struct {
	most  int
	begun time.Time // of the minute
	told  int       // in it
	left  int       // that were not told, and are not counted yet by rest
}

// take says whether another alarm is told by itself.
func (q *quota) take(now time.Time) bool {
	if now.Sub(q.begun) >= time.Minute {
		q.begun, q.told = now, 0
	}
	if q.told >= q.most {
		q.left++
		return false
	}
	q.told++
	return true
}

// rest returns, when a minute is over, how many alarms were not told.
func (q *quota) rest(now time.Time) int {
	if now.Sub(q.begun) < time.Minute {
		return 0
	}
	n := q.left
	q.left = 0
	return n
}
