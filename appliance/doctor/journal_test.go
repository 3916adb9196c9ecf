package doctor

import (
	"testing"
)

func TestASampleHasTheNewestRecordsAndNotTooMany(t *testing.T) {
	for _, size := range []int64{0, 1, 19, 20, 1000, 1001, 1234, 1 << 40} {
		checked, last := int64(0), int64(-1)
		for _, before := range sampledPlaces(size) {
			checked += min(sampledAtOnce, before)
			last = max(last, before)
		}
		if last != size && size > 0 || checked < min(size, sampledRecords) || checked > sampledRecords+sampledAtOnce {
			t.Errorf("of %d records %d are checked, up to %d", size, checked, last)
		}
	}
}
