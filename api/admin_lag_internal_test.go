package api

import (
	"testing"
	"time"
)

func TestAnHourOfLagIsKept(t *testing.T) {
	t.Parallel()
	start := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	var h lagHistory
	if told := h.samples(); told.LagSeconds == nil || len(told.LagSeconds) != 0 || told.StepSeconds != 10 {
		t.Errorf("before the first step: %+v", told)
	}
	h.add(start, nil)
	for i := range lagSteps {
		h.add(start.Add(time.Duration(i+1)*lagStep), new(float64(i)))
		if told := h.samples(); i < lagSteps-1 && (told.LagSeconds[0] != nil || len(told.LagSeconds) != i+2) {
			t.Fatalf("after %d: %d steps, the first %v", i, len(told.LagSeconds), told.LagSeconds[0])
		}
	}
	told := h.samples()
	if len(told.LagSeconds) != lagSteps || *told.LagSeconds[0] != 0 || *told.LagSeconds[lagSteps-1] != lagSteps-1 ||
		!told.Until.Equal(start.Add(time.Hour)) {
		t.Errorf("after an hour: %d steps until %s", len(told.LagSeconds), told.Until)
	}
}
