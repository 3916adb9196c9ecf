package chain

import "time"

// quota limits the alarms reported per minute. It counts the rest.
type quota struct {
	most     int
	begun    time.Time // begin of the current minute
	reported int       // alarms reported in it
	left     int       // alarms beyond the quota that rest has not returned yet
}

// allow reports whether another alarm is within the quota.
func (q *quota) allow(now time.Time) bool {
	if now.Sub(q.begun) >= time.Minute {
		q.begun, q.reported = now, 0
	}
	if q.reported >= q.most {
		q.left++
		return false
	}
	q.reported++
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
