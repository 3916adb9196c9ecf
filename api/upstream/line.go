package upstream

import (
	"errors"
	"io"
	"sync/atomic"
	"time"
)

// line remembers how fast answers come. Packing an answer takes the upstream 9 ms more of a processor for a page of 100 transfers than zstd
// does, and unpacking it 8 ms here: more than a network of one house needs for what is saved.
type line struct {
	speed   atomic.Int64 // bytes a second of the last answer that was large enough to tell; zero: not known yet
	garbled atomic.Int64 // when an answer that was asked for packed last could not be read, in nanoseconds since 1970; zero: never
}

const (
	slowLine   = 2 << 20  // bytes a second below which answers are better packed
	tellsSpeed = 32 << 10 // bytes of an answer that tell
	// plainFor is for how long answers are asked for in codings that everybody knows, after one that could not be read: a proxy may not
	// let another through as it is, and an upstream of another version may pack otherwise.
	plainFor = 10 * time.Minute
)

// packs tells whether answers are better asked for packed.
func (l *line) packs(now time.Time) bool {
	return l.slow() && now.Sub(time.Unix(0, l.garbled.Load())) >= plainFor
}

// slow is true as long as nothing is known.
func (l *line) slow() bool { return l.speed.Load() < slowLine }

func (l *line) note(b *timedBody) {
	if b.size >= tellsSpeed {
		l.speed.Store(max(1, int64(float64(b.size)/max(b.waited, time.Microsecond).Seconds())))
	}
}

// timedBody measures how long its reader waits for the network.
type timedBody struct {
	io.ReadCloser
	size   int64
	waited time.Duration
	cut    bool // the connection has failed
}

func (b *timedBody) Read(p []byte) (int, error) {
	began := time.Now()
	n, err := b.ReadCloser.Read(p)
	b.size, b.waited = b.size+int64(n), b.waited+time.Since(began)
	b.cut = b.cut || err != nil && !errors.Is(err, io.EOF)
	return n, err
}
