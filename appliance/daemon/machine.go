package daemon

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/attestd/attestd/api/wire"
	"github.com/attestd/attestd/appliance/config"
)

// DiskSpace returns the free and total bytes of the disk of a folder. free is what this user may still use.
func DiskSpace(dir string) (free, total int64, err error) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return 0, 0, err
	}
	return int64(s.Bavail) * s.Bsize, int64(s.Blocks) * s.Bsize, nil
}

// ClockIsSynchronised reports whether the kernel's clock is synchronised, and its maximum error.
func ClockIsSynchronised() (synchronised bool, within time.Duration, err error) {
	var t unix.Timex // the zero value changes nothing
	state, err := unix.Adjtimex(&t)
	if err != nil {
		return false, 0, fmt.Errorf("adjtimex: %w", err)
	}
	return state != unix.TIME_ERROR && t.Status&unix.STA_UNSYNC == 0, time.Duration(t.Maxerror) * time.Microsecond, nil
}

// Machine describes the machine without a daemon. ends is the end of the API's certificate, zero if there is none.
func Machine(c *config.Config, ends, now time.Time) *wire.Machine {
	m := &wire.Machine{Clock: wire.Clock{Time: now.UTC()}}
	if synchronised, _, err := ClockIsSynchronised(); err == nil {
		m.Clock.Synchronised = &synchronised
	}
	if free, total, err := DiskSpace(c.DataDir); err == nil {
		m.Disk = &wire.Disk{Path: c.DataDir, Free: free, Total: total, Least: int64(c.Journal.MinFree)}
	}
	if !ends.IsZero() {
		m.Certificate = &wire.Certificate{Ends: ends.UTC(), Days: daysUntil(ends, now)}
	}
	return m
}

// daysUntil returns the number of whole days until end, negative if it is past.
func daysUntil(end, now time.Time) int {
	left := end.Sub(now)
	days := int(left / (24 * time.Hour))
	if left < 0 {
		days--
	}
	return days
}
