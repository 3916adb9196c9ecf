package graphql

// A request costs one unit up to usualCost values and usualBytes bytes. Larger requests are charged in proportion. That
// many values, and writing and sending that many bytes, each take 1 to 2 ms of a processor.
const (
	usualCost  = 20_000
	usualBytes = 256 << 10
)

// payFor charges the expected cost of a job before it runs.
func (r request) payFor(j job) {
	if r.charge != nil && j.cost > usualCost {
		r.charge(float64(j.cost)/usualCost - 1)
	}
}

// payForBytes charges the actual size of a large answer.
func (r request) payForBytes(body pieces) {
	if extra := extraOf(body); r.charge != nil && extra > 0 {
		r.charge(extra)
	}
}

// extraOf returns how many requests an answer of that size costs beyond one.
func extraOf(body pieces) float64 { return max(0, float64(body.size())/usualBytes-1) }
