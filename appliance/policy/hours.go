package policy

import (
	"errors"
	"github.com/attestd/attestd/appliance"
	"time"
)

// Cap limits how many attestations an API key gets in each period.
type Cap struct {
	Count int64
	Per   Period
}

// Period is a calendar period in the policy's time zone.
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

// around returns the period that contains a local time: its begin and its end. The end belongs to the next period.
func (p Period) around(local time.Time) (begin, end time.Time) {
	year, month, day := local.Date()
	midnight := func(month time.Month, day int) time.Time {
		return time.Date(year, month, day, 0, 0, 0, 0, local.Location())
	}
	switch p {
	case Hour: // computed from the elapsed part, because an hour occurs twice when clocks are set back
		begin = local.Add(-time.Duration(local.Minute())*time.Minute - time.Duration(
			local.Second())*time.Second - time.Duration(local.Nanosecond()))
		return begin, begin.Add(time.Hour)
	case Week:
		monday := day - (int(local.Weekday())+6)%7
		return midnight(month, monday), midnight(month, monday+7)
	case Month:
		return midnight(month, 1), midnight(month+1, 1)
	}
	return midnight(month, day), midnight(month, day+1)
}

// Hours are the times in which attestations are issued, in the policy's time zone. Empty means always.
type Hours []Opening

// Opening is a range of time on some days of the week.
type Opening struct {
	Days [7]bool `json:"days"` // indexed by time.Weekday: the days on which it begins
	From int     `json:"from"` // minute of the day
	To   int     `json:"to"`   // as From; if To <= From, it is on the next day
}

const dayMinutes = 24 * 60

// check returns CodePolicyHours if the local time is outside the hours.
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
	e := appliance.Errorf(appliance.CodePolicyHours, "attestations are not issued at this time")
	e.RetryAfter = h.next(local).Sub(local)
	return e
}

// next returns the next begin of an opening.
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

// Check returns an error if the opening has no days or its times are not within a day.
func (o Opening) Check() error {
	if o.Days == [7]bool{} {
		return errors.New("days are required")
	}
	if o.From < 0 || o.From >= dayMinutes || o.To < 0 || o.To > dayMinutes {
		return errors.New("the times must be within one day")
	}
	return nil
}
