package graphql

// A usual request costs up to so many values or bytes. What is costlier is charged as several: that many values take 1 to 2 ms of a
// processor, and so do that many bytes to write and send.
const (
	usualCost  = 20_000
	usualBytes = 256 << 10
)

// payFor charges what a job is expected to cost, before it runs.
func (r request) payFor(j job) {
	if r.charge != nil && j.cost > usualCost {
		r.charge(float64(j.cost)/usualCost - 1)
	}
}

// payForBytes charges an answer that has turned out to be large.
func (r request) payForBytes(body pieces) {
	if size := body.size(); r.charge != nil && size > usualBytes {
		r.charge(float64(size)/usualBytes - 1)
	}
}
