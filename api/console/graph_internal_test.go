package console

import "testing"

func TestGraphsAreDrawnToScale(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		counts []uint32
		want   string
	}{
		{nil, ""},
		{[]uint32{0, 0}, ""},
		{[]uint32{0, 4, 2}, "M1.5 24v-24.0M2.5 24v-12.0"},
		{[]uint32{1, 1000}, "M0.5 24v-1.0M1.5 24v-24.0"}, // a small count stays visible
	} {
		if got := bars(c.counts); got != c.want {
			t.Errorf("%v: %s, want %s", c.counts, got, c.want)
		}
	}
	one, two, four := 1.0, 2.0, 4.0
	for name, c := range map[string]struct {
		values []*float64
		most   float64
		want   string
	}{
		"nothing":         {nil, 0, ""},
		"nothing known":   {[]*float64{nil, nil}, 0, ""},
		"below the least": {[]*float64{&one, &two}, 2, "M240.0 75.0h.1L360.0 50.0"},
		"with a gap":      {[]*float64{&two, nil, nil, &four}, 4, "M0.0 50.0h.1M360.0 0.0h.1"},
	} {
		if got, most, scale := drawLine(c.values, 4, 4); got != c.want || most != c.most || scale != 4 {
			t.Errorf("%s: %s up to %v, want %s", name, got, most, c.want)
		}
	}
}
