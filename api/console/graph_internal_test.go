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
	one, three, seven := 1.0, 3.0, 7.0 // a third, two thirds and all of a logarithmic axis up to 7
	for name, c := range map[string]struct {
		values []*float64
		want   line
	}{
		"nothing":         {nil, line{"", "", 0, 7}},
		"nothing known":   {[]*float64{nil, nil}, line{"", "", 0, 7}},
		"below the least": {[]*float64{&one, &three}, line{"M240.0 66.7h.1L360.0 33.3", "", 3, 7}},
		"with a gap": {[]*float64{&three, nil, nil, &seven},
			line{"M0.0 33.3h.1M360.0 0.0h.1", "M0.0 0H360.0V100H0.0Z", 7, 7}},
	} {
		if got := drawLine(c.values, 4, 7); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}
