package replica

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"go.etcd.io/bbolt"

	"github.com/attestd/attestd/appliance/index"
)

// The dictionary that packed rows refer to: see index.Packer. Each text and each sample is keyed by its number, 4 bytes
// big-endian.
var (
	bucketTexts   = []byte("texts")
	bucketSamples = []byte("samples")
)

// The first sample is learned from learnFirst packets, and each later one after learnAgain times as many as the one
// before, because the contents of packets change over the years.
const (
	learnFirst = 500
	learnAgain = 32
	maxSamples = 6

	sampleRows = 64 // more rows than a sample has room for
)

func numberKey(n int) []byte { return binary.BigEndian.AppendUint32(nil, uint32(n)) }

// loadDictionary replaces the dictionary in use with the one in the file.
func (r *Store) loadDictionary(tx *bbolt.Tx) error {
	if err := checkSchema(tx); err != nil {
		return err
	}
	r.packer = index.NewPacker(unsealAll(tx, bucketTexts), unsealAll(tx, bucketSamples))
	r.dictionary.Store(r.packer.Dictionary())
	return nil
}

// unsealAll returns copies of the values of a bucket, in key order. It panics if a number is missing.
func unsealAll(tx *bbolt.Tx, bucket []byte) (values [][]byte) {
	cursor := tx.Bucket(bucket).Cursor()
	for k, v := cursor.First(); k != nil; k, v = cursor.Next() {
		if !bytes.Equal(k, numberKey(len(values))) { // a damaged page has lost an entry
			panic(damage(fmt.Sprintf("dictionary: %x is stored at the place of number %d", k, len(values))))
		}
		values = append(values, append([]byte(nil), unseal(sumOf(bucket), k, v)...))
	}
	return values
}

// keepDictionary stores the batch's additions to the dictionary and publishes them to readers. It publishes before the
// commit, because readers that begin after the commit need them.
func (w *batchWriter) keepDictionary() error {
	texts := w.tx.Bucket(bucketTexts)
	kept := int(texts.Sequence())
	added := w.r.packer.Texts(kept)
	if len(added) == 0 && !w.learned {
		return nil
	}
	for i, text := range added {
		if err := put(w.tx, bucketTexts, numberKey(kept+i), text); err != nil {
			return err
		}
	}
	w.r.dictionary.Store(w.r.packer.Dictionary())
	return texts.SetSequence(uint64(kept + len(added)))
}

// learn stores a sample, if one is due, made of some new rows of the batch and the last rows of the file. A batch
// without new rows makes no sample: it may be rolled back as unchanged, and the sample would be lost.
func (w *batchWriter) learn(rows []index.Row, isNew []bool) error {
	have := w.r.packer.Samples()
	due := learnFirst
	for range have {
		due *= learnAgain
	}
	var coming []index.Row
	for i, row := range rows {
		if isNew[i] && row.Type() == index.PacketType {
			coming = append(coming, row)
		}
	}
	if len(coming) == 0 || have == maxSamples || w.count(packets)+uint64(len(coming)) < uint64(due) {
		return nil
	}
	var of []index.Row
	for n := 0; n < len(coming); n += len(coming)/sampleRows + 1 {
		of = append(of, coming[n])
	}
	cursor := w.rows[packets.number].Cursor()
	for k, v := cursor.Last(); k != nil && len(of) < sampleRows; k, v = cursor.Prev() {
		of = append(of, packets.found(w.r.packer, k, v))
	}
	w.learned = true
	return put(w.tx, bucketSamples, numberKey(have), w.r.packer.Learn(of))
}

// hasLearned reports whether the batch has added to the dictionary.
func (w *batchWriter) hasLearned() bool {
	return w != nil && (w.learned || len(w.r.packer.Texts(w.texts)) > 0)
}

func (w *batchWriter) count(c *collection) uint64 {
	return countOf(get(w.tx, bucketStats, statKey(c, statTotal, "")))
}
