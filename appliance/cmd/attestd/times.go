package main

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// parseExpiry reads a time in the future: an absolute time, or a duration from now. Empty means the zero time.
func parseExpiry(s string, now time.Time) (time.Time, error) {
	return parseMoment(s, func(days int, d time.Duration) time.Time { return now.AddDate(0, 0, days).Add(d) })
}

// parsePast reads a time in the past: an absolute time, or a duration before now. Empty means the zero time.
func parsePast(s string, now time.Time) (time.Time, error) {
	return parseMoment(s, func(days int, d time.Duration) time.Time { return now.AddDate(0, 0, -days).Add(-d) })
}

// maxDays is a hundred years.
const maxDays = 36525

// parseMoment reads a time (RFC 3339), a date (its beginning in UTC), or a duration from or before now. Durations may
// be in days.
func parseMoment(s string, fromNow func(days int, d time.Duration) time.Time) (time.Time, error) {
	if s == "" {
		return time.Time{}, nil
	}
	for _, form := range []string{time.RFC3339, time.DateOnly} {
		if t, err := time.Parse(form, s); err == nil {
			return t, nil
		}
	}
	if text, isDays := strings.CutSuffix(s, "d"); isDays {
		if days, err := strconv.ParseUint(text, 10, 16); err == nil && days > 0 && days <= maxDays {
			return fromNow(int(days), 0), nil
		}
	}
	if d, err := time.ParseDuration(s); err == nil && d > 0 {
		return fromNow(0, d), nil
	}
	return time.Time{}, fmt.Errorf(
		"%q is not a duration such as 90d or 12h, a date such as 2027-01-31, or a time such as 2027-01-31T12:00:00Z", s)
}
