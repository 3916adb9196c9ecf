package chain

import "time"

// quota limits the alarms reported per minute. It counts the rest.
type quota struct {
	most  int
	begun time.Time // begin of the current minute
	told  int       // alarms reported in it
	left  int       // alarms beyond the quota that rest has not returned yet
}

// take reports whether another alarm is within the quota.
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

// rest returns, after a minute, the number of alarms beyond the quota.
func (q *quota) rest(now time.Time) int {
	if now.Sub(q.begun) < time.Minute {
		return 0
	}
	n := q.left
	q.left = 0
	return n
}
