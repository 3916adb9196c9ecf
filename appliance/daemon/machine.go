package daemon

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/attestd/attestd/api/wire"
	"github.com/attestd/attestd/appliance/config"
)

// DiskSpace is how many bytes the disk of a folder has, and how many of them this program may still use.
func DiskSpace(dir string) (free, total int64, err error) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return 0, 0, err
	}
	return int64(s.Bavail) * s.Bsize, int64(s.Blocks) * s.Bsize, nil
}

// ClockIsSynchronised asks the kernel whether a server sets the clock, and by how much it may be wrong then.
func ClockIsSynchronised() (synchronised bool, within time.Duration, err error) {
	var t unix.Timex // asks, changes nothing
	state, err := unix.Adjtimex(&t)
	if err != nil {
		return false, 0, fmt.Errorf("adjtimex: %w", err)
	}
	return state != unix.TIME_ERROR && t.Status&unix.STA_UNSYNC == 0, time.Duration(t.Maxerror) * time.Microsecond, nil
}

// Machine is what can be told of the machine without a daemon. ends is when the API's certificate does, zero for none.
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

// daysUntil is how many whole days are left; negative once it is past.
func daysUntil(end, now time.Time) int {
	left := end.Sub(now)
	days := int(left / (24 * time.Hour))
	if left < 0 {
		days--
	}
	return days
}
