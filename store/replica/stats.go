package replica

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"go.etcd.io/bbolt"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/index"
)

// The bucket of counts. Each key begins with the number of the collection and the kind of the count:
//
//	total   -                        all rows
//	route   source NUL destination   rows of a pair of chains
//	day     day                      rows sent on a UTC day, days since 1970 as 4 bytes big-endian
//	routes  day source NUL dest      rows of a pair of chains sent on a day
//	latency phase source NUL dest    a histogram, of packets; an empty chain stands for any chain
//
// A count is a varint, and is deleted at zero. Each write subtracts the old row and adds the new one, so the counts
// follow updates and removals, too.
const (
	statTotal    = 't'
	statRoute    = 'r'
	statDay      = 'd'
	statRouteDay = 'p'
	statLatency  = 'l'
)

func statKey(c *collection, what byte, rest string) []byte {
	return append([]byte{byte('0' + c.number), what}, rest...)
}

// latencyPhases are the fields that are kept in histograms, as the time since the packet was sent.
var latencyPhases = []struct {
	phase index.Phase
	field int
}{
	{index.PhasePacketRecv, index.PacketReceivedColumn},
	{index.PhaseWriteAck, index.PacketAckWrittenColumn},
	{index.PhasePacketAck, index.PacketAckedColumn},
}

// deltas are the changes of counts by a batch.
type deltas struct {
	counts    map[string]int64
	latencies map[string]*latencies // by pair of chains
}

// latencies are changes of histograms: by index in latencyPhases, then by bucket.
type latencies [3]map[uint64]int64

func newDeltas() *deltas {
	return &deltas{counts: make(map[string]int64), latencies: make(map[string]*latencies)}
}

// add counts a row; by is 1, or -1 to subtract the row.
func (d *deltas) add(c *collection, row index.Row, by int64) {
	var buf [160]byte
	key := append(buf[:0], byte('0'+c.number), statTotal)
	d.counts[string(key)] += by
	key = append(key[:1], statRoute)
	key = row.AppendText(key, c.source)
	key = append(key, routeSeparator...)
	key = row.AppendText(key, c.destination)
	d.counts[string(key)] += by
	pair := string(key[2:])
	sent, ok := row.Nanoseconds(c.sent)
	if !ok {
		return
	}
	key = append(key[:1], statDay)
	key = binary.BigEndian.AppendUint32(key, dayOf(sent))
	d.counts[string(key)] += by
	key[1] = statRouteDay
	key = append(key, pair...)
	d.counts[string(key)] += by
	if c == packets {
		d.addLatencies(row, sent, pair, by)
	}
}

func (d *deltas) addLatencies(packet index.Row, sent int64, pair string, by int64) {
	of := d.latencies[pair]
	if of == nil {
		of = &latencies{make(map[uint64]int64), make(map[uint64]int64), make(map[uint64]int64)}
		d.latencies[pair] = of
	}
	for i, p := range latencyPhases {
		if at, ok := packet.Nanoseconds(p.field); ok {
			of[i][latencyBucket(at-sent)] += by
		}
	}
}

// histograms returns the changes by key. Each pair of chains counts for itself, for its source with any destination,
// for its destination with any source, and for all pairs.
func (d *deltas) histograms() map[string]map[uint64]int64 {
	all := make(map[string]map[uint64]int64)
	for pair, of := range d.latencies {
		source, destination, _ := strings.Cut(pair, routeSeparator)
		for i, changes := range of {
			for _, key := range [4]string{
				latencyKey(i, "", ""), latencyKey(i, source, ""), latencyKey(i, "", destination),
				latencyKey(i, source, destination),
			} {
				if all[key] == nil {
					all[key] = make(map[uint64]int64)
				}
				for bucket, by := range changes {
					all[key][bucket] += by
				}
			}
		}
	}
	return all
}

func latencyKey(phase int, source, destination string) string {
	return string(statKey(packets, statLatency, string(rune('0'+phase))+source+routeSeparator+destination))
}

// dayOf returns the UTC day of a time, in days since 1970. The sign bit is flipped, so that earlier days sort first.
func dayOf(nanoseconds int64) uint32 {
	day := nanoseconds / int64(24*time.Hour)
	if nanoseconds%int64(24*time.Hour) < 0 {
		day--
	}
	return uint32(int32(day)) ^ 1<<31
}

func dayName(day uint32) string {
	return time.Unix(int64(int32(day^1<<31))*24*60*60, 0).UTC().Format(time.DateOnly)
}

// write applies the changes. routes reports whether a pair of chains was added or has disappeared.
func (d *deltas) write(tx *bbolt.Tx) (routes bool, err error) {
	b := tx.Bucket(bucketStats)
	for key, by := range d.counts {
		if by == 0 {
			continue
		}
		before := countOf(get(tx, bucketStats, []byte(key)))
		after := int64(before) + by
		if after < 0 {
			panic(damage(fmt.Sprintf("count %q would become %d", key, after)))
		}
		if key[1] == statRoute && (before == 0 || after == 0) {
			routes = true
		}
		if after == 0 {
			err = b.Delete([]byte(key))
		} else {
			err = put(tx, bucketStats, []byte(key), binary.AppendUvarint(nil, uint64(after)))
		}
		if err != nil {
			return false, err
		}
	}
	for key, changes := range d.histograms() {
		h := readHistogram(get(tx, bucketStats, []byte(key)))
		h.change(changes)
		if len(h) == 0 {
			err = b.Delete([]byte(key))
		} else {
			err = put(tx, bucketStats, []byte(key), h.encode())
		}
		if err != nil {
			return false, err
		}
	}
	return routes, nil
}

func countOf(v []byte) uint64 {
	n, _ := binary.Uvarint(v)
	return n
}

// histogram counts latencies in buckets whose bounds grow by a constant factor, as in DDSketch. The middle of a bucket
// is within index.LatencyError of each value in it. Counts are exact, so values can be subtracted. Entries are sorted
// by bucket.
type histogram []histogramEntry

type histogramEntry struct{ bucket, count uint64 }

var latencyGrowth = math.Log((1 + index.LatencyError) / (1 - index.LatencyError))

// latencyBucket returns the bucket of a latency: 0 up to a millisecond, then 1, 2, ….
func latencyBucket(nanoseconds int64) uint64 {
	if nanoseconds <= int64(time.Millisecond) {
		return 0
	}
	return uint64(math.Ceil(math.Log(float64(nanoseconds)/float64(time.Millisecond)) / latencyGrowth))
}

// latencySeconds returns the middle of a bucket, in seconds.
func latencySeconds(bucket uint64) float64 {
	if bucket == 0 {
		return 0
	}
	growth := math.Exp(latencyGrowth)
	return 2 * math.Exp(float64(bucket)*latencyGrowth) / (growth + 1) / 1000
}

func readHistogram(v []byte) histogram {
	var h histogram
	bucket := uint64(0)
	for len(v) > 0 {
		distance, n := binary.Uvarint(v)
		count, m := binary.Uvarint(v[n:])
		bucket += distance
		h = append(h, histogramEntry{bucket, count})
		v = v[n+m:]
	}
	return h
}

func (h histogram) encode() []byte {
	var v []byte
	last := uint64(0)
	for _, e := range h {
		v = binary.AppendUvarint(v, e.bucket-last)
		v = binary.AppendUvarint(v, e.count)
		last = e.bucket
	}
	return v
}

func (h *histogram) change(changes map[uint64]int64) {
	for bucket, by := range changes {
		i, found := slices.BinarySearchFunc(*h, bucket, func(e histogramEntry, b uint64) int {
			return cmp.Compare(e.bucket, b)
		})
		if !found {
			*h = slices.Insert(*h, i, histogramEntry{bucket: bucket})
		}
		(*h)[i].count += uint64(by)
	}
	*h = slices.DeleteFunc(*h, func(e histogramEntry) bool { return e.count == 0 })
}

// percentiles returns the nearest-rank percentiles, or nil for an empty histogram.
func (h histogram) percentiles() *index.Percentiles {
	total := uint64(0)
	for _, e := range h {
		total += e.count
	}
	if total == 0 {
		return nil
	}
	at := func(p float64) float64 {
		rank, sum := uint64(math.Ceil(p*float64(total))), uint64(0)
		for _, e := range h {
			if sum += e.count; sum >= rank {
				return latencySeconds(e.bucket)
			}
		}
		return 0
	}
	return &index.Percentiles{P5: at(0.05), Median: at(0.5), P95: at(0.95)}
}

// count returns the number of rows of a collection. The caller holds s.mu.
func (s *snapshot) count(c *collection) uint64 {
	return countOf(get(s.tx, bucketStats, statKey(c, statTotal, "")))
}

// Stats implements index.Snapshot.
func (s *snapshot) Stats(ctx context.Context) ([]index.Stat, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return []index.Stat{
		{Name: index.StatTransfers, Value: s.count(transfers)},
		{Name: index.StatPackets, Value: s.count(packets)},
	}, nil
}

// TransfersDaily implements index.Snapshot.
func (s *snapshot) TransfersDaily(ctx context.Context, q index.DayQuery) ([]index.DayCount, error) {
	return s.daily(ctx, transfers, q)
}

// PacketsDaily implements index.Snapshot.
func (s *snapshot) PacketsDaily(ctx context.Context, q index.DayQuery) ([]index.DayCount, error) {
	return s.daily(ctx, packets, q)
}

func (s *snapshot) daily(ctx context.Context, c *collection, q index.DayQuery) ([]index.DayCount, error) {
	var counts []index.DayCount
	err := s.days(ctx, c, statDay, q, func(day string, _ []byte, count uint64) {
		counts = append(counts, index.DayCount{Day: day, Count: count})
	})
	slices.Reverse(counts)
	return counts, err
}

// TransfersByChain implements index.Snapshot.
func (s *snapshot) TransfersByChain(ctx context.Context, q index.DayQuery) ([]index.RouteDayCount, error) {
	return s.byChain(ctx, transfers, q)
}

// PacketsByChain implements index.Snapshot.
func (s *snapshot) PacketsByChain(ctx context.Context, q index.DayQuery) ([]index.RouteDayCount, error) {
	return s.byChain(ctx, packets, q)
}

func (s *snapshot) byChain(ctx context.Context, c *collection, q index.DayQuery) ([]index.RouteDayCount, error) {
	var counts []index.RouteDayCount
	err := s.days(ctx, c, statRouteDay, q, func(day string, pair []byte, count uint64) {
		source, destination, _ := strings.Cut(string(pair), routeSeparator)
		if (q.SourceChain != "" && q.SourceChain != source) ||
			(q.DestinationChain != "" && q.DestinationChain != destination) {
			return
		}
		counts = append(counts, index.RouteDayCount{
			DayCount: index.DayCount{Day: day, Count: count}, SourceChain: source, DestinationChain: destination,
		})
	})
	slices.SortStableFunc(counts, func(a, b index.RouteDayCount) int {
		return cmp.Or(cmp.Compare(b.Day, a.Day), cmp.Compare(a.SourceChain, b.SourceChain),
			cmp.Compare(a.DestinationChain, b.DestinationChain))
	})
	return counts, err
}

// days calls yield with each count of the query's days, oldest first.
func (s *snapshot) days(ctx context.Context, c *collection, what byte, q index.DayQuery,
	yield func(day string, rest []byte, count uint64)) error {
	first := uint32(0)
	if q.DaysBack != nil {
		if *q.DaysBack < 1 {
			return appliance.Errorf(appliance.CodeInvalidField, "must be at least 1").In("p_days_back")
		}
		today := dayOf(s.r.now().UnixNano())
		first = today - min(uint32(*q.DaysBack)-1, today)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	prefix := statKey(c, what, "")
	cursor := s.tx.Bucket(bucketStats).Cursor()
	k, v := cursor.Seek(binary.BigEndian.AppendUint32(bytes.Clone(prefix), first))
	for n := 0; bytes.HasPrefix(k, prefix); k, v = cursor.Next() {
		if n++; n%askEvery == 0 && ctx.Err() != nil {
			return timeoutError(ctx.Err())
		}
		rest := k[len(prefix):]
		yield(dayName(binary.BigEndian.Uint32(rest)), rest[4:], countOf(unseal(sumOf(bucketStats), k, v)))
	}
	return nil
}

// Latency implements index.Snapshot.
func (s *snapshot) Latency(ctx context.Context, q index.LatencyQuery) (index.Latency, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var latency index.Latency
	shown := []**index.Percentiles{&latency.PacketRecv, &latency.WriteAck, &latency.PacketAck}
	for i, p := range latencyPhases {
		if q.Phase == index.AnyPhase || q.Phase == p.phase {
			v := get(s.tx, bucketStats, []byte(latencyKey(i, q.SourceChain, q.DestinationChain)))
			*shown[i] = readHistogram(v).percentiles()
		}
	}
	return latency, nil
}

// Health implements index.Snapshot.
func (s *snapshot) Health(ctx context.Context) ([]index.HealthCheck, error) {
	var checks []index.HealthCheck
	for _, network := range []index.Network{index.Mainnet, index.Testnet} {
		check := index.HealthCheck{Environment: network, Status: index.HealthStale}
		exists := false
		newer := func(t time.Time, ok bool) {
			if ok && (check.LastUpdate == nil || t.After(*check.LastUpdate)) {
				check.LastUpdate = &t
			}
		}
		for n, chain := range s.tables.of[index.ChainType].sorted {
			if n%askEvery == 0 && ctx.Err() != nil {
				return nil, timeoutError(ctx.Err())
			}
			if s.tables.network(chain.Key()) == network {
				exists = true
				newer(chain.Object(index.ChainStatusColumn).Time(index.ChainStatusTimestampColumn))
			}
		}
		if !exists {
			continue
		}
		newest, err := s.Packets(ctx, index.PacketQuery{Page: index.Page{Limit: new(int32(1))}, Network: network})
		if err != nil {
			return nil, err
		}
		for _, packet := range newest {
			newer(packet.Time(packets.sent))
		}
		if check.LastUpdate != nil && s.r.now().Sub(*check.LastUpdate) <= index.StaleAfter {
			check.Status = index.HealthOK
		}
		checks = append(checks, check)
	}
	return checks, nil
}
