package appliance

import (
	"errors"
	"time"
)

// Cap is how many attestations an API key gets in each period.
type Cap struct {
	Count int64
	Per   Period
}

// Period is a stretch of the calendar, in the policy's time zone.
type Period string

// The periods. A week begins on Monday.
const (
	Hour  Period = "hour"
	Day   Period = "day"
	Week  Period = "week"
	Month Period = "month"
)

// Periods lists all periods, the shortest first.
var Periods = []Period{Hour, Day, Week, Month}

// around returns the period in which a local time is: its begin, and its end, at which the next begins.
func (p Period) around(local time.Time) (begin, end time.Time) {
	year, month, day := local.Date()
	midnight := func(month time.Month, day int) time.Time {
		return time.Date(year, month, day, 0, 0, 0, 0, local.Location())
	}
	switch p {
	case Hour: // by what has passed of it, since a clock that is set back shows an hour twice
		begin = local.Add(-time.Duration(local.Minute())*time.Minute - time.Duration(local.Second())*time.Second - time.Duration(local.Nanosecond()))
		return begin, begin.Add(time.Hour)
	case Week:
		monday := day - (int(local.Weekday())+6)%7
		return midnight(month, monday), midnight(month, monday+7)
	case Month:
		return midnight(month, 1), midnight(month+1, 1)
	}
	return midnight(month, day), midnight(month, day+1)
}

// Hours are when attestations are issued, in the policy's time zone. None means always.
type Hours []Opening

// Opening is a time of the day, on some days of the week.
type Opening struct {
	Days     [7]bool // by time.Weekday, of the day on which it begins
	From, To int     // minutes of the day; To is the next day's where it is not more than From
}

const dayMinutes = 24 * 60

// check returns CodePolicyHours outside the hours.
func (h Hours) check(local time.Time) error {
	if len(h) == 0 {
		return nil
	}
	minute := local.Hour()*60 + local.Minute()
	today, yesterday := local.Weekday(), (local.Weekday()+6)%7
	for _, o := range h {
		overnight := o.To <= o.From
		switch {
		case o.Days[today] && minute >= o.From && (overnight || minute < o.To):
			return nil
		case overnight && o.Days[yesterday] && minute < o.To:
			return nil
		}
	}
	e := Errorf(CodePolicyHours, "attestations are not issued at this time")
	e.RetryAfter = h.next(local).Sub(local)
	return e
}

// next returns when the hours begin next.
func (h Hours) next(local time.Time) (next time.Time) {
	year, month, day := local.Date()
	for ahead := range 8 {
		for _, o := range h {
			at := time.Date(year, month, day+ahead, o.From/60, o.From%60, 0, 0, local.Location())
			if o.Days[at.Weekday()] && at.After(local) && (next.IsZero() || at.Before(next)) {
				next = at
			}
		}
	}
	return next
}

// Check returns an error for an opening that never is.
func (o Opening) Check() error {
	if o.Days == [7]bool{} {
		return errors.New("it has no days")
	}
	if o.From < 0 || o.From >= dayMinutes || o.To < 0 || o.To > dayMinutes {
		return errors.New("its times are not within a day")
	}
	return nil
}
